"""gather: elements at indices that are computed at run time, int32 or float32. embedding, index_select and indexing
with one computed index are imported as it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Attr, Case, Op, Operand

LARGEST_INDEX = 1 << 24
"""The largest index in float32, which holds every integer up to it."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, indices, dim = types[0].shape, types[1].shape, attrs["dim"]
    if len(x) != len(indices) or not dim < len(x) <= 4:
        raise GraphError(
            f"gather along dimension {dim} needs two shapes of that and at most 4, found {x} and {indices}"
        )
    if any(n != m and 1 not in (n, m) for i, (n, m) in enumerate(zip(x, indices, strict=True)) if i != dim):
        raise GraphError(f"gather: {x} and {indices} do not broadcast beside dimension {dim}")
    if x[dim] > LARGEST_INDEX:
        raise GraphError(f"indices among {x[dim]} elements are no float32 numbers, at most {LARGEST_INDEX} are")
    pairs = enumerate(zip(x, indices, strict=True))
    return tuple(m if i == dim or n == 1 else n for i, (n, m) in pairs), types[0].dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, indices = arrays
    dim = call.attrs["dim"]
    return np.take_along_axis(x, rows_at(indices, x.shape[dim], call.attrs["from_end"]), dim)


def rows_at(indices: Array, count: int, from_end: bool) -> Array:
    """Indices of rows as kernels read them, int64, from computed ones among `count` rows. Negative integers count from
    the end if `from_end` is set. Then all are clamped to 0..count - 1, and NaN is 0."""
    if indices.dtype.kind == "i" and from_end:
        indices = from_start(indices, count)
    inside: Array = np.clip(np.nan_to_num(indices), 0, count - 1).astype(np.int64)
    return inside


def from_start(indices: Array, count: int) -> Array:
    """Indices among `count` elements, of which negative ones count from the end, as indices from the start."""
    return np.where(indices < 0, indices + count, indices)


def from_end(call: Call, count: int) -> np.uint32:
    """The uniform field that is added to negative indices among `count` rows: `count`, or 0 where they do not count
    from the end."""
    return np.uint32(count if call.attrs["from_end"] else 0)


def _params(call: Call) -> Params:
    dim = call.attrs["dim"]
    return {"axis": np.uint32(dim + 4 - len(call.output.shape)), "from_end": from_end(call, call.inputs[0].shape[dim])}


OPS = (
    Op(
        name="gather",
        operands=(Operand("x", dtypes=NUMBERS), Operand("indices", dtypes=(INT32, FLOAT32))),
        infer=_infer,
        reference=_reference,
        schema={"dim": Attr("int", low=0, high=3), "from_end": Attr("bool")},
        kernels=(
            Kernel(
                "gather",
                lambda call: ("gather", "map", f"index_within=index_{call.inputs[1].dtype}"),
                (FLOAT,),
                FLOAT,
                params=_params,
            ),
        ),
        rows=lambda call: call.inputs[0].shape[call.attrs["dim"]],
        cases=(
            Case(((2, 3, 3, 7), (2, 3, 3, 5)), {"dim": 3, "from_end": True}),
            Case(((2, 5, 7), (1, 11, 1)), {"dim": 1, "from_end": False}),
            Case(((4, 1, 7), (1, 5, 3)), {"dim": 2, "from_end": False}),
            Case(((7,), (13,)), {"dim": 0, "from_end": True}, "ties"),
        ),
    ),
)
