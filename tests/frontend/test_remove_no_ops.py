"""What a program does without is no reason to refuse it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.export.remove_no_ops import remove_no_ops
from q8ta_wgpu.frontend.export.tracing import traced
from tests.quantizing import INT8, Plain, conv, data, ops

INFINITE = -float("inf")


def padded(pad: list[int], *pool: Any, value: float = INFINITE) -> nn.Module:
    function = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(pool[0])]
    return Plain(lambda _, x: function(F.pad(x, pad, value=value), *pool))


def pads(module: nn.Module, x: Tensor) -> list[tuple[Any, ...]]:
    """How tensors are padded by themselves in the simplified program, which computes the same."""
    program = traced(lambda: torch.export.export(module, (x,)))
    remove_no_ops(program)
    assert torch.equal(program.module(check_guards=False)(x), module(x))
    return [node.args[2:] for node in program.graph.nodes if node.target is torch.ops.aten.pad.default]


@pytest.mark.parametrize(
    ("module", "shape", "found"),
    [
        (padded([0, 1, 0, 1], [3, 3], [2, 2]), (1, 2, 8, 6), [("replicate",)]),
        (padded([1, 1, 1, 1], [3, 3], [2, 2]), (1, 2, 7, 9), [("replicate",)]),
        (padded([0, 1, 0, 1], [3, 3], [2, 2], value=torch.finfo(torch.float32).min), (2, 7, 9), [("replicate",)]),
        (padded([1, 2], [4], [2]), (1, 2, 9), [("replicate",)]),
        (padded([0, 0, 1, 1, 0, 2], [3, 3, 1], [3, 1, 1]), (1, 2, 4, 5, 6), [("replicate",)]),
        (padded([0, 1, 1, 1], [3, 3], [2, 2]), (1, 2, 8, 7), [("replicate",)]),
        (padded([0, 1], [2, 2], [1, 1]), (1, 2, 3, 4), [("replicate",)]),
        (padded([2, 0, 0, 1], [4, 4], [3, 3], [1, 1]), (1, 2, 8, 8), [("replicate",)]),
        (padded([3, 3, 0, 0], [3, 3], [1, 1]), (1, 2, 5, 5), [("constant", INFINITE)]),
        (padded([1, 1, 1, 1], [2, 2], [1, 1], [0, 0], [2, 2]), (1, 2, 5, 5), [("constant", INFINITE)]),
        (padded([0, 1, 0, 1], [3, 3], [2, 2], [0, 0], [1, 1], True), (1, 2, 8, 6), [("constant", INFINITE)]),
        (padded([-1, 1, 0, 1], [3, 3], [2, 2]), (1, 2, 8, 6), [("constant", INFINITE)]),
        (padded([1, 1, 1, 1], [3, 3], [2, 2], value=-1.0), (1, 2, 7, 9), [("constant", -1.0)]),
    ],
)
def test_a_max_pooling_meets_edges_instead_of_infinities(
    module: nn.Module, shape: tuple[int, ...], found: list[tuple[Any, ...]]
) -> None:
    assert pads(module, data(*shape)) == found


def test_a_padded_value_that_is_read_elsewhere_stays() -> None:
    def twice(_: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = F.pad(x, [0, 1], value=INFINITE)
        return F.max_pool1d(wide, 3, 2), wide.exp()

    program = traced(lambda: torch.export.export(Plain(twice), (data(1, 2, 8),)))
    remove_no_ops(program)
    assert len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.pad.default)) == 1


def _layer_drop(s: Any, x: Tensor) -> Tensor:
    skips = s.training and bool(torch.rand([]) < 0.1)
    draw = torch.rand([]) < 0.1  # as in transformers' layers, which read it in training alone
    result: Tensor = x if skips else s.conv(x) * (draw.numel() or 2)
    return result


IMAGE = (2, 3, 8, 8)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "a padded pooling": lambda s, x: F.max_pool2d(F.pad(s.conv(x), [0, 1, 0, 1], value=INFINITE), 3, 2),
    "a pooling that the edge pads": lambda s, x: F.max_pool2d(F.pad(s.conv(x), [0, 1, 1, 1], value=INFINITE), 3, 2),
    "an empty tensor": lambda s, x: torch.cat([s.conv(x), x.new_zeros(x.shape[0], 0, 8, 8)], 1),
    "no dimensions": lambda s, x: torch.cat([torch.tensor([]), s.conv(x)], 1),
    "an empty slice": lambda s, x: torch.cat([s.conv(x)[:, :0], x], 1),
    "an empty parameter": lambda s, x: torch.cat([s.conv(x), s.empty[0].expand(x.shape[0], -1, -1, -1)], 1),
    "random numbers": _layer_drop,
    "random sizes": lambda s, x: s.conv(x).reshape(torch.rand(x.shape[0], 3, 64).shape),
    "a wide largest": lambda s, x: F.max_pool2d(s.conv(x), 10, ceil_mode=True),
    "a wide average": lambda s, x: F.avg_pool2d(s.conv(x), 2560, ceil_mode=True),
}


@pytest.mark.parametrize("dynamic_batch", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_runs_in_int8(name: str, dynamic_batch: bool) -> None:
    torch.manual_seed(0)
    module = Plain(FUNCTIONS[name], conv=conv(3, 3), empty=nn.ParameterList([torch.empty(1, 0, 8, 8)])).eval()
    x = data(*IMAGE)
    program = q8.quantize(module, (x,), [x], quantizer=INT8, progress=False, dynamic_batch=dynamic_batch)
    model = q8.compile(program)
    exact = module(x).detach().numpy()
    np.testing.assert_allclose(q8.Session(model, "reference")(x), exact, atol=0.02 * np.abs(exact).max())
    assert model.report().exact
    assert not set(ops(model)) & {"pad", "expand", "full"}


def test_random_numbers_that_are_read_are_refused() -> None:
    module = Plain(lambda s, x: s.conv(x) * (torch.rand([]) < 0.1), conv=conv(3, 3)).eval()
    with pytest.raises(q8.UnsupportedError, match=r"draws random numbers.*make them an input"):
        q8.quantize(module, (data(*IMAGE),), [data(*IMAGE)], quantizer=INT8, progress=False)


def test_a_wide_average_of_other_sizes() -> None:
    """Its windows are counted anew."""
    x = data(*IMAGE)
    tiles = x.repeat(1, 1, 2, 3)
    module = Plain(lambda _, x: F.avg_pool2d(x.relu(), 300, ceil_mode=True)).eval()
    model = q8.compile(q8.quantize(module, (x,), [x], quantizer=INT8, progress=False)).reshape(tuple(tiles.shape))
    np.testing.assert_allclose(q8.Session(model, "reference")(tiles), module(x), rtol=0.01)
    with pytest.raises(q8.InputError, match="up to 87000 elements, and so more than 65536 divisors"):
        model.reshape((2, 3, 300, 290))
