"""Packages of PyPI that use ONNX Runtime, with it and with this library in its place: the same results?

Needs magika, ddddocr, rapidocr-onnxruntime and nudenet with the models in them; those that are missing are left out.
Each runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from bench.options import Options


def part_onnx_packages(options: Options) -> None:
    """Runs each package twice, and prints what it gives."""
    for name in PACKAGES:
        if options.names and name not in options.names:
            continue
        if importlib.util.find_spec(name) is None:
            print(f"{name}: not installed")
            continue
        theirs, ours = (_run(name, engine) for engine in ("onnxruntime", "q8ta_wgpu"))
        print(f"{name}: {'equal' if theirs == ours else 'DIFFERS'}\n  {theirs}\n  {ours}", flush=True)


def _run(name: str, engine: str) -> str:
    done = subprocess.run([sys.executable, "-m", "bench.onnx_packages", name, engine], capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if not done.returncode else done.stderr.strip().splitlines()[-1]


def _magika() -> Any:
    from magika import Magika

    texts = (b"def f(x):\n    return x + 1\n" * 20, b"#include <stdio.h>\nint main(void) { return 0; }\n" * 20)
    found = [Magika().identify_bytes(text) for text in (*texts, b'{"a": [1, 2], "b": null}\n' * 30)]
    return [(str(each.output.label), round(float(each.score), 3)) for each in found]


def _drawn(text: str, width: int, height: int) -> Any:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text((10, 6), text, fill="black", font=ImageFont.load_default(28))
    return image


def _ddddocr() -> Any:
    import ddddocr

    picture = io.BytesIO()
    _drawn("8k3Fq", 160, 48).save(picture, "PNG")
    detected = ddddocr.DdddOcr(det=True, ocr=False, show_ad=False).detection(picture.getvalue())
    return ddddocr.DdddOcr(show_ad=False).classification(picture.getvalue()), detected


def _rapidocr() -> Any:
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR

    found, _ = RapidOCR()(np.asarray(_drawn("Hello world 2026", 320, 64)))
    return [(text, round(float(score), 2)) for _, text, score in found]


def _nudenet() -> Any:
    import skimage.data
    from nudenet import NudeDetector

    picture: Any = skimage.data.astronaut
    found = NudeDetector().detect(picture()[..., ::-1])
    return [(each["class"], round(each["score"], 2), each["box"]) for each in found]


PACKAGES: Mapping[str, Callable[[], Any]] = {
    "magika": _magika,
    "ddddocr": _ddddocr,
    "rapidocr_onnxruntime": _rapidocr,
    "nudenet": _nudenet,
}

if __name__ == "__main__":
    if sys.argv[2] == "q8ta_wgpu":
        import q8ta_wgpu.onnxruntime

        q8ta_wgpu.onnxruntime.install()
        q8ta_wgpu.onnxruntime.set_default_device("reference")
    print(json.dumps(PACKAGES[sys.argv[1]]()))
