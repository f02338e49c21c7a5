"""Arguments of the wrong kind, of any size: our error, short, with what was found; never a raw one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu import errors
from q8ta_wgpu.commands.export_web import write_check
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.structure import Structure
from testbed.small import SHAPE, of_any_batch, small_input, small_model

MODEL, X, ONES = small_model(), small_input(), torch.ones(2, 3)
BIG = 10**5000
"""More digits than Python writes."""


def image_model() -> q8.Model:
    graph = Graph(["x"], ["y"], [Node("relu", ("x",), "y")], dict.fromkeys("xy", TensorType((1, 3, 8, 8))))
    return q8.Model(graph, Structure(0))


class Shapeless:
    """As a nested tensor of torch is."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("no sizes")

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("no values")


def any_batch() -> q8.Session:
    model = small_model()
    of_any_batch(model.graph)
    return q8.Session(model, "reference")


class OfBytes:
    """A path that is bytes, as os.PathLike allows."""

    def __fspath__(self) -> bytes:
        return b"net.q8ta"


IMAGE, ANY_BATCH = image_model(), any_batch()
CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "load None": (lambda: q8.load(None), "load takes the path of a .q8ta file, found NoneType"),  # type: ignore[arg-type]
    "load 3": (lambda: q8.load(3), "found int"),  # type: ignore[arg-type]
    "load bytes": (lambda: q8.load(b"net.q8ta"), "found bytes"),  # type: ignore[arg-type]
    "load NUL": (lambda: q8.load("a\0b"), r"load takes the path of a .q8ta file, found 'a.x00b'"),
    "load nothing": (lambda: q8.load(""), "load takes the path of a .q8ta file, found ''"),
    "load a path of bytes": (lambda: q8.load(OfBytes()), "found bytes"),  # type: ignore[arg-type]
    "save NUL": (lambda: MODEL.save("a\0b"), "save takes the path"),
    "save nothing": (lambda: MODEL.save(""), "save takes the path of a .q8ta file, found ''"),
    "export NUL": (lambda: q8.export_web(MODEL, "a\0b"), "export_web takes the path of a folder"),
    "export nothing": (lambda: q8.export_web(MODEL, ""), "export_web takes the path of a folder, found ''"),
    "export check nothing": (lambda: write_check({}, "", "1"), "export-web takes the path of a folder, found ''"),
    "load long": (lambda: q8.load("a" * 10**6), "File name too long"),
    "save None": (lambda: MODEL.save(None), "save takes the path"),  # type: ignore[arg-type]
    "compile None": (lambda: q8.compile(None), "expected a torch.export.ExportedProgram, found NoneType"),
    "compile a module": (lambda: q8.compile(nn.ReLU()), r"found ReLU: q8ta_wgpu.quantize\(module, .* makes one"),
    "repeats text": (lambda: reference().time(X, repeats="3"), "found '3' and 5"),  # type: ignore[arg-type]
    "repeats float": (lambda: reference().time(X, repeats=2.5), "found 2.5 and 5"),  # type: ignore[arg-type]
    "repeats big": (lambda: reference().time(X, repeats=BIG), "found int that cannot be shown"),
    "repeats switch": (lambda: reference().time(X, repeats=True), "found True and 5"),
    "warmup None": (lambda: reference().time(X, warmup=None), "found 20 and None"),  # type: ignore[arg-type]
    "tiled shape None": (lambda: tiled(None), "shape .n, c, h, w. of the whole image, found None"),
    "tiled shape text": (lambda: tiled("1388"), "must be a tuple of integers"),
    "tiled shape big": (lambda: tiled((1, 3, BIG, 8)), "each from 1 to 2147483648"),
    "tiled bytes": (lambda: tiled((1, 3, 8, 8), max_bytes="3"), "integer of at least 1, found '3'"),
    "tiled bytes switch": (lambda: tiled((1, 3, 8, 8), max_bytes=True), "integer of at least 1, found True"),
    "device big": (lambda: q8.Session(MODEL, BIG), "no adapter is called int that cannot be shown"),
    "device float": (lambda: q8.Session(MODEL, 2.5), "found float"),
    "device long": (lambda: q8.Session(MODEL, "x" * 10**6), "no adapter is called 'xxx"),
    "layouts": (lambda: q8.Session(MODEL, "reference", layouts="x" * 10**6), "'greedy', found 'xxx"),
    "layouts array": (lambda: q8.Session(MODEL, "reference", layouts=X), "'greedy', found array"),  # type: ignore[arg-type]
    "residual array": (lambda: q8.Quantizer(residual=X), "'int16' or 'int8', found array"),  # type: ignore[arg-type]
    "skip None": (lambda: q8.Quantizer(skip=None), "list of module paths.*found None"),  # type: ignore[arg-type]
    "skip bytes": (lambda: q8.Quantizer(skip=b"x"), "list of module paths.*found b'x'"),  # type: ignore[arg-type]
    "without a shape": (lambda: ANY_BATCH(Shapeless()), "'x' cannot become an array of numbers, found Shapeless"),
    "compare a model": (lambda: q8.compare(nn.ReLU().eval(), MODEL, (ONES,)), "quantize returned, found Model"),
    "export to None": (lambda: q8.export_web(MODEL, None), "export_web takes the path of a folder, found NoneType"),  # type: ignore[arg-type]
    "export of a module": (lambda: q8.export_web(nn.ReLU(), "x"), "takes a Model, found ReLU.*no PyTorch"),  # type: ignore[arg-type]
    "model of nothing": (lambda: q8.Model(None, None), "a Graph and a Structure.*found NoneType and NoneType"),  # type: ignore[arg-type]
    "tune text": (lambda: q8.Session(MODEL, "reference", tune="no"), "tune must be True or False, found 'no'"),  # type: ignore[arg-type]
    "qat of 16 bits": (lambda: q8.Quantizer(qat=True, precision="int16"), "16 bits are not trained.*qat=False"),
    "calibration None": (lambda: quantized(calibration=None), "must be an iterable of inputs, found NoneType"),
    "calibration text": (lambda: quantized(calibration="x"), "must be an iterable of inputs, found str"),
    "calibration array": (lambda: quantized(calibration=X), "must be an iterable of inputs, found ndarray: write .x."),
    "qat text": (lambda: q8.Quantizer(qat="no"), "qat must be True or False, found 'no'"),  # type: ignore[arg-type]
    "biases array": (lambda: q8.Quantizer(fit_weights=X), "fit_weights must be True or False, found array"),  # type: ignore[arg-type]
    "int8_outputs": (lambda: q8.compile(None, int8_outputs=2), "int8_outputs must be True or False, found 2"),  # type: ignore[call-overload]
    "progress": (lambda: quantized(progress="no"), "progress must be True or False, found 'no'"),
    "dynamic_batch": (lambda: quantized(dynamic_batch=X), "dynamic_batch must be True or False, found array"),
    "no model": (lambda: q8.Session(None), "takes a Model, found NoneType"),  # type: ignore[arg-type]
    "reshape None": (lambda: MODEL.reshape(None), "tuple of integers, found None"),  # type: ignore[arg-type]
    "reshape big": (lambda: MODEL.reshape((BIG, *SHAPE[1:])), "each from 1 to 2147483648"),
    "reshape long": (lambda: MODEL.reshape((1,) * 10**6), "has 4 dimensions"),
    "reshape huge": (lambda: IMAGE.reshape((1, 3, 40000, 40000)), "4800000000 elements, more than 2147483648"),
    "masked": (lambda: reference()(np.ma.masked_array(X, mask=X > 0)), r"some of its elements are masked.*filled"),
    "unknown input": (lambda: reference()(**{"a" * 10**6: X}), "the model has no input 'aaa"),
}


