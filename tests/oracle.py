"""What torch computes, in float64, for the operators of our graphs: an oracle that shares nothing with our reference.

`TORCH` maps an operator's name to a function of its attributes and operands. `run` evaluates a graph whose operators
are not yet fused, so that an int8 operator is judged by what it stands for: dequantize -> float operator -> quantize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from q8ta_wgpu.ir.graph import Array, Attrs, Graph, QParams

TIE = 2.0**-10
"""In steps: an int8 operator rounds what is farther than this from a tie as exact arithmetic would (its multipliers are
rounded to float32 or to integers, its sums are exact)."""

JOINED = 2.0**-7
"""The same for an addend that joins a sum before rounding, whose multiplier has 14 fraction bits."""

BENT = 2.0**-9
"""The same for an activation that joins: a curve has chords."""

CARRIED = 2.0**-4
"""The same for recurrent layers, whose fixed-point numbers go from step to step."""

WIDE = 2.0**-6
"""The same for sums with int16: a float32 product of 2^16 steps has 8 fraction bits."""


def _image(x: Tensor) -> Tensor:
    """A batch of images: torch's pools and unfold take no other ranks with every option."""
    return x if x.dim() == 4 else x[None]


def _conv2d(a: Attrs, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    top, left, bottom, right = a["padding"]
    return F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, a["stride"], 0, a["dilation"], a["groups"])


def _conv_transpose2d(a: Attrs, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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


def _avg_pool2d(a: Attrs, x: Tensor) -> Tensor:
    override, include = a["divisor_override"] or None, a["count_include_pad"]
    if _padded_evenly(a):
        return F.avg_pool2d(x, a["kernel"], a["stride"], a["padding"][:2], a["ceil_mode"], include, override)
    if include or override:
        return _pooled(a, x, lambda y: F.avg_pool2d(y, a["kernel"], a["stride"], 0, a["ceil_mode"], True, override), 0)

    def sums(y: Tensor) -> Tensor:
        return F.avg_pool2d(y, a["kernel"], a["stride"], 0, a["ceil_mode"], True, 1)

    return _pooled(a, x, sums, 0) / _pooled(a, torch.ones_like(x), sums, 0)


def _max_pool2d(a: Attrs, x: Tensor) -> Tensor:
    options = a["dilation"], a["ceil_mode"]
    if _padded_evenly(a):
        return F.max_pool2d(x, a["kernel"], a["stride"], a["padding"][:2], *options)
    return _pooled(a, x, lambda y: F.max_pool2d(y, a["kernel"], a["stride"], 0, *options), -torch.inf)


def _upsample_nearest(a: Attrs, x: Tensor) -> Tensor:
    """In float32, in which torch computes its indices for every image of a network; only copies are made."""
    size = [s or int(d * f) for d, s, f in zip(x.shape[-2:], a["size"], a["scale"], strict=True)]
    scales = [None if s else f for s, f in zip(a["size"], a["scale"], strict=True)]
    aten = torch.ops.aten
    up = aten._upsample_nearest_exact2d if a["exact"] else aten.upsample_nearest2d
    y: Tensor = up(_image(x).float(), size, *scales)
    return y.double().reshape(*x.shape[:-2], *size)


def _upsample_bilinear(a: Attrs, x: Tensor) -> Tensor:
    size = [s or int(d * f) for d, s, f in zip(x.shape[-2:], a["size"], a["scale"], strict=True)]
    scales = [None if s else f for s, f in zip(a["size"], a["scale"], strict=True)]
    y: Tensor = torch.ops.aten.upsample_bilinear2d(_image(x), size, a["align_corners"], *scales)
    return y.reshape(*x.shape[:-2], *size)


def _view(a: Attrs, x: Tensor) -> Tensor:
    """0 keeps the dimension at its place from the left, -2 from the right."""
    rank = len(a["shape"])
    return x.reshape([x.shape[i] if d == 0 else x.shape[i - rank] if d == -2 else d for i, d in enumerate(a["shape"])])


def _slice(a: Attrs, x: Tensor) -> Tensor:
    return torch.ops.aten.slice(x, a["dim"], a["start"], a["end"], a["step"])  # type: ignore[no-any-return]


def _pad(a: Attrs, x: Tensor) -> Tensor:
    pairs = list(zip(a["padding"][::2], a["padding"][1::2], strict=True))
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=a["value"])


def _reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda a, x: function(x, tuple(a["dims"]), keepdim=a["keepdim"])


