"""The fast kernels of q8ta_conv_transpose2d and q16ta_conv_transpose2d: an implicit matrix product for each phase.

A phase is the set of result pixels whose row and column, plus padding, have the same remainders modulo the stride. Only
some taps reach a phase. So a phase is an ordinary convolution of stride 1 with these taps, and nothing is multiplied by
the gaps between input pixels (sub-pixel convolution, Shi et al. 2016, arXiv:1609.07009). All kernels read and write 4C.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.product import gemm, halves, weighted

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
    """`Kernel.cost` of a kernel of a kind of weighted.MACS_A_BYTE."""
    return lambda call: macs(call) / weighted.MACS_A_BYTE[kind]


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


def sizes(call: Call, tile: gemm.AnyTile | None = None) -> tuple[int, int, int]:
    """(rows, channels, words along k) of the matrix products of all phases, one after another. The rows of each are
    padded to whole tiles."""
    m = tile.m if tile else 1
    phase_rows = -(-epilogue.extents(call)[0] * math.prod(_grid(call)) // m) * m
    return math.prod(call.attrs["stride"]) * phase_rows, epilogue.extents(call)[1], 4 * _vectors(call)


def pad_phases(call: Call, array: Array) -> Array:
    """`Kernel.prepack` of numbers (phases, channels): channels are padded with zeros to a multiple of four."""
    return np.pad(array, ((0, 0), (0, -array.shape[1] % 4)))


def _pack(call: Call, weight: Array, tile: gemm.AnyTile) -> Array:
    """The packed weights of all phases, one after another. k runs over (tap, vector of 16 channels)."""
    channels, depth, *_ = weight.shape
    found = []
    for _, ys, xs in phases(weight.shape, call.attrs):
        reached = weight[:, :, ys][..., xs].transpose(0, 2, 3, 1)
        rows = np.pad(reached, ((0, 0), (0, 0), (0, 0), (0, -depth % 16))).reshape(channels, -1)
        found.append(tile.pack(np.pad(rows, ((0, 0), (0, 16 * _vectors(call) - rows.shape[1])))))
    return np.concatenate(found)


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


def _params(call: Call, tile: gemm.AnyTile) -> Params:
    x = dims(call.inputs[0])
    rows, shortest = sizes(call, tile), tile.at_depth(_vectors(call))
    fields: dict[str, Any] = {
        **gemm.params(tile, rows),
        **epilogue.params(call),
        **phase_params(call),
        "phase_rows": np.uint32(rows[0] // math.prod(call.attrs["stride"])),
        "phase_vectors": np.uint32(shortest.steps(_vectors(call)) * shortest.step * shortest.split),
        "row_words": np.uint32(-(-x[1] // 4)),
        "phase_grid": (*_grid(call), 0, 0),
        **weighted.zero_words(call),
        **halves.params(call),
    }
    return fields


def _supports(call: Call, target: Target, tile: gemm.AnyTile) -> bool:
    few = math.prod(call.attrs["stride"]) <= MOST_PHASES
    return bool(call.attrs["groups"] == 1 and few) and tile.fits(target)


def _has_vectors(call: Call) -> bool:
    """Whether the words of a pixel are a multiple of four."""
    return -(-call.inputs[0].shape[1] // 4) % 4 == 0


def _source(call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
    x_vector = "x_vector=whole_vector" if _has_vectors(call) else "x_vector=vector_of_words"
    return (
        *tile.source,
        "gemm_window_transposed",
        "stride_phases",
        x_vector,
        "sums_planes",
        *halves.source(call),
    )


def _preferred(call: Call, target: Target, label: str) -> bool:
    (rows, channels, words), halves_per_row = sizes(call), halves.of(call)
    residual = gemm.reads_residual_early(call)
    product = (rows * halves_per_row, channels, words)
    return label == gemm.choose(product, target, residual=residual, halves_per_row=halves_per_row)


PAD_CHANNELS = {**weighted.PAD_CHANNELS, 4: pad_phases}
"""`Kernel.prepack` of the per-channel operands; there is a correction for each phase."""


def kernels(op: str, halves_per_row: int) -> Iterator[Kernel]:
    """Tiled matrix products, one for each tile. A row of x is `halves_per_row` rows of int8: 1, or 2 for int16."""
    for label, tile in gemm.tiles(halves_per_row).items():
        yield Kernel(
            f"{op}.implicit_{label}",
            functools.partial(_source, tile=tile),
            (ONLY_4C,),
            ONLY_4C | FLOAT,
            supports=functools.partial(_supports, tile=tile),
            preferred=functools.partial(_preferred, label=label),
            wide=lambda call: (*weighted.PER_CHANNEL, "weight", *(("x",) if _has_vectors(call) else ())),
            params=functools.partial(_params, tile=tile),
            prepack={1: functools.partial(_pack, tile=tile), **PAD_CHANNELS},
            **{**gemm.kernel_fields(tile, functools.partial(sizes, tile=tile)), "cost": cost("tiled")},
        )
