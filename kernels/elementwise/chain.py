"""Chains of elementwise operators that are fused into one dispatch and rounded once.

A chain begins with an integer sum: one value, an add or a mul. The sum is exact; an add with an int16 operand sums
rounded terms as q16ta_add does. A chain may also begin with a float32 value, which its multipliers make integers.

What follows is as in a weighted sum. Each channel has a multiplier and an offset, which include batch norms. Then come
the stages of an epilogue: an addend, an activation (a curve, or PReLU slopes), the rounding, and stages after it. An
add or mul with nothing to fuse is q8ta_add, q16ta_add or q8ta_mul instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT32, RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import FLOAT_MAX, INTEGERS, Attr, Op, Operand, reads_same_place
from q8ta_wgpu.kernels.elementwise.broadcasting import broadcast_shape
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.stage import Phase
from q8ta_wgpu.kernels.epilogue.sum_rounding import rounding
from q8ta_wgpu.kernels.lib import valid

Sums = Callable[[Call, Sequence[Array]], NDArray[np.int64]]

GIVES = frozenset({Phase.ADDEND, Phase.ACTIVATION, Phase.ROUNDING, Phase.INT8})
"""The phases of the stages that a chain gives: its result is stored as integers where it is computed."""


def lower(
    call: QuantizedCall, op: str, scale: float, reached: float, operands: Sequence[int], attrs: Attrs
) -> Int8Form:
    """The int8 form of a chain that begins with an integer sum.

    Args:
        call: the quantized call, with the operators that are fused after it.
        op: the operator of the chain.
        scale: real value of a step of the sum.
        reached: the largest magnitude of the sum, a real value.
        operands: indices of the call's operands that the sum reads.
        attrs: attributes of the sum.

    Raises NoInt8Form where there is none.
    """
    factor, term = call.affine or (np.ones(1), np.zeros(1))
    if call.slopes is not None:
        factor, term = (np.broadcast_to(v, call.slopes.shape) for v in (factor, term))
    reached = float((reached * np.abs(factor) + np.abs(term)).max(initial=0.0))
    found = rounding(call, call.result, scale * factor, term, reached)
    added = (*operands, found.multiplier, found.offset, *found.operands)
    return Int8Form(op, added, {**attrs, "epilogue": found.epilogue})


def lower_float(call: QuantizedCall, op: str) -> Int8Form:
    """The int8 form of a chain that begins with a float32 value of any magnitude. Raises NoInt8Form."""
    assert call.affine is not None
    factor, term = (np.broadcast_to(v, np.shape(call.slopes if call.slopes is not None else v)) for v in call.affine)
    found = rounding(call, call.result, factor, term, FLOAT_MAX)
    if np.abs(found.offset).max(initial=0) >= arithmetic.OFFSET_LIMIT:
        raise NoInt8Form(f"its terms are too many of its result's steps, {call.result.scale:.3g}, for int32")
    return Int8Form(op, (0, found.multiplier, found.offset, *found.operands), {"epilogue": found.epilogue})


def check_product(types: tuple[TensorType, ...]) -> None:
    """Raises GraphError where a product of two quantized operands could pass int32."""
    spans = [t.q.span for t in types[:2] if t.q is not None]
    if math.prod(spans) > arithmetic.INT32_MAX:
        raise GraphError(f"a product of {spans[0]} and {spans[1]} steps passes int32: int16 needs zero points near 0")


def _check_sum(types: tuple[TensorType, ...], attrs: Attrs) -> None:
    if not arithmetic.sum_fits(attrs["a_multiplier"], attrs["b_multiplier"], 1):
        raise GraphError(f"multipliers {attrs['a_multiplier']} and {attrs['b_multiplier']} pass int32")


def _infer(types: tuple[TensorType, ...], attrs: Attrs, operands: int) -> tuple[Shape, str]:
    tensors, numbers = types[:operands], types[operands : operands + 2]
    shape = broadcast_shape(*(t.shape for t in tensors))
    if any(t.shape != (1,) and t.shape != shape[1:2] for t in numbers) or numbers[0].shape != numbers[1].shape:
        found = ", ".join(str(t.shape) for t in numbers)
        raise GraphError(f"a chain of {shape}: dimension 1 holds the channels, found per-channel operands {found}")
    after = epilogue.check(types, attrs, shape, GIVES)
    if after[1] not in RANGES:
        raise GraphError(f"a chain's result is stored as integers, found {attrs['epilogue']}")
    return after


def _reference(sums: Sums, operands: int) -> Callable[[Call, Sequence[Array]], Array]:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        acc = sums(call, [x.astype(np.int64) - z for x, z in zip(arrays, call.zeros[:operands], strict=False)])
        return epilogue.apply(call, acc, 1 if acc.ndim > 1 else 0, arrays[operands:])

    return reference


def _infer_float(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if any(operand.at_result for operand in attrs["epilogue"].operands):
        raise GraphError(f"a chain that begins with a float32 value adds no other value, found {attrs['epilogue']}")
    return _infer(types, attrs, 1)


def _reference_float(call: Call, arrays: Sequence[Array]) -> Array:
    x, multiplier, *others = arrays
    axis = 1 if x.ndim > 1 else 0
    finite = np.clip(np.nan_to_num(x, nan=0.0), -FLOAT_MAX, FLOAT_MAX).astype(np.float32)
    with np.errstate(over="ignore"):
        steps = np.rint(finite * multiplier.reshape([-1 if d == axis else 1 for d in range(x.ndim)]))
    acc = np.clip(steps, -arithmetic.T_LIMIT, arithmetic.T_LIMIT).astype(np.int64)
    return epilogue.apply(call, acc, axis, [np.ones_like(multiplier), *others])


def _source(name: str, operands: Sequence[str], numbers: str) -> Callable[[Call], tuple[str, ...]]:
    """The WGSL of a chain. Its numbers of channels lie in no quads, as magic_rounding.py needs them."""

    def source(call: Call) -> tuple[str, ...]:
        reads = (
            f"{operand}_values={operand}_{'same' if t.shape == call.output.shape else 'broadcast'}"
            for operand, t in zip(operands, call.inputs, strict=False)
        )
        hooks = call.attrs["epilogue"].hooks(by_addition=False)
        return "chain", *hooks, f"numbers_at={numbers}", f"sums={name}_sums", *reads

    return source


def _params(operands: Sequence[str]) -> Callable[[Call], Params]:
    def params(call: Call) -> Params:
        shape, attrs, zeros = call.output.shape, call.attrs, call.zeros
        fields: dict[str, Any] = {
            "channels": np.uint32(call.inputs[len(operands)].numel),
            "inner": np.uint32(math.prod(shape[2:-3]) if len(shape) > 4 else 1),
            **epilogue.stage_fields(call),
        }
        multipliers = [name for name in ("a_multiplier", "b_multiplier") if name in attrs]
        if call.op == "q8ta_add_chain":
            offset = -(zeros[0] * attrs["a_multiplier"] + zeros[1] * attrs["b_multiplier"])
            fields |= {name: np.int32(attrs[name]) for name in multipliers}
            return {**fields, "terms_offset": np.uint32(offset & 0xFFFFFFFF).view(np.int32)}
        fields |= {name: np.float32(attrs[name]) for name in multipliers}
        return {**fields, **{f"{name}_zero": np.int32(zero) for name, zero in zip(operands, zeros, strict=False)}}

    return params


def _channel_axis(call: Call) -> dict[str, int]:
    """The WGSL constant of the channels' axis: dimension 1, as an axis of the canonical shape."""
    return {"CHANNEL_AXIS": min(max(5 - len(call.output.shape), 0), 3)}