def _rank(a: Attrs, x: Tensor) -> Tensor:
    order = torch.sort(x, dim=a["dim"], descending=a["largest"], stable=True).indices
    return torch.argsort(order, a["dim"]).double()


def _ranked(a: Attrs, ranks: Tensor) -> Tensor:
    """The last place of each rank, 0 where none has it."""
    slots = torch.arange(a["count"] or ranks.shape[a["dim"]]).unsqueeze(-1)
    ranks = ranks.movedim(a["dim"], -1).unsqueeze(-2)
    places = torch.where(ranks == slots, torch.arange(ranks.shape[-1]), 0).amax(-1)
    return places.movedim(-1, a["dim"]).double()


def _gather(a: Attrs, x: Tensor, places: Tensor) -> Tensor:
    dim = a["dim"]
    inside = places.clamp(0, x.shape[dim] - 1).long()
    shape = [max(n, m) for n, m in zip(x.shape, inside.shape, strict=True)]
    x, inside = (t.expand(*shape[:dim], t.shape[dim], *shape[dim + 1 :]) for t in (x, inside))
    return x.gather(dim, inside)


def _recurrent(name: str) -> Callable[..., Tensor]:
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
        return torch.cat(last) if a["result"] == "state" else torch.stack(rows, 1 - time)

    return run


def _elu(a: Attrs, x: Tensor) -> Tensor:
    return torch.ops.aten.elu(x, a["alpha"], a["scale"], a["input_scale"])  # type: ignore[no-any-return]


