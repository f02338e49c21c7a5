"""Inputs with infinities or NaN that the module replaces: it asks where they are before anything is rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, data

INFINITE, NAN = float("inf"), float("nan")
REPLACED: dict[str, Callable[[Tensor], Tensor]] = {
    "isnan": lambda x: torch.where(x.isnan(), 2.0, x),
    "isinf": lambda x: x.masked_fill(x.isinf(), 2.0),
    "isfinite": lambda x: torch.where(x.isfinite(), x, 2.0),
    "not equal to itself": lambda x: torch.where(x != x, 2.0, x),
    "equal to infinity": lambda x: torch.where(x == INFINITE, 2.0, x),
    "of infinite size": lambda x: torch.where(x.abs() == INFINITE, 2.0, x),
    "nan_to_num": lambda x: x.nan_to_num(0.5, 1.0, -1.0),
    "largest is infinite": lambda x: torch.where(x.amax(-1, True) == INFINITE, 2.0, x),
}


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("precision", ["auto", "int8"])
@pytest.mark.parametrize("name", REPLACED)
def test_what_the_module_replaces(name: str, precision: Literal["auto", "int8"], behind: bool, vulkan: Device) -> None:
    """int8 saturates an infinity to the largest number, which was not replaced: a wrong result without an error."""

    def forward(m: Plain, x: Tensor) -> object:
        return m.get_submodule("layer")(REPLACED[name](2 * x + 1 if behind else x))

    torch.manual_seed(0)
    module, items = Plain(forward, layer=nn.Linear(8, 4)).eval(), [data(4, 8, seed=i) for i in range(9)]
    program = q8.quantize(module, (items[0],), items, q8.Quantizer(precision=precision), progress=False)
    x = data(4, 8, seed=6)
    x[1, 2] = NAN if name in ("isnan", "not equal to itself") else INFINITE
    with torch.no_grad(), q8.Session(q8.compile(program), vulkan) as session:
        np.testing.assert_allclose(session(x.numpy()), module(x), atol=0.05)


@pytest.mark.parametrize("function", [lambda x: x * x, lambda x: x + x, lambda x: x.clamp(0, INFINITE)])
def test_what_asks_nothing(function: Callable[[Tensor], Tensor]) -> None:
    """A square compares nothing with itself. It was left in float32 for that."""
    module = Plain(lambda m, x: m.get_submodule("layer")(function(x)), layer=nn.Linear(8, 4)).eval()
    items = [data(4, 8, seed=i) for i in range(9)]
    report = q8.compile(q8.quantize(module, (items[0],), items, progress=False)).report()
    assert report.exact and not report.float32


def test_the_largest_float_in_int16() -> None:
    """nan_to_num puts it in place of an infinity. In steps of int16 it passed float32, of which numpy warned."""
    module = Plain(lambda m, x: m.get_submodule("layer")((x + x).nan_to_num(0.5)), layer=nn.Linear(8, 4)).eval()
    items = [data(4, 8, seed=i) for i in range(9)]
    model = q8.compile(q8.quantize(module, (items[0],), items, progress=False))
    assert "q8ta_where" in {node.op for node in model.graph.nodes}


@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_the_report_says_why(precision: str) -> None:
    """Of each value that the quantizer would have rounded."""
    quantizer = q8.Quantizer(precision=precision)
    module = Plain(lambda m, x: m.get_submodule("layer")((x + x).nan_to_num(0.5)), layer=nn.Linear(8, 4)).eval()
    items = [data(4, 8, seed=i) for i in range(9)]
    report = q8.compile(q8.quantize(module, (items[0],), items, quantizer, progress=False)).report()
    why = "is not rounded since the module asks where it is infinite or NaN"
    assert {note.partition(",")[0] for note in report.notes if why in note} == {f"inputs_0: {why}", f"add: {why}"}
