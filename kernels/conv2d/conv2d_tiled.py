"""The fast kernels of q8ta_conv2d and q16ta_conv2d: matrix products for 1x1 windows, implicit matrix products for other
windows, and depthwise strips.

All read and write 4C. The channels of a pixel are contiguous there, and they are the index k of the matrix product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, Kernel, Params, where_loops_are_slow
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MANY_THREADS
from q8ta_wgpu.kernels.product import gemm, gemv, halves, tiled, weighted
from q8ta_wgpu.kernels.product.units import UNITS

OUTPUT = ONLY_4C | FLOAT
LARGEST_UNROLLED = 7
"""Largest kernel extent for which a depthwise strip is unrolled."""

STRIPS = {"dw_4x4": (4, 4), "dw_4x2": (4, 2), "dw_2x1": (2, 1)}
"""(columns, rows) of results that a thread makes, by kernel name."""

SMALL_STRIP, LARGE_STRIP, LARGEST_STRIP = "dw_2x1", "dw_4x2", "dw_4x4"


def _quads(channels: int) -> int:
    return -(-channels // 4)


def sizes(call: Call) -> tuple[int, int, int]:
    """(rows, channels, words along k) of a convolution's matrix product: the numbers of output pixels, of output
    channels, and of words of a window."""
    n, c, h, w = epilogue.extents(call)
    _, depth, kh, kw = call.inputs[1].shape
    return n * h * w, c, kh * kw * _quads(depth)


def _weight_rows(call: Call, weight: Array) -> Array:
    """The weight as a matrix, int8 (outputs, taps x padded input channels)."""
    channels, depth, kh, kw = weight.shape
    taps = weight.transpose(0, 2, 3, 1).reshape(channels, kh * kw, depth)
    return np.pad(taps, ((0, 0), (0, 0), (0, -depth % 4))).reshape(channels, -1)


def _is_pointwise(call: Call) -> bool:
    return call.inputs[1].shape[2:] == (1, 1) and not any(call.attrs["padding"])


def _product_params(call: Call) -> Params:
    x, words = dims(call.inputs[0]), np.uint32(_quads(call.inputs[0].shape[1]))
    if _is_pointwise(call):
        grids = {"row_grid": epilogue.extents(call)[2:], "x_grid": x[2:], "step_grid": call.attrs["stride"]}
        return {"row_words": words, **{name: (*grid, 0, 0) for name, grid in grids.items()}}
    return {"row_words": words, **weighted.window_params(call), **weighted.zero_words(call)}


def _reading(call: Call) -> str:
    """The key of READINGS for a call."""
    vectors = _quads(call.inputs[0].shape[1]) % 4 == 0
    if _is_pointwise(call):
        return "pw" if vectors else "pw, narrow"
    return "window" if vectors else "window, narrow"


READINGS: Mapping[str, tuple[str, tuple[str, ...], bool]] = {
    "pw": ("pw", ("gemm_rows", "vectors_whole"), True),
    "pw, narrow": ("pw", ("gemm_rows", "vectors_of_words"), False),
    "window": ("implicit", ("gemm_window", "window_vectors"), True),
    "window, narrow": ("implicit", ("gemm_window", "window_words"), False),
}
"""The ways to read x: for each (method in the kernel's name, WGSL, whether x is bound as vectors)."""


def _is_narrow(call: Call) -> bool:
    """Whether a vector of a window is loaded word by word."""
    return _reading(call) == "window, narrow"


def _takes(call: Call, label: str, method: str) -> bool:
    able = gemm.NARROW_TILES if _is_narrow(call) else gemm.TILES
    return call.attrs["groups"] == 1 and READINGS[_reading(call)][0] == method and label in able


def _reads(call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
    if _is_pointwise(call):
        found = "rows_in_order" if call.attrs["stride"] == (1, 1) else "rows_with_strides"
    else:
        found = "divisors_of_constants" if _divisors(call, tile) else "divisors_of_params"
    return *READINGS[_reading(call)][1], found, "gemm_pixels", "sums_planes"


def _divisors(call: Call, tile: gemm.AnyTile) -> dict[str, int]:
    """The constants by which the offsets of a window are computed. This is done for matrix units."""
    if tile.body != UNITS or _is_pointwise(call):
        return {}
    return {"PIXEL_WORDS": _quads(call.inputs[0].shape[1]), "KERNEL_WIDTH": call.inputs[1].shape[3]}


def _products(op: str) -> Iterator[Kernel]:
    """Tiled matrix products, for 1x1 windows and for others."""
    for method, among in (("pw", gemm.TILES), ("implicit", gemm.NARROW_TILES)):
        yield from tiled.kernels(
            tiled.Product(
                name=f"{op}.{method}",
                layouts=ONLY_4C,
                sizes=sizes,
                weights=_weight_rows,
                reads=_reads,
                params=_product_params,
                has_vectors=lambda call: READINGS[_reading(call)][2],
                takes=functools.partial(_takes, method=method),
                divisors=_divisors,
                narrow=_is_narrow,
                halves=2 if op == "q16ta_conv2d" else 1,
                among=among,
            )
        )


def _is_vector(call: Call, target: Target) -> bool:
    x = dims(call.inputs[0])
    few = x[0] * halves.of(call) <= FEW_ROWS
    return few and x[2] * x[3] == 1 and _is_pointwise(call) and bool(call.attrs["groups"] == 1)


def _vectors(op: str) -> tuple[Kernel, ...]:
    """The kernels for 1x1 convolutions of images of a single pixel, as in squeeze-and-excite blocks."""
    return gemv.kernels(
        op, ONLY_4C, "sums_planes", sizes, _weight_rows, lambda call: _reading(call) == "pw", _is_vector
    )


def _strips(call: Call, layout: Layout, columns: int, rows: int) -> tuple[int, int, int]:
    n, c, h, w = epilogue.extents(call)
    return n * -(-h // rows) * -(-w // columns) * _quads(c), 1, 1


def _dw_supports(call: Call, target: Target, label: str) -> bool:
    return (
        (label != LARGEST_STRIP or target.unroll)
        and weighted.is_depthwise(call)
        and call.attrs["dilation"] == (1, 1)
        and max(call.inputs[1].shape[2:]) <= LARGEST_UNROLLED
    )


def _best_strip(call: Call, target: Target) -> str:
    """The name of the fastest strip. Where loops are unrolled it is the largest: on lavapipe it takes 0.74 to 0.90 of
    the time of 4x2, with windows of 3x3 to 7x7 and images of 3x3 to 112x112. Where dot products are emulated it is the
    small one: 4x2 takes 112 registers on AMD's GCN, and leaves room for two waves of a SIMD (`python -m bench amd`)."""
    if target.unroll:
        return LARGEST_STRIP
    if not target.packed_dot:
        return SMALL_STRIP
    enough = _strips(call, Layout.PACKED_INT8_4C, *STRIPS[LARGE_STRIP])[0] >= MANY_THREADS
    return LARGE_STRIP if enough or target.few_cores else SMALL_STRIP


def _dw_preferred(call: Call, target: Target, label: str, dot: bool) -> bool:
    return label == _best_strip(call, target) and (dot == target.fast_dot or halves.of(call) == 2)


def _dw_constants(call: Call, columns: int, rows: int) -> dict[str, int]:
    (kernel_y, kernel_x), (stride_y, stride_x) = call.inputs[1].shape[2:], call.attrs["stride"]
    return {
        "COLUMNS": columns,
        "ROWS": rows,
        "KERNEL_Y": kernel_y,
        "KERNEL_X": kernel_x,
        "STRIDE_Y": stride_y,
        "STRIDE_X": stride_x,
    }


def _dw_params(call: Call) -> Params:
    return {
        **epilogue.params(call),
        "padding": tuple(call.attrs["padding"]),
        **weighted.zero_words(call),
        **halves.params(call),
    }


def pack_depthwise(call: Call, weight: Array) -> Array:
    """`Kernel.prepack` of a depthwise weight: words in order (channel quad, tap), a lane for each channel."""
    channels = weight.shape[0]
    padded = np.pad(weight.reshape(channels, -1), ((0, -channels % 4), (0, 0)))
    return np.ascontiguousarray(padded.reshape(-1, 4, padded.shape[1]).transpose(0, 2, 1)).reshape(-1).view("<u4")


def pack_lanes(call: Call, weight: Array) -> Array:
    """`Kernel.prepack` of a depthwise weight: words in order (channel quad, tap, channel in the quad). A word has the
    weight of its channel in that channel's lane, and 0 in the others."""
    lanes = pack_depthwise(call, weight).view(np.int8).reshape(-1, 4)
    return np.ascontiguousarray(lanes[:, None, :] * np.eye(4, dtype=np.int8)).reshape(-1).view("<u4")


def _depthwise_kernels(op: str, dots: Sequence[bool]) -> tuple[Kernel, ...]:
    """Depthwise strips, the largest first, by packed dot products where `dots` has True, and by multiplication where it
    has False. One accumulator is enough for int16, too, since windows are small."""
    return tuple(
        Kernel(
            f"{op}.{label}{'' if dot else '_unpack'}",
            functools.partial(_strip_source, dot=dot),
            (ONLY_4C,),
            OUTPUT,
            supports=functools.partial(_dw_supports, label=label),
            preferred=functools.partial(_dw_preferred, label=label, dot=dot),
            wide=(*weighted.PER_CHANNEL, "weight") if dot else weighted.PER_CHANNEL,
            params=_dw_params,
            constants=functools.partial(_dw_constants, columns=columns, rows=rows),
            prepack={1: pack_lanes if dot else pack_depthwise, **weighted.PAD_CHANNELS},
            threads=functools.partial(_strips, columns=columns, rows=rows),
            unrolled=where_loops_are_slow,
            cost=weighted.cost("shared"),
        )
        for label, (columns, rows) in STRIPS.items()
        for dot in (dots if label != LARGEST_STRIP else (False,))
    )


def _strip_source(call: Call, dot: bool) -> tuple[str, ...]:
    """The WGSL of a strip, with packed dot products or with multiplication."""
    sums = "halves_in_one" if halves.of(call) == 2 else "halves_int8"
    return (
        "q8ta_conv2d_dw_strip",
        *(("dw_dot", "dot") if dot else ("dw_unpack",)),
        "sums_planes",
        *epilogue.source(call),
        sums,
    )


def kernels(op: str) -> tuple[Kernel, ...]:
    """The fast kernels of q8ta_conv2d or q16ta_conv2d, preferred first."""
    dots = (False,) if op == "q16ta_conv2d" else (True, False)
    return *_depthwise_kernels(op, dots), *_vectors(op), *_products(op)
