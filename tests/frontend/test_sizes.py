"""Sizes from which a network computes numbers: another size gives what torch gives there, or is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.fixed_sizes import fixed_sizes
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_piece, import_whole
from q8ta_wgpu.frontend.numbers import has_equal_numbers
from q8ta_wgpu.ir.graph import Graph
from tests.importing import Wrapped, imported
from tests.quantizing import Plain, conv, data

FIXED: Mapping[str, tuple[Callable[[Tensor], Any], dict[int, int]]] = {
    "nothing": (lambda x: x.relu().mean((2, 3)), {}),
    "factors": (lambda x: x * 0.5 + torch.unflatten(x.flatten(2), 2, (-1, 6)), {}),
    "counted": (lambda x: x / x.shape[2], {2: 0}),
    "root": (lambda x: x / math.sqrt(x.shape[1]), {1: 0, 3: 0}),
    "all of them": (lambda x: x.sum() / x.numel(), {0: 0, 1: 0, 2: 0, 3: 0}),
    "halves": (lambda x: torch.cat([-x[..., x.shape[3] // 2 :], x[..., : x.shape[3] // 2]], 3), {1: 0, 3: 0}),
    "last": (lambda x: x[:, :, x.shape[2] - 1], {2: 0}),
    "first ones": (lambda x: x.topk(x.shape[2] // 2, 2).values, {2: 0}),
    "window of all": (lambda x: F.avg_pool2d(x, x.shape[2:]), {1: 0, 2: 0, 3: 0}),
    "given size": (lambda x: F.interpolate(x, (8, 12)), {1: 0, 2: 0, 3: 0}),
    "padded to": (lambda x: F.pad(x, (0, 8 - x.shape[3])), {1: 0, 3: 0}),
    "repeated": (lambda x: x.mean(2, True).expand(-1, -1, x.shape[2], -1), {2: 0}),
    "constant": (lambda x: x * torch.tensor(float(x.shape[2])), {2: 0}),
    "loop": (lambda x: sum(x[:, i] for i in range(x.shape[1])), {1: 0, 3: 0}),
    "even ones": (lambda x: F.interpolate(F.max_pool2d(x, 2, ceil_mode=True), x.shape[2:]), {1: 2, 2: 4, 3: 2}),
    "scores": (lambda x: F.scaled_dot_product_attention(x, x, x), {1: 0, 3: 0}),
}


def found(function: Callable[[Tensor], Any]) -> dict[int, int]:
    """The dimensions that cannot change freely, with their steps."""
    module, x = Wrapped(function).eval(), (data(2, 6, 4, 6),)
    source = Traceable(module, x)
    with torch.no_grad():
        program = source.program()
        at_size = fixed_sizes(
            program,
            import_whole(source.folded(program)),
            module,
            lambda x: source.folded(source.program(inputs=x)),
            x,
            (),
        )
    return {dim: step for _, dim, step, _ in at_size}


@pytest.mark.parametrize("name", FIXED)
def test_sizes_that_numbers_were_computed_from_are_found(name: str) -> None:
    function, expected = FIXED[name]
    assert found(function) == expected


def test_no_size_is_traced_that_tells_nothing() -> None:
    """Equal heights and widths in steps of 4: all larger once, then the batch, then both at an odd size and at the next
    step."""
    module = Wrapped(FIXED["even ones"][0]).eval()
    example, traced = (data(1, 2, 4, 4),), list[tuple[int, ...]]()
    source = Traceable(module, example)

    def trace(x: tuple[Tensor, ...]) -> GraphModule:
        traced.append(tuple(x[0].shape))
        return source.folded(source.program(inputs=x))

    with torch.no_grad():
        program = source.program()
        graph = source.folded(program)
        steps = {
            dim: step for _, dim, step, _ in fixed_sizes(program, import_whole(graph), None, trace, example, {(0, 1)})
        }
    assert steps == {2: 4, 3: 4}
    assert traced == [(3, 2, 9, 9), (3, 2, 4, 4), (1, 2, 9, 9), (1, 2, 8, 8)]


class Counts(nn.Module):
    """Computes without numbers of its sizes, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 6), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        rows: Tensor = self.linear(x)
        return rows.reshape(x.shape[0], -1) * 0.25


