"""Networks that are given integers: token numbers, positions, timesteps."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, InputError, UnsupportedError
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.runtime.device import Device
from tests.importing import flat, imported
from tests.quantizing import Plain


@pytest.mark.parametrize(
    "function",
    [
        lambda i: (i + 1, i * i - 3, i // 3, i % 5, -i, i.abs(), i.clamp(2, 7)),
        lambda i: (i.float() * 0.5, i / 2, i > 3, i == 4, torch.where(i > 2, i, 0), i.masked_fill(i < 3, -1)),
        lambda i: (i.sum(1), i.cumsum(1), i.max(), i.argmax(1), i.sort(1).values, i.topk(2).indices, i.amin(0)),
        lambda i: (
            i & 6,
            i | i.flip(0),
            5 ^ i,
            ~i,
            i << 2,
            i >> 1,
            i // (i.flip(1) - 11),
            i % (i - 11),
            (i & 15).prod(1),
        ),
        lambda i: ((i != 1).sum(1), (i != 1).cumsum(1), (i != 1).int() * i, (i > 2).long() + i, i.maximum(i.flip(1))),
        lambda i: ((i - 5).flip(1), i[:, 1:3], i.T, torch.cat([i, i + 1], 1), i[:, None].expand(2, 3, 6), i.view(-1)),
        lambda i: (
            torch.arange(40.0)[i.long()],
            i.gather(1, i.clamp(0, 5).long()),
            nn.functional.pad(i, (1, 2)),
            i.roll(1),
        ),
    ],
    ids=["arithmetic", "comparisons", "reductions", "bits", "counts", "moves", "indices"],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16])
def test_what_integers_become(function: Callable[[Tensor], Any], dtype: torch.dtype, vulkan: Device) -> None:
    """The same numbers in the same dtypes as torch's."""
    x = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]], dtype=dtype)
    model = imported(function, x)
    for ours, theirs in zip(flat(q8.Session(model, vulkan)(x)), flat(function(x)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_array_equal(ours, theirs)


def test_bounds_are_as_narrow_as_the_arithmetic_needs() -> None:
    """Rows of a table, or what no sum and product brings past the largest number that is exact."""
    found = {
        name: imported(function, torch.zeros(4, dtype=torch.int64)).inputs["args_0"].bounds
        for name, function in {
            "moved": lambda i: i.flip(0),
            "scaled": lambda i: i * 100 + 7,
            "indexed": lambda i: nn.functional.embedding(i.view(2, 2).to(torch.int32), torch.ones(9, 3)),
        }.items()
    }
    assert found["indexed"] == (0, 8)
    assert found["moved"] is not None and found["scaled"] is not None
    assert found["scaled"][1] * 100 + 7 <= found["moved"][1]
    with pytest.raises(UnsupportedError, match="its integers may reach"):
        imported(lambda i: i * i * i * i, torch.zeros(4, dtype=torch.int64))


def _buckets(distance: Tensor) -> Tensor:
    """T5's buckets of distances, by their logarithm where they are large: of 0 it is an infinity, which is not
    chosen."""
    large = 16 + (torch.log(distance.float() / 16) / math.log(8) * 16).to(torch.long)
    return torch.where(distance < 16, distance, torch.min(large, torch.full_like(large, 31)))


def test_integers_made_of_functions_of_integers(device: Device) -> None:
    """Their floats have a range, so they need no clamp."""
    model = imported(lambda i: _buckets(torch.clamp(i, 0, 1000)), torch.zeros(300, dtype=torch.int64))
    found = q8.Session(model, device)(torch.arange(-10, 290))
    np.testing.assert_array_equal(flat(found)[0], _buckets(torch.arange(-10, 290).clamp(0, 1000)))


def test_integers_are_exact_to_int32(vulkan: Device) -> None:
    """What is moved, chosen, compared and computed within int32, where float32 has one number of 128."""
    functions: tuple[Callable[[Tensor], Any], ...] = (
        lambda i: (
            i.flip(0),
            i > i.roll(1),
            i == i.roll(1),
            i.max(),
            i.amin(),
            i.clamp(-5, 2**31 - 3),
            i & 255,
            i >> 7,
        ),
        lambda i: (torch.where(i > i.roll(1), i, -3), i % 1001, i // 3, i // i.roll(1), i.abs(), i ^ i.roll(1), ~i),
        lambda i: (
            (i >> 3).sum(),
            (i >> 3).cumsum(0),
            nn.functional.pad(i, (1, 1), value=2**30 + 1),
            i[(i > 0).long()],
        ),
        lambda i: (i.flip(0).argmax(), i.argmin(), i.flip(0).topk(3), i.flip(0).sort(), i.flip(0).max(0)),
        lambda i: (
            torch.arange(2**30, 2**30 + 7).index_put((i.clamp(0, 5),), i),
            torch.arange(2**30, 2**30 + 7).index_put((torch.tensor([1, 2, 4, 5, 6]),), i),
            torch.arange(2**30, 2**30 + 7).index_copy(0, i.clamp(0, 5), i),
            torch.arange(2**30, 2**30 + 7).scatter(0, i.clamp(0, 5), i),
        ),
    )
    x = torch.tensor([2**29 + 1, 2**29, -(2**29) - 7, 2**24 + 1, 5])
    for function in functions:
        model = imported(function, x)
        (bounds,) = (port.bounds for port in model.inputs.values())
        assert bounds is not None
        assert bounds[1] > 2**29
        with q8.Session(model, vulkan) as session:
            for ours, theirs in zip(flat(session(x)), flat(function(x)), strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize(
    ("function", "bounds"),
    [
        (lambda table, i: table[i], (-50, 49)),
        (lambda table, i: table.index_select(0, i.flip(0)), (0, 49)),
        (lambda table, i: table.gather(0, i[:, None].expand(-1, 3)), (0, 49)),
        (lambda table, i: nn.functional.embedding(i, table), (0, 49)),
        (lambda table, i: table.index_put((i,), torch.ones(3, 3)), (-50, 49)),
        (lambda table, i: table.index_copy(0, i, torch.ones(3, 3)), (0, 49)),
        (lambda table, i: table.index_add(0, i, torch.ones(3, 3)), (0, 49)),
        (lambda table, i: table.index_put((i,), torch.ones(3, 3), accumulate=True), (-50, 49)),
        (lambda table, i: table.scatter_add(0, i[:, None].expand(-1, 3), torch.ones(3, 3)), (0, 49)),
        (lambda table, i: table.scatter_reduce(0, i[:, None].expand(-1, 3), -torch.ones(3, 3), "amin"), (0, 49)),
    ],
    ids=[
        *("index", "index_select", "gather", "embedding", "index_put", "index_copy"),
        *("index_add", "index_put that accumulates", "scatter_add", "scatter_reduce"),
    ],
)
def test_an_index_outside_of_what_it_indexes_is_an_error(
    function: Callable[[Tensor, Tensor], Tensor], bounds: tuple[int, int], dtype: torch.dtype
) -> None:
    """Of whatever dtype: torch raises, and a device would take the nearest row, or write none."""
    table, x = torch.arange(150.0).view(50, 3), torch.tensor([3, 0, 49], dtype=dtype)
    bounds = max(bounds[0], torch.iinfo(dtype).min), bounds[1]
    session = q8.Session(imported(lambda i: function(table, i.long()), x), "reference")
    np.testing.assert_array_equal(flat(session(x))[0], function(table, x.long()))
    assert session.model.inputs["args_0"].bounds == bounds
    for wrong in (n for n in (bounds[0] - 1, bounds[1] + 1) if n >= torch.iinfo(dtype).min):
        with pytest.raises(InputError, match=rf"holds {wrong}, and must be in \[{bounds[0]}, {bounds[1]}\]"):
            session(torch.full_like(x, wrong))


def test_an_index_without_a_class_is_an_error() -> None:
    """Of a quantized module, whose composites are replaced one by one."""
    module = Plain(lambda s, i: s.layer(nn.functional.one_hot(i, 8).float()), layer=nn.Linear(8, 4)).eval()
    x = torch.tensor([1, 7, 0])
    session = q8.Session(q8.compile(q8.quantize(module, (x,), [x], progress=False)), "reference")
    for wrong in (-1, 8):
        with pytest.raises(InputError, match=rf"holds {wrong}, and must be in \[0, 7\]"):
            session(torch.full_like(x, wrong))


def test_a_model_file_whose_bounds_are_wrong_is_refused(tmp_path: Path) -> None:
    model = imported(lambda i: i + 1, torch.zeros(4, dtype=torch.int64))
    (name,) = model.graph.inputs
    others = [(name, bounds) for bounds in (None, (1, 5), (-(2**40), 5), (5, 0))]
    for value, bounds in (*others, (model.graph.outputs[0], (0, 5))):
        graph = model.graph.copy()
        graph.values.set(value, bounds=bounds)
        with pytest.raises(GraphError, match="bounds within int32 that enclose 0"):
            verify(graph, RUNNABLE)


def test_a_timestep_of_a_diffusion_network() -> None:
    """A number of one element that becomes an angle."""
    module = Plain(
        lambda s, t: s.out(torch.cat([(t[:, None] * s.rates).sin(), (t[:, None] * s.rates).cos()], -1)),
        out=nn.Linear(16, 4),
    ).eval()
    module.register_buffer("rates", torch.exp(-torch.arange(8) / 2))
    steps = [torch.tensor([n]) for n in (0, 10, 500, 999)]
    model = q8.compile(q8.quantize(module, (steps[0],), steps, progress=False))
    for step in steps:
        np.testing.assert_allclose(q8.Session(model, "reference")(step), module(step).detach(), atol=0.05)


def test_the_place_of_a_token_is_an_integer(vulkan: Device) -> None:
    """That of the first end of text, as CLIP finds it, and of the last other token, as classifiers do: no float
    operator computes with truth values."""
    torch.manual_seed(0)
    module = Plain(
        lambda self, ids: (
            self.table(ids)[torch.arange(2), (ids == 9).int().argmax(-1)],
            self.table(ids)[torch.arange(2), (torch.arange(4) * (ids != 9).int()).argmax(-1)],
        ),
        table=nn.Embedding(10, 16),
    ).eval()
    ids = torch.tensor([[1, 9, 3, 9], [4, 5, 6, 9]])
    model = q8.compile(q8.quantize(module, (ids,), [(ids,), (ids.flip(1),)], progress=False))
    assert model.report().exact
    found = q8.Session(model, vulkan)(ids)
    with torch.no_grad():
        for ours, exact, wanted in zip(found, q8.Session(model, "reference")(ids), module(ids), strict=True):
            np.testing.assert_array_equal(ours, exact)
            np.testing.assert_allclose(ours, wanted, atol=0.05)


def test_order_and_signs_of_integers_are_integers(vulkan: Device) -> None:
    """They are the same on every device, and exact where float32 is not."""
    x = torch.tensor([[2**30 + 1, 2**30, -3, 0], [0, -(2**31) + 1, 5, 2**24 + 1]])
    model = imported(lambda i: (i.sort(1), i.topk(2), i.argsort(1).argsort(1), i.sign() + i.sign()), x)
    assert model.report().exact and not model.report().float32
    expected = flat((x.sort(1), x.topk(2), x.argsort(1).argsort(1), 2 * x.sign()))
    for found, wanted in zip(flat(q8.Session(model, vulkan)(x)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_comparison_of_integers_that_were_moved_is_no_integer() -> None:
    """It comes before the moves, where its result has the dtype of a comparison."""
    x = torch.arange(7)
    module = Plain(lambda self, i: i[None].clamp(-2, 2).cumprod(1)[:, -1] > 1).eval()
    program = q8.quantize(module, (x,), [(x,)], progress=False)
    np.testing.assert_array_equal(q8.Session(q8.compile(program), "reference")(x), module(x))
