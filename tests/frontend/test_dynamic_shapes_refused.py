"""What `quantize(dynamic_shapes=...)` refuses: names of sizes, and modules that do not follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import q8ta_wgpu as q8
from q8ta_wgpu.errors import UnsupportedError
from tests.quantizing import Plain, data

T = Dim("T", max=20)


REFUSED = {
    "a number": (lambda self, x: self.linear(x).sum(1) / x.shape[1], T, "computes with other numbers"),
    "a loop": (lambda self, x: sum(self.linear(x[:, i]) for i in range(x.shape[1])), T, "other operators"),
    "a third": (lambda self, x: self.linear(x)[:, : x.shape[1] // 3], T, r"no sum of multiples.* as 4 \* Dim"),
    "a variance": (lambda self, x: self.linear(x).std(1), T, "the number 11.0 at one size"),
    "a table that is too short": (
        lambda self, x: self.linear(x) + torch.arange(x.shape[1])[:, None].sin(),
        T,
        r"example_inputs of the largest size, which Dim\(max=\.\.\.\) says",
    ),
    "a table of the smallest size": (
        lambda self, x: self.linear(x) + torch.arange(x.shape[1])[:, None].sin(),
        Dim("T", min=12, max=20),
        r"is larger with T = 13 than with T = 12: quantize with example_inputs of the largest size",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_follow_a_size_is_refused_by_name(name: str) -> None:
    function, dim, why = REFUSED[name]
    module, x = Plain(function, linear=nn.Linear(8, 8)).eval(), data(1, 12, 8)
    with pytest.raises(q8.UnsupportedError, match=rf"quantizing.py:\d+.*{why}"):
        q8.compile(q8.quantize(module, (x,), [x], dynamic_shapes=[{1: dim}], progress=False))


@pytest.mark.parametrize("other", [None, {1: Dim("S")}])
def test_a_length_that_only_one_of_two_inputs_has_is_named(other: Any, caplog: pytest.LogCaptureFixture) -> None:
    module, x = Plain(lambda self, x, y: self.linear(x) + y, linear=nn.Linear(8, 8)).eval(), data(1, 10, 8)
    alike = "Dimension 1 of example input 0 and dimension 1 of example input 1 both have the size 10"
    with pytest.raises(q8.InputError, match=f"with T = .* does not run .*{alike}"):
        q8.quantize(module, (x, x.clone()), [(x, x)], dynamic_shapes=[{1: T}, other], progress=False)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_sizes_that_are_equal_where_a_module_fails_are_no_cause() -> None:
    """A window that is larger than both."""
    x, dynamic = data(1, 3, 8, 8), [{2: Dim("H"), 3: Dim("W")}]
    with pytest.raises(
        q8.UnsupportedError, match=r"with H = 2, W = 2 the module does not run .*Name other sizes by Dim"
    ):
        q8.quantize(nn.Conv2d(3, 4, 3).eval(), (x,), [x], dynamic_shapes=dynamic, progress=False)


WRONG = {
    "a name": ({"y": {0: T}}, "names 'y'"),
    "no size": ({"input": None}, "names no dimension"),
    "a dimension": ([{7: T}], "a dict of its 3 dimensions"),
    "no Dim": ([{1: "T"}], "must be a torch.export.Dim, found 'T'"),
    "another number": ([{1: 4}], "says 4 of dimension 1 of example input 0, found 12"),
    "out of its range": ([{1: Dim("T", max=8)}], "T from 1 to 8, found 12"),
    "no multiple": ([{1: 5 * Dim("T")}], r"5\*T .*found 12"),
    "too many": ([{d: Dim(f"d{d}") for d in range(4)}], "may have 3 different sizes, found 4"),
    "entries": ([None, None], "an entry for each of the 1 inputs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_dynamic_shapes_are_named(name: str) -> None:
    said, why = WRONG[name]
    x = data(3, 12, 5, 7)[0] if name != "too many" else data(3, 12, 5, 7)
    with pytest.raises(q8.InputError, match=why):
        q8.quantize(
            nn.Sequential(nn.Linear(7, 3)).eval(), (x[None, :, 0] if x.dim() == 3 else x,), [], dynamic_shapes=said
        )


def test_a_buffer_that_has_the_size_of_a_dimension_is_named() -> None:
    """It was called an example input that does not exist."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("kept", torch.zeros(2, 8))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x) + self.get_buffer("kept")
            self.get_buffer("kept").copy_(y * 0.5)
            return y

    x = torch.randn(2, 8)
    said = "Buffer kept has the size 2 in dimension 0, as dimension 0 of example input 0 does, and keeps it"
    with pytest.raises(q8.InputError, match=said):
        q8.quantize(Keeping().eval(), (x,), [(x,)], dynamic_shapes=[{0: Dim("B")}], progress=False)


NOT_FOLLOWING: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda x: x.roll(1, 1) + x,
    "roll by a half": lambda x: x.roll(x.shape[1] // 2, 1) + x,
    "chunk": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "mean": lambda x: x.sum(1) / x.shape[1],
    "variance": lambda x: x.var(1),
}


@pytest.mark.parametrize("name", NOT_FOLLOWING)
def test_what_no_graph_of_all_sizes_has_is_refused_before_compile(name: str) -> None:
    """`quantize` accepted it, and `compile` refused the program."""
    module = Plain(lambda s, x: NOT_FOLLOWING[name](s.linear(x)), linear=nn.Linear(8, 8)).eval()
    x = data(1, 12, 8)
    with pytest.raises(UnsupportedError, match="does not follow the sizes that dynamic_shapes names"):
        q8.quantize(module, (x,), [x], dynamic_shapes=[{1: T}], progress=False)


def test_results_that_nothing_reads_may_be_more_at_other_sizes() -> None:
    module = Plain(lambda s, x: s.linear(x).unbind(1)[0], linear=nn.Linear(8, 8)).eval()
    x = data(1, 12, 8)
    session = q8.Session(
        q8.compile(q8.quantize(module, (x,), [x], dynamic_shapes=[{1: T}], progress=False)), "reference"
    )
    for length in (3, 20):
        x = data(1, length, 8)
        np.testing.assert_allclose(session(x), module(x).detach().numpy(), atol=0.1)
