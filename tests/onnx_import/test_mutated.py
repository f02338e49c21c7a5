"""A short fuzz of ONNX files; `python -m bench onnx-fuzz --count 2000` is a long one, of real files."""

from __future__ import annotations

from typing import Any

from testbed.onnx.fuzzing import fuzzed
from testbed.onnx.networks import quantized, transformer, upsampling
from tests.onnx_import.test_branches import by_rate, by_size


def test_a_damaged_file_is_read_or_refused() -> None:
    files = [
        *(quantized("transformer", form, "u8s8") for form in ("QDQ", "QOperator", "dynamic")),
        *(net().SerializeToString() for net in (transformer, upsampling)),
        *(by_size(4), by_rate()),
    ]
    sizes: list[Any] = [({}, {})] * (len(files) - 1) + [({}, {"sr": 16000})]
    outcomes = fuzzed(files, sizes, range(400))
    assert outcomes["read"] > 20
    assert outcomes["refused: UnsupportedError"] > 200
