"""softmax and log_softmax over one dimension, and softmax in int8."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT8, INT8X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASK, Int8Form, QuantizedCall, Rowwise
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape, canonical
from q8ta_wgpu.ir.op import RANGE, Attr, Builder, Case, Import, Op, Operand, reads_beside_dim
from q8ta_wgpu.ir.target import LOOP_TURNS, Target
from q8ta_wgpu.kernels.lib import rows


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    if attrs["dim"] >= len(shape):
        raise GraphError(f"softmax over dimension {attrs['dim']} of {shape}")
    return shape, FLOAT32


def _rows(call: Call) -> rows.Rows:
    shape, dim = call.output.shape, call.attrs["dim"]
    inner = math.prod(shape[dim + 1 :])
    return rows.Rows(call.output.numel // shape[dim], shape[dim], inner, vectors=shape[dim] if inner == 1 else 1)


def _params(call: Call, item: int) -> Params:
    return {"inner": np.uint32(_rows(call).inner)}


def _softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True)).astype(np.float32)


def _log_softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(np.float32)


def _import(op: str) -> Import:
    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        if str(args.get("dtype") or "torch.float32") != "torch.float32" or args.get("half_to_float"):
            raise b.refuse("its result must be float32")
        shape = b.type(args["self"]).shape
        if not shape:
            raise b.refuse("it takes a tensor of at least one dimension, found a scalar")
        return b.emit(op, (args["self"],), {"dim": args["dim"] % len(shape)})

    return rule


# --- int8 ---

MOST_BITS, FEWEST_BITS = 22, 10
"""Fraction bits of a power: more change no result, with fewer it is no softmax any more."""


def powers(scale: float, out: float, length: int) -> Array | None:
    """For each distance d of an int8 from its row's largest, exp(-d * scale) and exp(-d * scale) / out in 2^-F, shape
    (2, 256); F such that `length` of the first add up to 2^31 at most and no second passes 2^30. None where that
    leaves too few bits.
    """
    room = 30 - max(math.ceil(math.log2(length)) - 1, math.ceil(math.log2(1 / out)))
    bits = min(MOST_BITS, room)
    if bits < FEWEST_BITS:
        return None
    real = np.exp(-np.arange(256, dtype=np.float64) * scale)
    return np.rint(np.stack((real, real / out)) * 2.0**bits).astype(np.int32)


def _lower(call: QuantizedCall) -> Int8Form | str:
    x, y, shape, dim = call.q[0], call.out, call.inputs[0].shape, call.attrs["dim"]
    if x is None or y is None:
        return "it needs a quantized input and a quantized result"
    if text := _too_long(shape, dim):
        return text
    tables = powers(x.scale, y.scale, shape[dim])
    if tables is None:
        return f"the scale {y.scale:.3g} of its result and its {shape[dim]} elements are too far apart for int32"
    attrs = {"dim": dim, "lo": call.lo, "hi": call.hi}
    if call.masked:
        return Int8Form("q8ta_masked_softmax", (0, tables, MASK), attrs)
    mask = np.ones((1,) * len(shape), np.int8) if call.mask is None else shortened(call.mask.astype(np.int8))
    return Int8Form("q8ta_softmax", (0, tables, mask), attrs)


def shortened(mask: Array) -> Array:
    """A mask at extent 1 in each of the kernels' dimensions, except the last, along which it repeats, and of four
    dimensions once along the first where it repeats in parts (windows of images)."""
    lead = tuple(range(max(mask.ndim - 3, 0)))
    for axes in (lead, *((axis,) for axis in range(len(lead), mask.ndim - 1))):
        first = mask[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(mask.ndim))]
        if np.array_equal(np.broadcast_to(first, mask.shape), mask):
            mask = first
    parts = (n for n in range(2, len(mask)) if len(mask) % n == 0) if mask.ndim == 4 else ()
    repeated = (n for n in parts if np.array_equal(np.tile(mask[:n], (len(mask) // n, 1, 1, 1)), mask))
    return mask[: next(repeated, len(mask))]


def _too_long(shape: Shape, dim: int) -> str:
    """Why elements could not find their row's sum each for itself, which they do where rows lie across words."""
    longest = LOOP_TURNS // 8
    if dim == len(shape) - 1 or shape[dim] <= longest:
        return ""
    return f"it is over dimension {dim} of {shape}: {longest} elements at most where it is not the last"