def reference() -> q8.Session:
    return q8.Session(MODEL, "reference")


def quantized(**options: Any) -> Any:
    return q8.quantize(nn.ReLU().eval(), (ONES,), **{"calibration": [ONES], **options})


def tiled(shape: Any, **options: Any) -> q8.TiledSession:
    return q8.TiledSession(IMAGE, shape, "reference", **options)


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument(case: str) -> None:
    call, message = CASES[case]
    with pytest.raises(q8.Q8taError, match=message) as caught:
        call()
    assert len(str(caught.value)) <= errors.MAX_MESSAGE + 3


def test_an_array_without_a_masked_element_is_an_array() -> None:
    found = reference()(np.ma.masked_array(X, mask=False))
    np.testing.assert_array_equal(found["y"], reference()(X)["y"])


def test_what_is_allowed_to_be_reshaped_is_saved_and_opened(tmp_path: Path) -> None:
    """At the limit: 2^31 elements, of which nothing is allocated before a device refuses them."""
    largest = IMAGE.reshape((1, 2, 2**15, 2**15))
    largest.save(tmp_path / "large.q8ta")
    loaded = q8.load(tmp_path / "large.q8ta")
    assert loaded.inputs == largest.inputs
    with pytest.raises(q8.DeviceError, match=r"bytes that .* can bind: use a smaller input"):
        q8.Session(loaded, "vulkan")


def test_the_reference_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(OPS, "relu", replace(OPS["relu"], reference=full))
    with pytest.raises(q8.DeviceError, match=r"no memory left for y, float32\[1, 3, 8, 8\]: take an adapter"):
        q8.Session(IMAGE, "reference")(np.zeros((1, 3, 8, 8), np.float32))


def test_a_long_message_keeps_both_ends() -> None:
    text = str(q8.InputError("what was found" + "x" * 10**6 + "the way out"))
    assert text.startswith("what was found") and text.endswith("the way out")
    assert len(text) == errors.MAX_MESSAGE + 3
