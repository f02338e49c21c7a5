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

from q8ta_wgpu.ir.graph import Array, Graph, QParams
from tests import torch_functions

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


Function = Callable[..., Tensor]

TORCH: Mapping[str, Function] = {
    # weighted
    "conv2d": torch_functions.conv2d,
    "conv_transpose2d": torch_functions.conv_transpose2d,
    "linear": lambda _, x, weight, bias: F.linear(x, weight, bias),
    "matmul": lambda _, a, b: a @ b,
    # windows
    "avg_pool2d": torch_functions.avg_pool2d,
    "max_pool2d": torch_functions.max_pool2d,
    "adaptive_avg_pool2d": lambda a, x: F.adaptive_avg_pool2d(x, a["output_size"]),
    # reductions and norms
    "mean": torch_functions.reduced(torch.mean),
    "sum": torch_functions.reduced(torch.sum),
    "adaptive_max_pool2d": lambda a, x: F.adaptive_max_pool2d(x, a["output_size"]),
    "argmax": lambda a, x: torch.argmax(x, a["dim"], a["keepdim"]).double(),
    "argmin": lambda a, x: torch.argmin(x, a["dim"], a["keepdim"]).double(),
    "rank": torch_functions.rank,
    "ranked": torch_functions.ranked,
    "amax": torch_functions.reduced(torch.amax),
    "amin": torch_functions.reduced(torch.amin),
    "softmax": lambda a, x: F.softmax(x, a["dim"]),
    "log_softmax": lambda a, x: F.log_softmax(x, a["dim"]),
    "layer_norm": lambda a, x, gamma, beta: F.layer_norm(x, gamma.shape, gamma, beta, a["eps"]),
    "rms_norm": lambda a, x, gamma: F.rms_norm(x, gamma.shape, gamma, a["eps"]),
    "group_norm": lambda a, x, gamma, beta: F.group_norm(x, a["groups"], gamma, beta, a["eps"]),
    "batch_norm": lambda a, x, gamma, beta, mean, var: F.batch_norm(x, mean, var, gamma, beta, eps=a["eps"]),
    **{name: torch_functions.recurrent(name) for name in ("lstm", "gru")},
    # elementwise
    "add": lambda a, x, y: torch.add(x, y, alpha=a["alpha"]),
    "mul": lambda _, x, y: x * y,
    "rotary": torch_functions.rotary,
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
    # torch's own sums 1 and erf, whose last bits far below 0 are those of the processor's instructions
    "gelu": lambda _, x: x * torch.special.erfc(x * -(0.5**0.5)) / 2,
    "gelu_tanh": lambda _, x: F.gelu(x, approximate="tanh"),
    "hardswish": lambda _, x: F.hardswish(x),
    "hardsigmoid": lambda _, x: F.hardsigmoid(x),
    "leaky_relu": lambda a, x: F.leaky_relu(x, a["slope"]),
    "elu": torch_functions.elu,
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
    "update": lambda a, x, rows, place: torch_functions.updated(x, rows, place, **a),
    "repeat": lambda a, x: x.repeat(a["repeats"]),
    "flip": lambda a, x: x.flip(a["dims"]),
    "pad": torch_functions.pad,
    "index_select": lambda a, x, index: x.index_select(a["dim"], index.long()),
    "gather": torch_functions.gather,
    "to_float32": lambda _, x: x,
    "to_int32": lambda _, x: x.nan_to_num(0.0).clamp(-(2.0**31), 2147483520.0).trunc(),
    "embedding": lambda _, rows, scale, place: (torch_functions.of_bits(rows) * scale[:, None])[
        place[:, 0].clamp(0, len(rows) - 1).long()
    ],
    "grid_sample": lambda a, x, grid: F.grid_sample(x, grid, a["mode"], a["padding"], a["align_corners"]),
    "permute": lambda a, x: x.permute(a["dims"]),
    "pixel_shuffle": lambda a, x: F.pixel_shuffle(x, a["upscale_factor"]),
    "pixel_unshuffle": lambda a, x: F.pixel_unshuffle(x, a["downscale_factor"]),
    "channel_shuffle": lambda a, x: F.channel_shuffle(x, a["groups"]),
    "slice": torch_functions.slice,
    "upsample_nearest": torch_functions.upsample_nearest,
    "upsample_bilinear": torch_functions.upsample_bilinear,
    "view": torch_functions.view,
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
