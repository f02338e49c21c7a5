"""softmax and log_softmax over one dimension in float32, and softmax in int8."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASK, Int8Form, NoInt8Form, QuantizedCall, Rowwise
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import RANGE, Attr, Case, Op, Operand, reads_beside_dim
from q8ta_wgpu.kernels.lib import mask, rows
from q8ta_wgpu.kernels.norm import softmax_int16


def _params(call: Call, item: int) -> Params:
    return {"inner": np.uint32(rows.along(call).inner)}


def _softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True)).astype(np.float32)


def _log_softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(np.float32)


# --- int8 ---

MOST_BITS, FEWEST_BITS = 22, 10
"""Bounds of the fraction bits of a power: more bits change no result, and fewer are too coarse for a softmax."""


def powers(scale: float, out: float, length: int) -> Array | None:
    """The tables of an int8 softmax.

    Args:
        scale: of the operand.
        out: scale of the result.
        length: elements of a row.

    Returns:
        int32 (2, 256): for each distance d of an element from the row's largest, exp(-d * scale) and
        exp(-d * scale) / out, in 2^-F. F is such that `length` powers sum to at most 2^31, and that entries of the
        second table are at most 2^30. None where F would be less than FEWEST_BITS.
    """
    room = 30 - max(math.ceil(math.log2(length)) - 1, math.ceil(math.log2(1 / out)))
    bits = min(MOST_BITS, room)
    if bits < FEWEST_BITS:
        return None
    real = np.exp(-np.arange(256, dtype=np.float64) * scale)
    return np.rint(np.stack((real, real / out)) * 2.0**bits).astype(np.int32)


def _lower(call: QuantizedCall) -> Int8Form:
    x, y, shape, dim = call.quantized(), call.result, call.inputs[0].shape, call.attrs["dim"]
    if INT16X4 in (x.dtype, y.dtype):
        return softmax_int16.lower(call)
    if text := rows.too_long(shape, dim):
        raise NoInt8Form(text)
    tables = powers(x.scale, y.scale, shape[dim])
    if tables is None:
        found = f"the scale {y.scale:.3g} of its result and its {shape[dim]} elements"
        raise NoInt8Form(f"{found} are too far apart for int32")
    attrs = {"dim": dim, "even": call.even, "lo": call.lo, "hi": call.hi}
    return Int8Form("q8ta_softmax", (0, tables, MASK) if call.masked else (0, tables), attrs)


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = rows.infer(types, attrs)
    if text := rows.too_long(shape, attrs["dim"]):
        raise GraphError(f"softmax: {text}")
    if types[1].shape != (2, 256):
        raise GraphError(f"softmax has 2 tables of 256 entries, found shape {types[1].shape}")
    for t in types[2:]:
        mask.check_mask("a softmax", t, shape)
    return shape, INT8X4


def _valid_powers(call: Call, arrays: Sequence[Array | None]) -> str:
    powers, length = arrays[1], call.inputs[0].shape[call.attrs["dim"]]
    assert powers is not None
    if powers.min() < 0 or powers[0, 0] < 1 or powers[1].max() > 1 << 30:
        return "must be 0 to 2^30, and more than 0 at the largest element"
    largest = int(powers[0].max()) * length
    return f"could add up to {largest}, past 2^31" if largest > 1 << 31 else ""


def _softmax_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x, powers, axis = arrays[0].astype(np.int64), arrays[1].astype(np.int64), call.attrs["dim"]
    unmasked = mask.spread(arrays[2] != 0, x.shape) if len(arrays) > 2 else np.ones((), bool)
    distance = np.where(unmasked, x, -128).max(axis, keepdims=True) - x
    size, real = (np.where(unmasked, table[np.maximum(distance, 0)], 0) for table in powers)
    total = size.sum(axis, keepdims=True)
    if call.attrs["even"]:
        real = np.where(total == 0, powers[1, 0], real)
        total = np.where(total == 0, powers[0, 0] * x.shape[axis], total)
    total = np.maximum(total, 1)
    return arithmetic.stored(call, (real + total // 2) // total)


def _int8_params(call: Call) -> Params:
    found = rows.along(call)
    sizes = {"inner": np.uint32(found.inner), "length": np.uint32(found.length)}
    return {**arithmetic.stored_fields(call), **sizes, "even": np.uint32(call.attrs["even"])}


q8ta_softmax = Op(
    name="q8ta_softmax",
    operands=(
        Operand("x", dtypes=(INT8X4,)),
        Operand("powers", constant=True, dtypes=(INT32,), valid=_valid_powers),
        mask.MASK,
    ),
    infer=_infer_int8,
    reference=_softmax_int8,
    schema={**RANGE, **mask.EVEN, "dim": Attr("int", low=0, high=7)},
    reads=reads_beside_dim,
    kernels=(
        # by words if they lie along the rows, else by elements
        rows.int8_kernel(
            "q8ta_softmax.rows", ("q8ta_softmax_rows", "mask"), rows.of_words, _int8_params, 3, rows.are_words
        ),
        Kernel(
            "q8ta_softmax",
            ("q8ta_softmax", "mask", "map"),
            (ANY_INT8,),
            ANY_INT8,
            params=_int8_params,
            turns=lambda call: 8 * rows.along(call).length,
            cost=lambda call: 2.0 * call.output.numel * rows.along(call).length,
        ),
    ),
    work=lambda call: 3 * call.output.numel,
)
"""y = (P[d] + S/2) / S + zero. d is an element's distance from the largest element of its row, S is the sum of the
powers p[d] of the row, and P[d] is p[d] in steps of the result. Except for the rounding of powers, a result is the
exact one, rounded: tables do not have the error of polynomials (I-BERT, I-ViT). Elements whose mask is 0 have weight 0.
The weights of a row in which all are masked are zeros or, with `even`, equal."""


def _op(name: str, log: bool) -> Op:
    return Op(
        name=name,
        operands=(Operand("x"),),
        infer=rows.infer,
        reference=_log_softmax if log else _softmax,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, ("softmax",), ("x", "y"), rows.along, _params, 3, {"LOG": int(log)}),),
        int8=None if log else Rowwise(_lower, QParams(1 / 256, -128), True, reads_int16=True, gives_int16=True),
        cases=(
            Case(((2, 3, 5, 197),), {"dim": 3}),
            Case(((2, 21, 5, 7),), {"dim": 1}),
            Case(((3, 7, 132),), {"dim": 2}),
            Case(((2, 5, 47, 53),), {"dim": 1}),
            Case(((5, 1100),), {"dim": 1}),
            Case(((3, 1),), {"dim": 1}),
            Case(((130, 4),), {"dim": 0}),
            Case(((2, 2, 3, 2, 9),), {"dim": 2}),
            Case(((11,),), {"dim": 0}),
        ),
        tolerance=1e-5,
        reads=reads_beside_dim,
        work=lambda call: 3 * call.output.numel,
    )


OPS = (_op("softmax", log=False), _op("log_softmax", log=True))
