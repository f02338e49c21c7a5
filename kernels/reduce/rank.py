"""rank and ranked: sorting along a dimension, in two steps that any number of threads can share.

rank gives the position of each element in the sorted order. ranked gives the indices of the elements in this order.
Both are int32. topk and sort are imported as rank, ranked and gather.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Names, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Attr, Case, Op, Operand, extent
from q8ta_wgpu.kernels.lib import share


def ordered(*source: str) -> Names:
    """`Kernel.source` of a kernel that compares elements of its operand, floats or integers: `Ordered` is their
    type."""
    return lambda call: (*source, f"Ordered={'i32' if call.inputs[0].dtype == INT32 else 'f32'}")


def check_dim(shape: Shape, dim: int) -> None:
    """Raises GraphError for a dimension along which kernels cannot compute indices: one that does not exist, that is
    folded into another one, or that has more elements than float32 has integers."""
    if not max(len(shape) - 4, 0) <= dim < len(shape) or (len(shape) > 4 and dim == len(shape) - 4):
        raise GraphError(
            f"indices along dimension {dim} of {shape}: it must be there, and one of the last three of five"
        )
    if shape[dim] > 1 << 24:
        raise GraphError(f"indices among {shape[dim]} elements are no float32 numbers, at most {1 << 24} are")


def _infer_rank(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    check_dim(types[0].shape, attrs["dim"])
    return types[0].shape, INT32


def _infer_ranked(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, dim = types[0].shape, attrs["dim"]
    check_dim(shape, dim)
    if attrs["count"] > shape[dim]:
        raise GraphError(f"the first {attrs['count']} along dimension {dim} of {shape}: there are only {shape[dim]}")
    return (*shape[:dim], attrs["count"] or shape[dim], *shape[dim + 1 :]), INT32


def _order(x: Array, dim: int, largest: bool) -> Array:
    """The indices of the elements in sorted order. The sort is stable, and NaN is the largest, as in numpy."""
    if not largest:
        return np.argsort(x, dim, kind="stable")
    return np.asarray(x.shape[dim] - 1 - np.flip(np.argsort(np.flip(x, dim), dim, kind="stable"), dim))


def _reference_rank(call: Call, arrays: Sequence[Array]) -> Array:
    order = _order(arrays[0], call.attrs["dim"], call.attrs["largest"])
    return np.argsort(order, call.attrs["dim"]).astype(np.int32)


def _reference_ranked(call: Call, arrays: Sequence[Array]) -> Array:
    dim = call.attrs["dim"]
    ranks, count = np.moveaxis(arrays[0], dim, -1), call.output.shape[dim]
    slots = np.where((ranks >= 0) & (ranks < count), ranks, count).astype(np.int64)
    found = np.zeros((*ranks.shape[:-1], count + 1), np.int32)
    for index in range(ranks.shape[-1]):
        np.put_along_axis(found, slots[..., index : index + 1], index, -1)
    return np.moveaxis(found[..., :count], -1, dim)


def _params(call: Call) -> Params:
    return {"axis": np.uint32(call.attrs["dim"] + 4 - len(call.output.shape))}


def _extents(call: Call) -> share.Extents:
    return (call.inputs[0].shape[call.attrs["dim"]],)


def _work(call: Call) -> int:
    return math.prod(call.output.shape) * call.inputs[0].shape[call.attrs["dim"]]


OPS = (
    Op(
        name="rank",
        operands=(Operand("x", dtypes=NUMBERS),),
        infer=_infer_rank,
        reference=_reference_rank,
        schema={"dim": Attr("int", low=0, high=63), "largest": Attr("bool")},
        kernels=share.kernels(
            Kernel(
                "rank",
                ordered("rank", "map"),
                (FLOAT,),
                FLOAT,
                params=_params,
                constants=lambda call: {"LARGEST": int(call.attrs["largest"])},
            ),
            _extents,
        ),
        cases=(
            Case(((2, 11, 3, 7),), {"dim": 1, "largest": True}),
            Case(((3, 257),), {"dim": 1, "largest": False}, "ties"),
            Case(((65,),), {"dim": 0, "largest": True}, "ties"),
        ),
        work=_work,
    ),
    Op(
        name="ranked",
        operands=(Operand("rank", dtypes=(INT32,)),),
        infer=_infer_ranked,
        reference=_reference_ranked,
        schema={"dim": Attr("int", low=0, high=63), "count": extent(0)},
        kernels=share.kernels(Kernel("ranked", ("ranked", "map"), (FLOAT,), FLOAT, params=_params), _extents),
        cases=(
            Case(((2, 11, 3, 7),), {"dim": 1, "count": 4}, "ties"),
            Case(((3, 257),), {"dim": 1, "count": 0}, "ties"),
        ),
        work=_work,
    ),
)
