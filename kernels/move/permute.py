"""permute: the dimensions in another order; transpose, t and movedim are imported as it."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, RANGES, Attrs, Call
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import Attr, dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.strided import move, permuted


def _shape(x: Shape, attrs: Attrs) -> Shape:
    dims = list(attrs["dims"])
    if sorted(dims) != list(range(len(x))):
        raise GraphError(f"permute of {x} needs every dimension once, found {dims}")
    return tuple(x[d] for d in dims)


def _transposes(call: Call, target: Target) -> bool:
    """Whether only the last two dimensions of an int8 or int16 tensor are swapped."""
    dims, rank = list(call.attrs["dims"]), len(call.output.shape)
    return call.output.dtype in RANGES and rank >= 2 and dims == [*range(rank - 2), rank - 1, rank - 2]


def _transpose_params(call: Call) -> Params:
    _, _, columns, rows = dims(call.output)
    return {
        "matrices": np.uint32(call.output.numel // (rows * columns)),
        "rows": np.uint32(rows),
        "columns": np.uint32(columns),
        "x_words": np.uint32(-(-columns // 4)),
        "y_words": np.uint32(-(-rows // 4)),
    }


def _transpose_threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    _, _, columns, rows = dims(call.output)
    return call.output.numel // (rows * columns) * -(-rows // 32) * -(-columns // 32) * 64, 1, 1


TRANSPOSED = Kernel(
    "permute.transposed",
    lambda call: ("permute_transposed", f"column_of=column_of_int{8 if call.output.dtype == INT8X4 else 16}"),
    (ONLY_4W,),
    ONLY_4W,
    supports=_transposes,
    params=_transpose_params,
    threads=_transpose_threads,
)


permute = move(
    "permute",
    shape=_shape,
    digits=lambda x, y, attrs: (permuted(x, attrs["dims"]), 0),
    reference=lambda x, y, attrs: x.transpose(attrs["dims"]),
    schema={"dims": Attr("ints", low=0, high=63)},
    cases=(
        ((2, 3, 41, 38), {"dims": (0, 1, 3, 2)}),
        ((2, 5, 3, 7), {"dims": (0, 2, 3, 1)}),
        ((2, 8, 4, 4), {"dims": (3, 1, 0, 2)}),
        ((13, 6), {"dims": (1, 0)}),
        ((3, 6, 2, 5), {"dims": (3, 1, 0, 2)}),
        ((3, 6, 2, 5), {"dims": (1, 2, 0, 3)}),
        ((2, 3, 2, 3, 5), {"dims": (4, 0, 3, 1, 2)}),
        ((2, 5, 3, 16), {"dims": (0, 2, 1, 3)}),
    ),
    kernels=(TRANSPOSED,),
)
