"""The fast kernels of q8ta_conv_transpose2d and q16ta_conv_transpose2d: an implicit matrix product for each phase.

A phase is the set of result pixels whose row and column, plus padding, have the same remainders modulo the stride. Only
some taps reach a phase. So a phase is an ordinary convolution of stride 1 with these taps, and nothing is multiplied by
the gaps between input pixels (sub-pixel convolution, Shi et al. 2016, arXiv:1609.07009). All kernels read and write 4C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib.thresholds import MACS_A_BYTE
from q8ta_wgpu.kernels.product import gemm, tiled, weighted

MOST_PHASES = 64
"""The most phases for a matrix product. With more (vocoders have 1 x 256), each phase has few rows, and weights are
mostly padding."""


def _taps(remainder: int, kernel: int, stride: int, dilation: int) -> list[int]:
    """The taps along an axis that reach a phase."""
    return [k for k in range(kernel) if k * dilation % stride == remainder]


def phases(weight: Shape, attrs: Attrs) -> Iterator[tuple[int, list[int], list[int]]]:
    """Yields (phase, taps along y, taps along x) for each phase of a weight (outputs, depth, height, width). The number
    of a phase is y remainder * stride along x + x remainder."""
    axes = [
        [_taps(rest, weight[2 + i], attrs["stride"][i], attrs["dilation"][i]) for rest in range(attrs["stride"][i])]
        for i in range(2)
    ]
    return ((phase, ys, xs) for phase, (ys, xs) in enumerate((ys, xs) for ys in axes[0] for xs in axes[1]))


def macs(call: Call) -> int:
    """Multiply-accumulates of a call: each input pixel is multiplied by every tap."""
    x, weight = call.inputs[:2]
    return x.numel // x.shape[1] * weight.numel


def cost(kind: str) -> Callable[[Call], float]:
    """`Kernel.cost` of a kernel of a kind of MACS_A_BYTE."""
    return lambda call: macs(call) / MACS_A_BYTE[kind]


def _grid(call: Call) -> tuple[int, int]:
    """Rows and columns of a phase, including those past the result's end."""
    _, _, h, w = epilogue.extents(call)
    return -(-h // call.attrs["stride"][0]), -(-w // call.attrs["stride"][1])


def _vectors(call: Call) -> int:
    """Vectors along k of the phase with the most taps."""
    return most_taps(call) * -(-call.inputs[1].shape[1] // 16)


def most_taps(call: Call) -> int:
    """Taps of the phase with the most taps."""
    return math.prod(-(-k // step) for k, step in zip(call.inputs[1].shape[2:], _steps(call), strict=True))


def work(call: Call) -> int:
    """`Op.work`, by the most taps that a result has."""
    return call.output.numel * call.inputs[1].shape[1] * most_taps(call)


def _steps(call: Call) -> list[int]:
    """Distances of a phase's taps along y and x."""
    return [s // math.gcd(s, d) for s, d in zip(call.attrs["stride"], call.attrs["dilation"], strict=True)]


def _sizes(call: Call) -> tuple[int, int, int]:
    """(rows, channels, words along k) of the matrix products of all phases, one after another."""
    phase_rows = epilogue.extents(call)[0] * math.prod(_grid(call))
    return _phases(call) * phase_rows, epilogue.extents(call)[1], 4 * _vectors(call)


def _phases(call: Call) -> int:
    return math.prod(call.attrs["stride"])


def _weights(call: Call, weight: Array) -> Array:
    """The weights of every phase, int8 (phases, channels, bytes along k). k runs over (tap, vector of 16 channels)."""
    channels, depth, *_ = weight.shape
    found = np.zeros((_phases(call), channels, 16 * _vectors(call)), np.int8)
    for phase, ys, xs in phases(weight.shape, call.attrs):
        reached = weight[:, :, ys][..., xs].transpose(0, 2, 3, 1)
        rows = np.pad(reached, ((0, 0), (0, 0), (0, 0), (0, -depth % 16))).reshape(channels, -1)
        found[phase, :, : rows.shape[1]] = rows
    return found


def phase_params(call: Call) -> Params:
    """The uniform fields that kernels/transposed/stride_phases.wgsl reads."""
    attrs, steps = call.attrs, _steps(call)
    divisor = [math.gcd(s, d) for s, d in zip(attrs["stride"], attrs["dilation"], strict=True)]
    reach = [d // g for d, g in zip(attrs["dilation"], divisor, strict=True)]
    return {
        **weighted.window_params(call),
        "divisor": (*divisor, 0, 0),
        "step": (*steps, 0, 0),
        "reach": (*reach, 0, 0),
        # Tap k reaches phase k * dilation % stride, so phase r starts with tap r / divisor * inverse % step.
        "inverse": (*(pow(r, -1, step) for r, step in zip(reach, steps, strict=True)), 0, 0),
    }


def _params(call: Call) -> Params:
    words = np.uint32(-(-dims(call.inputs[0])[1] // 4))
    grid = (*_grid(call), 0, 0)
    return {**phase_params(call), **weighted.zero_words(call), "row_words": words, "phase_grid": grid}


def _has_vectors(call: Call) -> bool:
    """Whether the words of a pixel are a multiple of four."""
    return -(-call.inputs[0].shape[1] // 4) % 4 == 0


def _reads(call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
    vectors = "vectors_whole" if _has_vectors(call) else "vectors_of_words"
    return "gemm_window_transposed", "stride_phases", vectors, "sums_planes"


def kernels(op: str, halves_per_row: int) -> tuple[Kernel, ...]:
    """Tiled matrix products, one for each tile. A row of x is `halves_per_row` rows of int8: 1, or 2 for int16."""
    return tiled.kernels(
        tiled.Product(
            name=f"{op}.implicit",
            layouts=ONLY_4C,
            sizes=_sizes,
            weights=_weights,
            reads=_reads,
            params=_params,
            has_vectors=_has_vectors,
            takes=lambda call, label: call.attrs["groups"] == 1 and _phases(call) <= MOST_PHASES,
            phases=_phases,
            halves=halves_per_row,
            cost=cost("tiled"),
        )
    )
