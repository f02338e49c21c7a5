"""Operators of our graphs for which torch has no single call with the same arguments, written with torch's calls.

Those with the name of an operator take its attributes and its operands, as rows of `TORCH` in tests/oracle.py do.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from q8ta_wgpu.ir.graph import Attrs


def _image(x: Tensor) -> Tensor:
    """A batch of images: torch's pools and unfold take no other ranks with every option."""
    return x if x.dim() == 4 else x[None]


def conv2d(a: Attrs, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    top, left, bottom, right = a["padding"]
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, a["stride"], 0, a["dilation"], a["groups"])


def conv_transpose2d(a: Attrs, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Our weight is (outputs, inputs / groups, h, w), torch's (inputs, outputs / groups, h, w)."""
    groups, (outputs, depth, *kernel) = a["groups"], weight.shape
    turned = weight.reshape(groups, outputs // groups, depth, *kernel).transpose(1, 2)
    turned = turned.reshape(groups * depth, outputs // groups, *kernel)
    return F.conv_transpose2d(x, turned, bias, a["stride"], a["padding"], a["output_padding"], groups, a["dilation"])


def _padded_evenly(a: Attrs) -> bool:
    """Whether torch's pools take the padding themselves: the same on both sides, at most half a kernel."""
    before, after = a["padding"][:2], a["padding"][2:]
    return tuple(before) == tuple(after) and all(2 * p <= k for p, k in zip(before, a["kernel"], strict=True))


def _pooled(a: Attrs, x: Tensor, pool: Callable[[Tensor], Tensor], fill: float) -> Tensor:
    """A pool of an image padded by hand. With ceil_mode no window starts past the image and the padding before it."""
    top, left, bottom, right = a["padding"]
    y = pool(F.pad(x, (left, right, top, bottom), value=fill))
    starts = [
        -(-(extent + before) // stride)
        for extent, before, stride in zip(x.shape[-2:], (top, left), a["stride"], strict=True)
    ]
    return y[..., : starts[0], : starts[1]]


def avg_pool2d(a: Attrs, x: Tensor) -> Tensor:
    override, include = a["divisor_override"] or None, a["count_include_pad"]
    if _padded_evenly(a):
        return F.avg_pool2d(x, a["kernel"], a["stride"], a["padding"][:2], a["ceil_mode"], include, override)
    if include or override:
        return _pooled(a, x, lambda y: F.avg_pool2d(y, a["kernel"], a["stride"], 0, a["ceil_mode"], True, override), 0)

    def sums(y: Tensor) -> Tensor:
        return F.avg_pool2d(y, a["kernel"], a["stride"], 0, a["ceil_mode"], True, 1)

    return _pooled(a, x, sums, 0) / _pooled(a, torch.ones_like(x), sums, 0)


def max_pool2d(a: Attrs, x: Tensor) -> Tensor:
    options = a["dilation"], a["ceil_mode"]
    if _padded_evenly(a):
        return F.max_pool2d(x, a["kernel"], a["stride"], a["padding"][:2], *options)
    return _pooled(a, x, lambda y: F.max_pool2d(y, a["kernel"], a["stride"], 0, *options), -torch.inf)


def upsample_nearest(a: Attrs, x: Tensor) -> Tensor:
    """In float32, in which torch computes its indices for every image of a network; only copies are made."""
    size = [s or int(d * f) for d, s, f in zip(x.shape[-2:], a["size"], a["scale"], strict=True)]
    scales = [None if s else f for s, f in zip(a["size"], a["scale"], strict=True)]
    aten = torch.ops.aten
    up = aten._upsample_nearest_exact2d if a["exact"] else aten.upsample_nearest2d
    y: Tensor = up(_image(x).float(), size, *scales)
    return y.double().reshape(*x.shape[:-2], *size)


def upsample_bilinear(a: Attrs, x: Tensor) -> Tensor:
    size = [s or int(d * f) for d, s, f in zip(x.shape[-2:], a["size"], a["scale"], strict=True)]
    scales = [None if s else f for s, f in zip(a["size"], a["scale"], strict=True)]
    y: Tensor = torch.ops.aten.upsample_bilinear2d(_image(x), size, a["align_corners"], *scales)
    return y.reshape(*x.shape[:-2], *size)


def view(a: Attrs, x: Tensor) -> Tensor:
    """0 keeps the dimension at its place from the left, -2 from the right."""
    rank = len(a["shape"])
    return x.reshape([x.shape[i] if d == 0 else x.shape[i - rank] if d == -2 else d for i, d in enumerate(a["shape"])])


def slice(a: Attrs, x: Tensor) -> Tensor:
    return torch.ops.aten.slice(x, a["dim"], a["start"], a["end"], a["step"])  # type: ignore[no-any-return]


def pad(a: Attrs, x: Tensor) -> Tensor:
    pairs = list(zip(a["padding"][::2], a["padding"][1::2], strict=True))
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=a["value"])


def reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, x: function(x, tuple(a["dims"]), keepdim=a["keepdim"])


def rank(a: Attrs, x: Tensor) -> Tensor:
    order = torch.sort(x, dim=a["dim"], descending=a["largest"], stable=True).indices
    return torch.argsort(order, a["dim"]).double()


def ranked(a: Attrs, ranks: Tensor) -> Tensor:
    """The last place of each rank, 0 where none has it."""
    slots = torch.arange(a["count"] or ranks.shape[a["dim"]]).unsqueeze(-1)
    ranks = ranks.movedim(a["dim"], -1).unsqueeze(-2)
    places = torch.where(ranks == slots, torch.arange(ranks.shape[-1]), 0).amax(-1)
    return places.movedim(-1, a["dim"]).double()


def gather(a: Attrs, x: Tensor, places: Tensor) -> Tensor:
    dim = a["dim"]
    inside = places.clamp(0, x.shape[dim] - 1).long()
    shape = [max(n, m) for n, m in zip(x.shape, inside.shape, strict=True)]
    x, inside = (t.expand(*shape[:dim], t.shape[dim], *shape[dim + 1 :]) for t in (x, inside))
    return x.gather(dim, inside)


def recurrent(name: str) -> Callable[..., Tensor]:
    """torch's cell, step by step and row by row: its input is 0, and the projected one its bias, which no product with
    zeros takes NaN or an infinity from one gate to another."""

    def run(a: Attrs, pre: Tensor, weight: Tensor, bias: Tensor, *first: Tensor) -> Tensor:
        cell, time = getattr(torch, f"{name}_cell"), 1 if a["batch_first"] else 0
        nothing, unread = pre.new_zeros(1, 1), pre.new_zeros(len(bias), 1)
        rows, last = [], []
        for row, steps in enumerate(pre.unbind(1 - time)):
            states = [h.expand(pre.shape[1 - time], -1)[row : row + 1] for h in first]
            hidden = []
            for step in steps.flip(0) if a["reverse"] else steps:
                made = cell(nothing, states if name == "lstm" else states[0], unread, weight, step, bias)
                states = list(made) if name == "lstm" else [made]
                hidden.append(states[0])
            last.append(states[-1])
            rows.append(torch.cat(hidden[::-1] if a["reverse"] else hidden))
        if a["result"] == "state":
            return torch.cat(last)
        sequence = torch.stack(rows, 1 - time)
        both = torch.cat([sequence, torch.cat(last).unsqueeze(time)], time)
        return both if a["result"] == "both" else sequence

    return run


def elu(a: Attrs, x: Tensor) -> Tensor:
    return torch.ops.aten.elu(x, a["alpha"], a["scale"], a["input_scale"])  # type: ignore[no-any-return]


def rotary(a: Attrs, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair by itself; a factor has a number for each element, or for each pair."""
    half, dim = x.shape[-1] // 2, -1 if a["pairs"] else -2
    sizes = (half, 2) if a["pairs"] else (2, half)

    def apart(t: Tensor) -> tuple[Tensor, ...]:
        return (t, t) if t.shape[-1] == half else t.reshape(*t.shape[:-1], *sizes).unbind(dim)

    (x0, x1), (c0, c1), (s0, s1) = map(apart, (x, cos, sin))
    return torch.stack([x0 * c0 - x1 * s0, x1 * c1 + x0 * s1], dim).flatten(-2)


def updated(x: Tensor, rows: Tensor, place: Tensor, dim: int, from_end: bool) -> Tensor:
    """The last row that is written to a place; what lies outside is not written."""
    least = -x.shape[dim] if from_end else 0
    last = {int(p) % x.shape[dim]: i for i, p in enumerate(place) if least <= p < x.shape[dim]}
    index = torch.tensor(list(last), dtype=torch.int64)
    return x.index_copy(dim, index, rows.index_select(dim, torch.tensor(list(last.values()), dtype=torch.int64)))


def of_bits(rows: Tensor) -> Tensor:
    """Numbers of 4 bits times the factors before each group's bytes; of a matrix itself."""
    if rows.dim() == 2:
        return rows
    pairs = rows[..., 1:].long() & 255
    numbers = ((torch.stack([pairs & 15, pairs >> 4], -1) + 8) % 16 - 8).flatten(2)
    return (numbers * rows[..., :1]).flatten(1)