def test_a_module_that_computes_with_equal_numbers_is_not_traced_again() -> None:
    """It makes the same calls at other sizes, without values, and is left as it was."""
    module, traced = Counts().eval(), list[tuple[Tensor, ...]]()
    source, example = Traceable(module, (data(2, 5, 6),)), (data(2, 5, 6),)

    def trace(x: tuple[Tensor, ...]) -> GraphModule:
        traced.append(x)
        return graph

    with torch.no_grad():
        program = source.program()
        graph, module.calls = source.folded(program), 0
        found = fixed_sizes(program, import_whole(graph), module, trace, example, ())
    assert (found, traced, module.calls) == ([], [], 0)
    one, two = (import_piece(source.folded(source.program(inputs=(data(2, n, 6),)))) for n in (5, 7))
    assert isinstance(one, Graph) and isinstance(two, Graph)
    assert has_equal_numbers(module, example, one, two)
    for wrong in (lambda x: module(x) / x.shape[1], lambda x: module(x) + torch.tensor(x.shape[1])):
        assert not has_equal_numbers(Wrapped(wrong).eval(), example, one, two)


def test_equal_sizes_of_several_inputs_change_together() -> None:
    """A mask of as many columns as there are tokens."""
    module = Plain(lambda self, x, mask: (self.linear(x) * mask[..., None]).sum(1) * 0.5, linear=nn.Linear(3, 4)).eval()
    item = data(2, 5, 3), torch.arange(5) < torch.tensor([[3], [5]])
    model = q8.compile(q8.quantize(module, item, [item], progress=False)).reshape((4, 9, 3), (4, 9))
    assert not any(known.fixed for known in model.graph.values.values()) and model.outputs[0].shape == (4, 4)


def test_a_model_refuses_another_size_of_what_it_was_computed_from(tmp_path: Path) -> None:
    """By the dimension and the place, from a file and from a saved program too; other dimensions are free."""
    x = data(1, 3, 12, 8)
    module = Plain(lambda self, x: self.conv(x).relu().std((1, 3)), conv=conv(3, 8)).eval()
    program = q8.quantize(module, (x,), [x], progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    for made in (program, torch.export.load(tmp_path / "net.pt2")):
        q8.compile(made).save(tmp_path / "net.q8ta")
        model = q8.load(tmp_path / "net.q8ta")
        assert q8.Session(model.reshape((2, 3, 20, 8)), "reference")(data(2, 3, 20, 8)).shape == (2, 20)
        with pytest.raises(q8.InputError, match=r"dimension 3 of input \w+ must be 8, found 9: div .*quantizing.py:"):
            model.reshape((1, 3, 12, 9))


@pytest.mark.parametrize("unbiased", [False, True])
def test_a_variance_of_another_quantizers_program(unbiased: bool) -> None:
    """That of a population counts what it meets; of a sample's nothing says what its number was computed from."""
    x = data(2, 6, 8, 6)
    model = imported(lambda x: x.std((1, 2), unbiased=unbiased), data(2, 6, 4, 6))
    if unbiased:
        with pytest.raises(q8.InputError, match=r"variance at .* divides by the number of its elements less one"):
            model.reshape(tuple(x.shape))
    else:
        np.testing.assert_allclose(
            q8.Session(model.reshape(tuple(x.shape)), "reference")(x), x.std((1, 2), unbiased=False), rtol=1e-5
        )


BATCHES: Mapping[str, Callable[[Tensor], Any]] = {
    "sort": lambda x: x.sort(0).values,
    "argsort": lambda x: x.argsort(0).float(),
    "cumsum": lambda x: x.cumsum(0),
    "std of others": lambda x: x.std((1, 2)),
    "five dimensions": lambda x: torch.where(x[:, :, None] > 0, x[:, None], x[:, :, None] * x[:, None]),
}


def test_a_batch_of_another_size_gives_what_torch_gives() -> None:
    """What is ordered or counted along the batch, too."""
    module = Wrapped(lambda x: [function(x) for function in BATCHES.values()]).eval()
    x = data(2, 4, 4, 6)
    exported = torch.export.export(module, (x,), dynamic_shapes=(({0: torch.export.Dim("batch")},),))
    session = q8.Session(q8.compile(exported), "reference")
    for size in (1, 3):
        y = data(size, 4, 4, 6)
        outputs = session(y)
        for name, ours, theirs in zip(BATCHES, outputs, module(y), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("function", [lambda x: x.std(0), lambda x: x / x.shape[0], lambda x: x.kthvalue(2, 0).values])
def test_a_number_computed_from_the_batch_is_refused(function: Callable[[Tensor], Any]) -> None:
    x = data(2, 4, 6)
    with pytest.raises(q8.UnsupportedError, match=r"does not follow the sizes"):
        q8.quantize(Wrapped(function).eval(), (x,), [x], progress=False, dynamic_batch=True)