def _parameters(count: int) -> tuple[Operand, ...]:
    """The operands with a number for each channel. `count` activations precede them."""
    return (
        Operand("multiplier", constant=True, valid=valid.finite(count)),
        Operand("offset", constant=True, dtypes=(INT32,), valid=valid.within(count + 1, arithmetic.OFFSET_LIMIT)),
    )


def _op(
    name: str,
    operands: Sequence[str],
    sums: Sums,
    schema: dict[str, Attr] | None = None,
    dtypes: tuple[str, ...] = INTEGERS,
    check: Callable[[tuple[TensorType, ...], Attrs], None] = lambda types, attrs: None,
) -> Op:
    count = len(operands)

    def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        check(types, attrs)
        return _infer(types, attrs, count)

    return Op(
        name=name,
        operands=(
            *(Operand(operand, dtypes=dtypes) for operand in operands),
            *_parameters(count),
        ),
        infer=infer,
        reference=_reference(sums, count),
        schema={**(schema or {}), "epilogue": epilogue.EPILOGUE},
        reads=reads_same_place,
        kernels=(
            Kernel(
                name,
                _source(name, operands, "scaled_numbers"),
                (ANY_INT8,),
                ANY_INT8,
                synced=True,
                params=_params(operands),
                constants=_channel_axis,
                prepack={count + 1: epilogue.shifted},
            ),
        ),
    )


def _add_sums(call: Call, arrays: Sequence[Array]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = arrays[0] * call.attrs["a_multiplier"] + arrays[1] * call.attrs["b_multiplier"]
    return found


def _add_terms(call: Call, arrays: Sequence[Array]) -> NDArray[np.int64]:
    a, b = (arithmetic.scaled_term(x, call.attrs[f"{name}_multiplier"]) for name, x in zip("ab", arrays, strict=True))
    return a + b


_INTEGER = Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX)
_FACTOR = Attr("float", low=-3.4e38, high=3.4e38)

OPS = (
    Op(
        name="q8ta_quantize_channels",
        operands=(Operand("x"), *_parameters(1)),
        infer=_infer_float,
        reference=_reference_float,
        schema={"epilogue": epilogue.EPILOGUE},
        reads=reads_same_place,
        kernels=(
            Kernel(
                "q8ta_quantize_channels",
                _source("q8ta_quantize_channels", (), "offsets_alone"),
                (FLOAT,),
                ANY_INT8,
                params=_params(("x",)),
                constants=_channel_axis,
                prepack={2: epilogue.shifted},
            ),
        ),
    ),
    _op("q8ta_batch_norm", ("x",), lambda call, arrays: arrays[0].astype(np.int64)),
    _op(
        "q8ta_add_chain",
        ("a", "b"),
        _add_sums,
        {"a_multiplier": _INTEGER, "b_multiplier": _INTEGER},
        (INT8X4,),
        _check_sum,
    ),
    _op("q16ta_add_chain", ("a", "b"), _add_terms, {"a_multiplier": _FACTOR, "b_multiplier": _FACTOR}),
    _op(
        "q8ta_mul_chain",
        ("a", "b"),
        lambda call, arrays: np.asarray(arrays[0] * arrays[1], np.int64),
        check=lambda types, attrs: check_product(types),
    ),
)
