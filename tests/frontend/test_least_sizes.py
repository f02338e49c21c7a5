"""Where a dimension begins for which `torch.export.Dim` has no `min`: at 1, unless the module differs there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import q8ta_wgpu as q8
from testbed.noise import decibels
from tests.quantizing import Plain, conv, data

ONE: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: Plain(lambda s, x: s.conv(x[:, None]).mean((2, 3)), conv=conv(1, 4)),
    "attention": lambda: Plain(
        lambda s, x: s.layer(torch.cat([s.token.expand(len(x), -1, -1), x], 1)),
        layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        token=nn.Linear(8, 1),
    ),
    "a recurrent layer": lambda: Plain(lambda s, x: s.layer(x)[0], layer=nn.LSTM(8, 8, batch_first=True)),
}


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ONE)
def test_a_batch_without_a_least_size_begins_at_one(name: str, size: int) -> None:
    """torch.export begins at 2, and specializes an example of 1. Of that one only two sizes were traced, from which
    wrong formulas followed."""
    torch.manual_seed(0)
    module = ONE[name]()
    if name == "attention":
        module.token = nn.Parameter(data(1, 1, 8))
    items = [(data(size, 12, 8, seed=i),) for i in range(6)]
    program = q8.quantize(module.eval(), items[0], items, dynamic_shapes=[{0: Dim("B")}], progress=False)
    model = q8.compile(program)
    assert [t.shape for t in model.inputs.values()] == [(size, 12, 8)]
    session = q8.Session(model, "reference")
    for batch in (1, 2, 3, 5):
        x = torch.cat([x for (x,) in items] * 5)[:batch]
        expected = module(x).detach().numpy()
        assert (decibels(expected, session(x)) or 100) > 25, batch


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda s, x: s.linear(x).squeeze(0), "squeeze.* its result has another number of dimensions"),
        (lambda s, x: s.linear(x)[: max(len(x) - 1, 0)], "its result has no elements"),
        (lambda s, x: s.linear(x) if len(x) > 1 else x[..., :4], "with B = 1 it computes something else"),
    ],
)
def test_a_module_that_differs_at_one(function: Callable[..., Any], why: str) -> None:
    """It takes other batches, and says so. Asked for 1, it says why not."""
    module, x = Plain(function, linear=nn.Linear(8, 4)).eval(), data(3, 8)
    program = q8.quantize(module, (x,), [x], dynamic_shapes=[{0: Dim("B")}], progress=False)
    session = q8.Session(q8.compile(program), "reference")
    assert session(x[:2]).shape == module(x[:2]).shape
    with pytest.raises(q8.InputError, match=r"B from 2 to .*, found 1\. For others quantize with torch.export.Dim"):
        session(x[:1])
    with pytest.raises(q8.UnsupportedError, match=why):
        q8.quantize(module, (x,), [x], dynamic_shapes=[{0: Dim("B", min=1)}], progress=False)


def test_sizes_that_are_wrong_at_one_together_begin_at_two() -> None:
    """One that has no other size stays 1."""
    module = Plain(lambda s, x: s.linear(x) if x.shape[1] * x.shape[2] > 1 else x[..., :4], linear=nn.Linear(8, 4))
    dynamic = [{0: Dim("A", max=1), 1: Dim("B"), 2: Dim("C")}]
    x = data(1, 3, 5, 8)
    model = q8.compile(q8.quantize(module.eval(), (x,), [x], dynamic_shapes=dynamic, progress=False))
    assert model.graph.dynamic.symbols["A"] == (1, 1)
    assert [model.graph.dynamic.symbols[s][0] for s in "BC"] == [2, 2]


@pytest.mark.parametrize("size", ["B", "T"])
@pytest.mark.parametrize("lengths", [(1, 2, 3), (4, 4, 4)])
@pytest.mark.parametrize("own", [True, False])
def test_random_masks_that_cover_a_row_do_not_speak_against_a_module(
    own: bool, lengths: tuple[int, ...], size: str
) -> None:
    """The example's mask has few true elements, so that one of other sizes covers rows as a whole. Attention by itself
    gives zeros there, and nn.MultiheadAttention NaN: either was taken for a module that does not follow the sizes."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(m: Any, x: Tensor, mask: Tensor) -> Tensor:
        if own:
            y = m.attention.out_proj(x)[:, None]
            return F.scaled_dot_product_attention(y, y, y, attn_mask=mask[:, None, None])[:, 0]
        found: Tensor = m.attention(x, x, x, key_padding_mask=~mask, need_weights=False)[0]
        return found

    item = torch.randn(3, 24, 8), torch.arange(24)[None] < torch.tensor(lengths)[:, None]
    shapes = [{0: Dim("B")} if size == "B" else {1: Dim("T", max=24)}] * 2
    program = q8.quantize(
        Plain(forward, attention=attention).eval(), item, calibration=[item] * 4, dynamic_shapes=shapes
    )
    one = tuple(x[:1] if size == "B" else x[:, :1] for x in item)
    assert q8.Session(q8.compile(program), "reference")(*one).shape == one[0].shape