def _infer_rows(types: tuple[TensorType, ...], attrs: Attrs) -> Shape:
    shape, _ = _infer(types, attrs)
    if text := _too_long(shape, attrs["dim"]):
        raise GraphError(f"softmax: {text}")
    if types[1].shape != (2, 256):
        raise GraphError(f"softmax has 2 tables of 256 entries, found shape {types[1].shape}")
    return shape


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, mask = _infer_rows(types, attrs), types[2].shape
    first = shape[0] % mask[0] == 0 if len(shape) == 4 else mask[0] in (1, shape[0])
    others = zip(mask[1:], shape[1:], strict=False)
    if len(mask) != len(shape) or not first or any(m not in (1, d) for m, d in others):
        raise GraphError(
            f"softmax of {shape} with a mask of {mask}: its dimensions must be 1 or those of the operand, and the "
            "first of four may divide it"
        )
    leads = len(shape) == 4 or canonical(mask)[0] in (1, canonical(shape)[0])
    if _masks(mask) and (mask[-1] != shape[-1] or not leads):
        raise GraphError(
            f"softmax of {shape} with a mask of {mask} that repeats in its last dimension or the first ones"
        )
    return shape, INT8X4


def _infer_masked(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, mask = _infer_rows(types, attrs), types[2]
    lead = max(len(shape) - 3, 0)
    fits = len(mask.shape) == len(shape) and all(m in (1, d) for m, d in zip(mask.shape, shape, strict=True))
    if not fits or (len(shape) > 4 and math.prod(mask.shape[:lead]) not in (1, math.prod(shape[:lead]))):
        raise GraphError(
            f"softmax of {shape} with a mask of {mask.shape}: its dimensions must be 1 or those of the operand, those "
            "left of the last three all of one kind"
        )
    if mask.q != BOOL:
        raise GraphError(f"the mask of a softmax must be bools, at scale 1 and zero point 0, found {mask}")
    return shape, INT8X4


def _valid_powers(call: Call, arrays: Sequence[Array | None]) -> str:
    powers, length = arrays[1], call.inputs[0].shape[call.attrs["dim"]]
    assert powers is not None
    if powers.min() < 0 or powers[0, 0] < 1 or powers[1].max() > 1 << 30:
        return "must be 0 to 2^30, and more than 0 at the largest element"
    largest = int(powers[0].max()) * length
    return f"could add up to {largest}, past 2^31" if largest > 1 << 31 else ""


def weights(x: Array, powers: Array, mask: Array, axis: int, zero: int, lo: int, hi: int) -> Array:
    """The softmax of int8 values along an axis, in int8 with a zero point: the definition."""
    x, powers = x.astype(np.int64), powers.astype(np.int64)
    part = np.broadcast_to(np.concatenate([mask != 0] * (len(x) // len(mask))), x.shape)
    distance = np.where(part, x, -128).max(axis, keepdims=True) - x
    size, real = (np.where(part, table[np.maximum(distance, 0)], 0) for table in powers)
    total = np.maximum(size.sum(axis, keepdims=True), 1)
    return arithmetic.saturate((real + total // 2) // total, zero, lo, hi)


def _softmax_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x, powers, mask = arrays
    assert call.output.q is not None
    return weights(x, powers, mask, call.attrs["dim"], call.output.q.zero, call.attrs["lo"], call.attrs["hi"])


def _masks(mask: Shape) -> bool:
    """Whether a mask is more than a one."""
    return math.prod(mask) > 1


def pack_mask(call: Call, mask: Array) -> Array:
    """Lines of words as the operand's, all bits of an element 1 or 0."""
    lines = np.where(mask.reshape(-1, mask.shape[-1]) != 0, -1, 0).astype(np.int8)
    return np.ascontiguousarray(np.pad(lines, ((0, 0), (0, -lines.shape[1] % 4)))).reshape(-1).view("<u4")


def _valid_mask(call: Call, arrays: Sequence[Array | None]) -> str:
    mask = arrays[2]
    assert mask is not None
    return "" if _masks(mask.shape) or mask.all() else "has one element, which masks everything"


def _words(call: Call) -> rows.Rows:
    width = call.output.shape[-1]
    return rows.Rows(call.output.numel // width, -(-width // 4), inner=1, vectors=1)


def _along_words(call: Call, target: Target) -> bool:
    return bool(call.attrs["dim"] == len(call.output.shape) - 1)


def _int8_params(call: Call) -> Params:
    return {"mask_dims": canonical(call.inputs[2].shape), **_masked_params(call)}


def _masked_params(call: Call) -> Params:
    assert call.output.q is not None
    found = _rows(call)
    return {
        "zero": np.int32(call.output.q.zero),
        "lo": np.int32(call.attrs["lo"]),
        "hi": np.int32(call.attrs["hi"]),
        "inner": np.uint32(found.inner),
        "length": np.uint32(found.length),
    }


def _whether_masked(call: Call) -> dict[str, int]:
    return {"MASKED": int(_masks(call.inputs[2].shape))}


PACKED = {2: pack_mask}


def _int8_kernels(
    op: str,
    mask: str,
    params: Callable[[Call], Params],
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
    prepack: Mapping[int, Callable[[Call, Array], Array]] | None = None,
) -> tuple[Kernel, ...]:
    """By words where they lie along the rows, else by elements; `mask` is the file that says what takes part."""
    stems = ("q8ta_softmax_rows", mask)
    return (
        rows.int8_kernel(f"{op}.rows", stems, _words, params, 3, _along_words, constants, prepack),
        Kernel(
            op,
            ("q8ta_softmax", mask, "map"),
            (ANY_INT8,),
            ANY_INT8,
            params=params,
            constants=constants,
            prepack=prepack or {},
            turns=lambda call: 8 * _rows(call).length,
            cost=lambda call: 2.0 * call.output.numel * _rows(call).length,
        ),
    )


_X = Operand("x", dtypes=(INT8X4,))
_POWERS = Operand("powers", constant=True, dtypes=(INT32,), valid=_valid_powers)

q8ta_softmax = Op(
    name="q8ta_softmax",
    operands=(_X, _POWERS, Operand("mask", constant=True, dtypes=(INT8,), valid=_valid_mask)),
    infer=_infer_int8,
    reference=_softmax_int8,
    schema={**RANGE, "dim": Attr("int", low=0, high=7)},
    reads=reads_beside_dim,
    kernels=_int8_kernels("q8ta_softmax", "softmax_mask", _int8_params, _whether_masked, PACKED),
    work=lambda call: 3 * call.output.numel,
)
"""y = (P[d] + S/2) / S + zero, where d is an element's distance from the largest of its row, S adds up the powers p[d]
of the row, and P[d] is p[d] in steps of the result. But for the rounding of the powers a result is the exact one,
rounded: tables have none of the error of polynomials (I-BERT, I-ViT). Where the mask is 0 an element takes no part, and
a row of no others is all zeros."""

q8ta_masked_softmax = Op(
    name="q8ta_masked_softmax",
    operands=(_X, _POWERS, Operand("mask", dtypes=(INT8X4,))),
    infer=_infer_masked,
    reference=_softmax_int8,
    schema=q8ta_softmax.schema,
    reads=reads_beside_dim,
    kernels=_int8_kernels("q8ta_masked_softmax", "softmax_given_mask", _masked_params),
    work=q8ta_softmax.work,
)
"""The same with a mask of bools that is known when the network runs: an input, or what follows from one."""


def _op(name: str, log: bool) -> Op:
    return Op(
        name=name,
        operands=(Operand("x"),),
        infer=_infer,
        reference=_log_softmax if log else _softmax,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, ("softmax",), ("x", "y"), _rows, _params, 3, {"LOG": int(log)}),),
        aten={f"aten.{name}.int": _import(name), f"aten._{name}.default": _import(name)},
        int8=None if log else Rowwise(_lower, QParams(1 / 256, -128), masked=True),
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
