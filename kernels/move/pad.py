"""pad: a constant before and after each dimension. In int8 it is the constant, quantized like the tensor.

Padding with the tensor's own elements is imported as a cat with slices of it, which are flipped or repeated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import FLOAT_MAX, MAX_EXTENT, MOVED, Attr, Case, Op, Operand, number, one_dtype
from q8ta_wgpu.kernels.move.strided import eight

MAX_RANK = 8


def _pairs(attrs: Attrs) -> list[tuple[int, int]]:
    padding = attrs["padding"]
    return list(zip(padding[::2], padding[1::2], strict=True))


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, padding = types[0].shape, list(attrs["padding"])
    if len(padding) != 2 * len(x) or len(x) > MAX_RANK:
        raise GraphError(f"pad of {x} needs two numbers for each of at most {MAX_RANK} dimensions, found {padding}")
    shape = tuple(d + before + after for d, (before, after) in zip(x, _pairs(attrs), strict=True))
    if any(d + min(ends) < 0 or new < 1 for d, new, ends in zip(x, shape, _pairs(attrs), strict=True)):
        raise GraphError(f"pad of {x} by {padding} cuts more than there is")
    return shape, one_dtype(types, {"value": attrs["value"]})


def _fill(t: TensorType, value: float) -> np.float32 | np.int32:
    if t.dtype == INT32:
        return number(value, INT32)
    if (q := t.q) is None:
        return np.float32(value if abs(value) < FLOAT_MAX else np.copysign(np.inf, value))
    return np.int32(arithmetic.quantize(np.array([value], np.float32), q, *q.range)[0])


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    fill = _fill(call.inputs[0], call.attrs["value"])
    result = np.full(call.output.shape, fill, arrays[0].dtype)
    source, target = [], []
    for extent, (before, after) in zip(arrays[0].shape, _pairs(call.attrs), strict=True):
        source.append(slice(max(-before, 0), extent - max(-after, 0)))
        target.append(slice(max(before, 0), max(before, 0) + source[-1].stop - source[-1].start))
    result[tuple(target)] = arrays[0][tuple(source)]
    return result


def _params(call: Call) -> Params:
    before = [pair[0] for pair in _pairs(call.attrs)]
    return {
        **eight("size", call.output.shape[::-1]),
        **eight("extent", call.inputs[0].shape[::-1]),
        **eight("before", before[::-1]),
        "digits": np.uint32(len(before)),
        "fill": _fill(call.inputs[0], call.attrs["value"]),
    }


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    if len(call.output.shape) != 4:
        return None
    before = _pairs(call.attrs)[axis][0]
    return first - before, last - before


OPS = (
    Op(
        name="pad",
        operands=(Operand("x", dtypes=MOVED),),
        infer=_infer,
        reference=_reference,
        schema={
            "padding": Attr("ints", low=-MAX_EXTENT, high=MAX_EXTENT),
            "value": Attr("float", low=-FLOAT_MAX, high=FLOAT_MAX),
        },
        kernels=(Kernel("pad", ("pad", "map"), (ANY,), ANY, params=_params),),
        int8=Moves(fill=lambda attrs: float(attrs["value"])),
        reads=_reads,
        cases=(
            Case(((2, 5, 3, 7),), {"padding": (0, 0, 0, 0, 1, 2, 3, 1), "value": 0.0}),
            Case(((2, 5, 3, 7),), {"padding": (0, 1, 2, 1, 0, 0, 0, 0), "value": 0.7}),
            Case(((1, 5, 6, 7),), {"padding": (0, 0, -1, 2, 1, -2, -3, 4), "value": -100.0}),
            Case(((13,),), {"padding": (3, 2), "value": 0.25}),
            Case(((2, 16, 3, 5),), {"padding": (0, 0, 0, 0, 1, 2, -1, 3), "value": 0.6}),
            Case(((2, 3, 2, 3, 5),), {"padding": (1, 0, 0, 1, 2, 0, 0, 0, 0, 3), "value": 0.0}),
        ),
    ),
)
