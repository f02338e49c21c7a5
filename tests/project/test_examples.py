"""The examples, as their own commands run them, on small input."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from q8ta_wgpu.runtime.device import Device

try:
    from examples import classify, segment, stream, upscale_window
except SystemExit as missing:  # an example ends the program where a package is missing, and says which
    if "CI" in os.environ:
        raise ModuleNotFoundError(str(missing)) from None
    pytest.skip(str(missing), allow_module_level=True)

ROOT = Path(__file__).parents[2]
Captured = pytest.CaptureFixture[str]


def test_classify(vulkan: Device, capsys: Captured, tmp_path: Path) -> None:
    """With random weights, which need no network to come over."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8)).save(tmp_path / "photo.png")
    options = ["--weights", "none", "--size", "32", "--device", "wgpu-native:vulkan"]
    classify.main([*options, "--image", str(tmp_path / "photo.png")])
    out = capsys.readouterr().out
    assert "0 in float32: none" in out and "with random weights" in out
    assert float(out.rsplit("float32: ", 1)[1].split()[0]) > 15


def test_segment(vulkan: Device, capsys: Captured, tmp_path: Path) -> None:
    """The coins it was not trained on are found, in int8 as in float."""
    segment.main(["--out", str(tmp_path / "out" / "coins.png"), "--device", "wgpu-native:vulkan"])
    found = re.search(r"half: float32 ([\d.]+), int8 ([\d.]+); of int8 with float32 ([\d.]+)", capsys.readouterr().out)
    assert found
    in_float, in_int8, both = map(float, found.groups())
    assert in_float > 0.9 and in_int8 > in_float - 0.02 and both > 0.97
    with Image.open(tmp_path / "out" / "coins.png") as picture:
        assert picture.size == (384, 300)


def test_upscale_window(capsys: Captured, tmp_path: Path) -> None:
    """A frame drawn on the GPU alone is the network's enlargement of the small picture, in colour."""
    upscale_window.main(["--offscreen", str(tmp_path / "frame.png"), "--size", "64", "48"])
    with Image.open(tmp_path / "frame.png") as picture:
        assert picture.size == (192, 144)
        pixels = np.asarray(picture, np.float32)
    assert pixels.std() > 30 and np.abs(pixels[..., 0] - pixels[..., 2]).max() > 50


def test_stream(vulkan: Device, capsys: Captured) -> None:
    stream.main(["--frames", "6", "--size", "48", "64", "--device", "wgpu-native:vulkan"])
    out = capsys.readouterr().out
    assert "64x48 to 192x144" in out and "the same frames: yes" in out


def test_the_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every cell runs, in order, and shows no output that it does not compute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["notebook"])
    notebook = json.loads((ROOT / "examples" / "quantize.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        exec(compile("".join(cell["source"]), "quantize.ipynb", "exec"), names)