def _rotary(a: Attrs, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair by itself; a factor has a number for each element, or for each pair."""
    half, dim = x.shape[-1] // 2, -1 if a["pairs"] else -2
    sizes = (half, 2) if a["pairs"] else (2, half)

    def apart(t: Tensor) -> tuple[Tensor, ...]:
        return (t, t) if t.shape[-1] == half else t.reshape(*t.shape[:-1], *sizes).unbind(dim)

    (x0, x1), (c0, c1), (s0, s1) = map(apart, (x, cos, sin))
    return torch.stack([x0 * c0 - x1 * s0, x1 * c1 + x0 * s1], dim).flatten(-2)


Function = Callable[..., Tensor]


def _updated(x: Tensor, rows: Tensor, place: Tensor, dim: int, from_end: bool) -> Tensor:
    """The last row that is written to a place; what lies outside is not written."""
    least = -x.shape[dim] if from_end else 0
    last = {int(p) % x.shape[dim]: i for i, p in enumerate(place) if least <= p < x.shape[dim]}
    index = torch.tensor(list(last), dtype=torch.int64)
    return x.index_copy(dim, index, rows.index_select(dim, torch.tensor(list(last.values()), dtype=torch.int64)))


def _of_bits(rows: Tensor) -> Tensor:
    """Numbers of 4 bits times the factors before each group's bytes; of a matrix itself."""
    if rows.dim() == 2:
        return rows
    pairs = rows[..., 1:].long() & 255
    numbers = ((torch.stack([pairs & 15, pairs >> 4], -1) + 8) % 16 - 8).flatten(2)
    return (numbers * rows[..., :1]).flatten(1)


TORCH: Mapping[str, Function] = {
    # weighted
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "linear": lambda _, x, weight, bias: F.linear(x, weight, bias),
    "matmul": lambda _, a, b: a @ b,
    # windows
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": _max_pool2d,
    "adaptive_avg_pool2d": lambda a, x: F.adaptive_avg_pool2d(x, a["output_size"]),
    # reductions and norms
    "mean": _reduced(torch.mean),
    "sum": _reduced(torch.sum),
    "adaptive_max_pool2d": lambda a, x: F.adaptive_max_pool2d(x, a["output_size"]),
    "argmax": lambda a, x: torch.argmax(x, a["dim"], a["keepdim"]).double(),
    "argmin": lambda a, x: torch.argmin(x, a["dim"], a["keepdim"]).double(),
    "rank": _rank,
    "ranked": _ranked,
    "amax": _reduced(torch.amax),
    "amin": _reduced(torch.amin),
    "softmax": lambda a, x: F.softmax(x, a["dim"]),
    "log_softmax": lambda a, x: F.log_softmax(x, a["dim"]),
    "layer_norm": lambda a, x, gamma, beta: F.layer_norm(x, gamma.shape, gamma, beta, a["eps"]),
    "rms_norm": lambda a, x, gamma: F.rms_norm(x, gamma.shape, gamma, a["eps"]),
    "group_norm": lambda a, x, gamma, beta: F.group_norm(x, a["groups"], gamma, beta, a["eps"]),
    "batch_norm": lambda a, x, gamma, beta, mean, var: F.batch_norm(x, mean, var, gamma, beta, eps=a["eps"]),
    **{name: _recurrent(name) for name in ("lstm", "gru")},
    # elementwise
    "add": lambda a, x, y: torch.add(x, y, alpha=a["alpha"]),
    "mul": lambda _, x, y: x * y,
    "rotary": _rotary,
    "div": lambda _, x, y: x / y,
    "pow_tensors": lambda _, x, y: torch.pow(x, y),
    "hypot": lambda _, x, y: torch.hypot(x, y),
    "atan2_tensors": lambda _, x, y: torch.atan2(x, y),
    "maximum": lambda _, x, y: torch.maximum(x, y),
    "minimum": lambda _, x, y: torch.minimum(x, y),
    "unfold": lambda a, x: x.unfold(a["dim"], a["size"], a["step"]),
    "prelu": lambda _, x, slope: F.prelu(x, slope),
    "relu": lambda _, x: F.relu(x),
    "clamp": lambda a, x: torch.clamp(x, a["min"], a["max"]),
    "sigmoid": lambda _, x: torch.sigmoid(x),
    "tanh": lambda _, x: torch.tanh(x),
    "silu": lambda _, x: F.silu(x),
    "gelu": lambda _, x: F.gelu(x),
    "gelu_tanh": lambda _, x: F.gelu(x, approximate="tanh"),
    "hardswish": lambda _, x: F.hardswish(x),
    "hardsigmoid": lambda _, x: F.hardsigmoid(x),
    "leaky_relu": lambda a, x: F.leaky_relu(x, a["slope"]),
    "elu": _elu,
    "softplus": lambda a, x: F.softplus(x, a["beta"], a["threshold"]),
    "mish": lambda _, x: F.mish(x),
    "softsign": lambda _, x: F.softsign(x),
    "quick_gelu": lambda _, x: x * torch.sigmoid(1.702 * x),
    "exp": lambda _, x: torch.exp(x),
    "log": lambda _, x: torch.log(x),
    "sqrt": lambda _, x: torch.sqrt(x),
    "rsqrt": lambda _, x: torch.rsqrt(x),
    "reciprocal": lambda _, x: torch.reciprocal(x),
    "abs": lambda _, x: torch.abs(x),
    "pow": lambda a, x: torch.pow(x, a["exponent"]),
    "affine": lambda a, x: x * a["factor"] + a["term"],
    "divide": lambda a, x: x / a["divisor"],
    **{
        name: lambda _, x, name=name: getattr(torch, name)(x)
        for name in ("sin", "cos", "erf", "floor", "round", "sign", "ceil", "trunc", "log1p", "expm1", "tan", "atan")
    },
    **{
        name: lambda _, x, name=name: getattr(torch, name)(x)
        for name in ("asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc")
    },
    **{name: lambda _, x, name=name: getattr(torch, name)(x).double() for name in ("isnan", "isinf")},
    **{name: lambda a, x, name=name: getattr(torch, name)(x, a["divisor"]) for name in ("remainder", "fmod")},
    "cumsum": lambda a, x: x.cumsum(a["dim"]),
    "cumprod": lambda a, x: x.cumprod(a["dim"]),
    "cummax": lambda a, x: x.cummax(a["dim"])[0],
    "cummin": lambda a, x: x.cummin(a["dim"])[0],
    "floor_divide": lambda a, x: torch.div(x, a["divisor"], rounding_mode="floor"),
    "trunc_divide": lambda a, x: torch.div(x, a["divisor"], rounding_mode="trunc"),
    "floor_divide_tensors": lambda _, x, y: torch.div(x, y, rounding_mode="floor"),
    "remainder_tensors": lambda _, x, y: torch.remainder(x, y),
    **{
        f"{name}_scalar": lambda a, x, name=name: getattr(torch, name)(x, a["number"]).double()
        for name in ("gt", "ge", "lt", "le", "eq", "ne")
    },
    **{name: lambda _, x, y, name=name: getattr(torch, name)(x, y).double() for name in ("gt", "ge", "eq", "ne")},
    **{
        name: lambda _, x, y, operator=operator: operator(x.long(), y.long()).double()
        for name, operator in (
            ("bitwise_and", torch.bitwise_and),
            ("bitwise_or", torch.bitwise_or),
            ("bitwise_xor", torch.bitwise_xor),
            ("shift_left", lambda x, y: (x << y.clamp(0, 31)).int()),
            ("shift_right", lambda x, y: x >> y.clamp(0, 31)),
        )
    },
    "where": lambda _, condition, x, y: torch.where(condition != 0, x, y),
    # moves
    "cat": lambda a, *xs: torch.cat(xs, a["dim"]),
    "expand": lambda a, x: x.expand(a["shape"]),
    "expand_batch": lambda a, x: x.expand(a["size"], *x.shape[1:]),
    "store": lambda _, x: x.clone(),
    "update": lambda a, x, rows, place: _updated(x, rows, place, **a),
    "repeat": lambda a, x: x.repeat(a["repeats"]),
    "flip": lambda a, x: x.flip(a["dims"]),
    "pad": _pad,
    "index_select": lambda a, x, index: x.index_select(a["dim"], index.long()),
    "gather": _gather,
    "to_float32": lambda _, x: x,
    "to_int32": lambda _, x: x.nan_to_num(0.0).clamp(-(2.0**31), 2147483520.0).trunc(),
    "embedding": lambda _, rows, scale, place: (_of_bits(rows) * scale[:, None])[
        place[:, 0].clamp(0, len(rows) - 1).long()
    ],
    "grid_sample": lambda a, x, grid: F.grid_sample(x, grid, a["mode"], a["padding"], a["align_corners"]),
    "permute": lambda a, x: x.permute(a["dims"]),
    "pixel_shuffle": lambda a, x: F.pixel_shuffle(x, a["upscale_factor"]),
    "pixel_unshuffle": lambda a, x: F.pixel_unshuffle(x, a["downscale_factor"]),
    "channel_shuffle": lambda a, x: F.channel_shuffle(x, a["groups"]),
    "slice": _slice,
    "upsample_nearest": _upsample_nearest,
    "upsample_bilinear": _upsample_bilinear,
    "view": _view,
    "q8ta_clone": lambda _, x: x.clone(),
}
"""Operator -> f(attrs, *operands) in torch; every tensor is float64."""

BORDER = ("quantize", "dequantize", "dequantize_weight")
"""Between real and stored numbers: `run` computes them as torch's documentation defines them."""


def quantized(real: Tensor, q: QParams, lo: int, hi: int, tie: float) -> tuple[Tensor, Tensor]:
    """Real numbers as steps, rounded half to even and clamped to [lo, hi], and which are nearer to a tie than `tie`.

    A NaN is the zero point.
    """
    exact = torch.nan_to_num(real / q.scale, nan=0.0, posinf=1e9, neginf=-1e9)
    near = ((exact - exact.floor() - 0.5).abs() <= tie) & (exact + q.zero > lo - 1) & (exact + q.zero < hi + 1)
    return (torch.round(exact) + q.zero).clamp(lo, hi), near


def run(graph: Graph, inputs: Mapping[str, Array], tie: float = TIE) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every value of a graph of `TORCH`'s and `BORDER`'s operators in float64 (stored numbers are steps), and for those
    behind a quantize which elements some rounding on the way decided near a tie."""
    arrays = {**graph.constants, **inputs}
    values = {name: torch.from_numpy(np.array(array, np.float64)) for name, array in arrays.items()}
    near: dict[str, Tensor] = {}
    for node in graph.nodes:
        operands = [values[name] for name in node.inputs]
        doubts = [near[name] for name in node.inputs if name in near]
        match node.op:
            case "quantize":
                q = _steps(graph, node.output)
                y, doubt = quantized(operands[0], q, node.attrs["lo"], node.attrs["hi"], tie)
                doubts.append(doubt)
            case "dequantize":
                q = _steps(graph, node.inputs[0])
                y = (operands[0] - q.zero) * q.scale
            case "dequantize_weight":
                axis = [-1 if i == node.attrs["axis"] else 1 for i in range(operands[0].dim())]
                y = (operands[0] - operands[2].reshape(axis)) * operands[1].reshape(axis)
            case _:
                y = TORCH[node.op](node.attrs, *operands)
                doubts = [d if d.shape == y.shape else TORCH[node.op](node.attrs, d.double()) > 0 for d in doubts]
        values[node.output] = y
        if doubts:
            near[node.output] = torch.stack(doubts).any(0)
    return values, near


def _steps(graph: Graph, name: str) -> QParams:
    q = graph.types[name].q
    assert q is not None
    return q
