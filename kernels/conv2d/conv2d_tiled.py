"""The fast kernels of q8ta_conv2d and q16ta_conv2d: matrix products for 1x1 windows, implicit matrix products for other
windows, and of q8ta_conv2d alone depthwise strips.

All read and write 4C. The channels of a pixel are contiguous there, and they are the index k of the matrix product.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.op import dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MANY_STRIPS, MANY_THREADS
from q8ta_wgpu.kernels.product import gemm, gemv, general, halves, tiled, weighted
from q8ta_wgpu.kernels.product.units import UNITS

OUTPUT = ONLY_4C | FLOAT
LARGEST_UNROLLED = 7
"""Largest kernel extent for which a depthwise strip is unrolled."""

STRIPS = {"dw_4x4": (4, 4), "dw_4x2": (4, 2), "dw_2x1": (2, 1)}
"""(columns, rows) of results that a thread makes by multiplication, by kernel name."""

TURNED = {"dw_turned_4": 4, "dw_turned_2": 2}
"""Rows of results that a thread makes by packed dot products of four pixels, by kernel name."""

PIXELS = 4
"""Pixels that they multiply at a time."""

LARGEST_STRIP = "dw_4x4"
LARGE_STRIPS = ("dw_4x4", "dw_4x2")
"""Strips that load a row at a time. The others load all rows before the first tap, and are written out for GPUs: 3 to
18 % faster on an H100. 4x2 would take 256 registers instead of 112 by AMD's compiler."""


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


def _strip(call: Call, label: str) -> tuple[int, int]:
    """(columns, rows) of results that a thread makes. A turned strip has the columns that need no more values than one
    column does."""
    if label in STRIPS:
        return STRIPS[label]
    width = call.inputs[1].shape[3]
    return -width % PIXELS // call.attrs["stride"][1] + 1, TURNED[label]


def _strips(call: Call, label: str) -> int:
    """The threads of a call."""
    n, c, h, w = epilogue.extents(call)
    columns, rows = _strip(call, label)
    return int(n * -(-h // rows) * -(-w // columns) * _quads(c))


def _dw_supports(call: Call, target: Target, label: str) -> bool:
    """Emulated dot products of turned values spill 24 to 317 registers on AMD's GCN."""
    return (
        (label != LARGEST_STRIP or target.unroll)
        and (label not in TURNED or target.packed_dot)
        and weighted.is_depthwise(call)
        and call.attrs["dilation"] == (1, 1)
        and max(call.inputs[1].shape[2:]) <= LARGEST_UNROLLED
    )


def _best_strip(call: Call, target: Target) -> str:
    """The name of the fastest strip.

    * Where loops are unrolled it is the largest: on lavapipe it takes 0.74 to 0.90 of the time of 4x2, with windows of
      3x3 to 7x7 and images of 3x3 to 112x112.
    * With fast dot products it is a turned one. 3x3 windows take 0.70 to 1.02 of the time that 4x2 and 2x1 take by dot
      products of a pixel (H100, MobileNetV2 at batch 1 and 32). Windows of which a row does not fit a word are faster
      by multiplication on NVIDIA's GPUs (H100: 5x5 0.74 to 0.95 of the time), but take at least three times the cycles
      on AMD's RDNA 2 (`python -m testbed.radv`).
    * Else it is a small one. Where dot products are emulated 4x2 takes 112 registers on AMD's GCN, and leaves room for
      two waves of a SIMD (`python -m bench amd`).
    """
    if target.unroll:
        return LARGEST_STRIP
    wide = max(call.inputs[1].shape[2:]) > PIXELS
    if target.fast_dot and not (wide and "NVIDIA" in target.name):
        large, small = TURNED
        return large if not wide and _strips(call, large) >= MANY_STRIPS else small
    if target.packed_dot and (target.few_cores or _strips(call, "dw_4x2") >= MANY_THREADS):
        return "dw_4x2"
    return "dw_2x1"


def _dw_constants(call: Call, label: str) -> dict[str, int]:
    (kernel_y, kernel_x), (stride_y, stride_x) = call.inputs[1].shape[2:], call.attrs["stride"]
    columns, rows = _strip(call, label)
    return {
        "COLUMNS": columns,
        "ROWS": rows,
        "KERNEL_Y": kernel_y,
        "KERNEL_X": kernel_x,
        "STRIDE_Y": stride_y,
        "STRIDE_X": stride_x,
        "LOADED": 1 if label in LARGE_STRIPS else (rows - 1) * stride_y + kernel_y,
        # Asking once for a strip is faster on GPUs, and slower on CPUs.
        "EDGES_ONCE": int(label != LARGEST_STRIP),
    }


def _pack_turned(call: Call, weight: Array) -> Array:
    """`Kernel.prepack` of turned strips: words in order (channel quad, row of the window, column of the strip, value,
    channel in the quad), with a lane for each pixel of the value."""
    (channels, _, height, width), step = weight.shape, call.attrs["stride"][1]
    columns, _ = _strip(call, next(iter(TURNED)))
    quads = np.pad(weight[:, 0], ((0, -channels % 4), (0, 0), (0, 0))).reshape(-1, 4, height, width)
    span = (columns - 1) * step + width
    taps = np.zeros((len(quads), height, columns, span + -span % PIXELS, 4), np.int8)
    for i in range(columns):
        taps[:, :, i, i * step : i * step + width] = quads.transpose(0, 2, 3, 1)
    words = taps.reshape(len(quads), height, columns, -1, PIXELS, 4).transpose(0, 1, 2, 3, 5, 4)
    return np.ascontiguousarray(words).reshape(-1).view("<u4")


def _strip_kernel(label: str) -> Kernel:
    """A depthwise strip of int8, by packed dot products of four pixels or by multiplication."""
    turned = label in TURNED
    taps = ("dw_turned", "dot") if turned else ("dw_unpack",)

    def params(call: Call) -> Params:
        padding = {"padding": tuple(call.attrs["padding"])}
        return {**epilogue.params(call), **padding, **weighted.zero_words(call)}

    return Kernel(
        f"q8ta_conv2d.{label}",
        lambda call: ("q8ta_conv2d_dw_strip", *taps, "sums_planes", *epilogue.source(call), "halves_int8"),
        (ONLY_4C,),
        OUTPUT,
        supports=functools.partial(_dw_supports, label=label),
        preferred=lambda call, target: label == _best_strip(call, target),
        wide=(*weighted.PER_CHANNEL, "weight") if turned else weighted.PER_CHANNEL,
        params=params,
        constants=functools.partial(_dw_constants, label=label),
        prepack={1: _pack_turned if turned else general.pack_depthwise, **weighted.PAD_CHANNELS},
        threads=lambda call, layout: (_strips(call, label), 1, 1),
        unrolled=lambda target: target.unroll or (target.shares_memory and label not in LARGE_STRIPS),
        cost=weighted.cost("shared"),
    )


def kernels(op: str) -> tuple[Kernel, ...]:
    """The fast kernels of q8ta_conv2d or q16ta_conv2d, preferred first."""
    strips = (*STRIPS, *TURNED) if op == "q8ta_conv2d" else ()
    return *map(_strip_kernel, strips), *_vectors(op), *_products(op)
