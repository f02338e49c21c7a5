"""q8ta_lstm and q8ta_gru: layers with int8 weights, whose states are fixed-point numbers of more bits than int8.

The projected input is int16. Sums and states have 16 fraction bits, gates 15, and the product takes hidden states of 13
fraction bits as two int8. So nothing is rounded to int8 from step to step, only the stored result is. Bytes and states
follow from integers and are the same on every device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT16X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall, Weight
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import RANGE, Op, Operand
from q8ta_wgpu.kernels.recurrent import cells, layer
from q8ta_wgpu.kernels.recurrent.cells import CELLS, FRACTION, KNOTS, Int64

PROJECTED = QParams(2.0**-10, 0, INT16X4)
"""Quantization of the projected input: up to 32, far beyond where sigmoid and tanh saturate."""

CARRIED = 13
"""Fraction bits of the hidden states in the product."""

CARRIED_LIMIT = (1 << 15) - 129
"""Bound of a first hidden state in the product, almost 4 without a shift; all others lie between it and tanh."""

SUM_LIMIT = 2.0**27
"""Bound of each term of a sum: four of them stay in int32."""


def lower(call: QuantizedCall, cell: str) -> Int8Form | str:
    """The int8 form: multipliers from steps of sums to 2^-FRACTION, and the bias in 2^-FRACTION."""
    weight, bias = call.constants.get(1), call.constants.get(2)
    if call.q[0] != PROJECTED or not isinstance(weight, Weight) or not isinstance(bias, np.ndarray):
        return "it needs a projected input in int16 and a quantized weight"
    if weight.axis != 0 or weight.zero.any():
        return "its weight has another zero point than 0, or scales along another axis than its outputs"
    multiplier = (weight.scale * 2.0 ** (FRACTION - CARRIED + call.attrs["shifts"][0])).astype(np.float32)
    offset = np.rint(np.clip(bias.astype(np.float64) * 2.0**FRACTION, -SUM_LIMIT, SUM_LIMIT)).astype(np.int32)
    if not (np.isfinite(multiplier).all() and multiplier.max() < 2.0**100):
        return f"a scale of its weight, {weight.scale.max():.3g}, is too large"
    scale = 2.0 ** -_fractions(cell, call.attrs)[0] / call.out.scale if call.out else 1.0
    if not np.isfinite(np.float32(scale)):
        return "the scale of its result is too small"
    states = range(3, len(call.inputs))
    operands = (0, weight.values, multiplier, offset, cells.tanh_knots(), *states)
    attrs = {**call.attrs, "lo": call.lo, "hi": call.hi}
    return Int8Form(f"q8ta_{cell}", operands, attrs)


def _infer(types: tuple[TensorType, ...], attrs: Attrs, cell: str) -> tuple[Shape, str]:
    pre, weight, multiplier, bias, knots, *first = types
    if pre.q != PROJECTED:
        raise GraphError(f"q8ta_{cell} reads a projected input of {PROJECTED}, found {pre.q}")
    if multiplier.shape != bias.shape or knots.shape != (KNOTS + 1,):
        raise GraphError(
            f"q8ta_{cell} takes multipliers and a bias of one shape, and {KNOTS + 1} knots: found {multiplier.shape}, "
            f"{bias.shape} and {knots.shape}"
        )
    if _carry(cell, attrs) < 1:
        raise GraphError(f"q8ta_{cell}: shifts {attrs['shifts']} leave its states fewer bits than its product reads")
    shape = layer.infer(cell, pre.shape, weight.shape, bias.shape, [t.shape for t in first], attrs)
    return shape, INT8X4 if attrs["result"] == "sequence" else FLOAT32


def _valid_multiplier(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[2] is not None
    return "" if (np.abs(arrays[2]) < 2.0**100).all() else "must be finite, and below 2^100"


def _valid_bias(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[3] is not None
    return "" if np.abs(arrays[3].astype(np.int64)).max() <= SUM_LIMIT else "must be within 2^27"


def _valid_knots(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[4] is not None
    inside = arrays[4].min() >= 0 and arrays[4].max() <= 1 << cells.GATE
    return "" if inside else f"must be from 0 to 2^{cells.GATE}"


def _fractions(cell: str, attrs: Attrs) -> tuple[int, int]:
    """Fraction bits of hidden states and of kept ones, which are the same where a cell keeps no other."""
    kept = FRACTION - int(attrs["shifts"][1])
    return FRACTION if CELLS[cell].keeps else kept, kept


def _carry(cell: str, attrs: Attrs) -> int:
    """Fraction bits of a hidden state that the product does not read."""
    return _fractions(cell, attrs)[0] - CARRIED + int(attrs["shifts"][0])


def _hidden_limit(cell: str, attrs: Attrs) -> int:
    """Bound of a first hidden state. Where it is kept, its difference from a tanh is within STATE_LIMIT as well."""
    limit = CARRIED_LIMIT << _carry(cell, attrs)
    return limit if CELLS[cell].keeps else min(limit, cells.STATE_LIMIT - (1 << FRACTION))


def _fixed(x: Array, rows: int, fraction: int, limit: int) -> Int64:
    """A state that comes in, of 2^-fraction; NaN is 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.clip(np.rint(x.astype(np.float32) * np.float32(2.0**fraction)), -limit, limit)
    return np.broadcast_to(np.nan_to_num(steps).astype(np.int64), (rows, x.shape[1]))


def _scaled(sums: Int64, multiplier: Array) -> Int64:
    with np.errstate(over="ignore"):
        product = np.rint(sums.astype(np.int32).astype(np.float32) * multiplier)
    return np.clip(product, -np.float32(SUM_LIMIT), np.float32(SUM_LIMIT)).astype(np.int64)


def _reference(call: Call, arrays: Sequence[Array], cell: str) -> Array:
    pre, weight, multiplier, bias, knots, hidden, *state = arrays
    gates, table = CELLS[cell].gates, knots.astype(np.int64)
    pre = layer.steps_first(pre, call.attrs).astype(np.int64) << (FRACTION - 10)
    fraction, kept_fraction = _fractions(cell, call.attrs)
    first = _fixed(hidden, pre.shape[1], fraction, _hidden_limit(cell, call.attrs))
    kept = _fixed(state[0], pre.shape[1], kept_fraction, cells.STATE_LIMIT) if state else first
    transposed = weight.astype(np.float64).T  # exact: sums are integers below 2^53

    def step(x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
        carried = arithmetic.rte(hidden, _carry(cell, call.attrs))
        high = (carried + 128) >> 8
        sums = [(part.astype(np.float64) @ transposed).astype(np.int64) for part in (high, carried - (high << 8))]
        scaled = _scaled(sums[0], multiplier * np.float32(256)) + _scaled(sums[1], multiplier) + bias
        by_gate = [np.stack(np.split(part, gates, axis=1)) for part in (x, scaled)]
        return CELLS[cell].integer(by_gate[0], by_gate[1], hidden, state, table, call.attrs["shifts"])

    sequence, last = cells.run(pre, first, kept, call.attrs["reverse"], step)
    if call.attrs["result"] == "state":
        return last.astype(np.float32) * np.float32(2.0**-kept_fraction)
    steps = np.rint(layer.steps_first(sequence, call.attrs).astype(np.float32) * _multiplier(call, fraction))
    return arithmetic.stored(call, np.clip(steps, -(2.0**20), 2.0**20).astype(np.int64))


def _multiplier(call: Call, fraction: int) -> np.float32:
    """The factor from 2^-fraction to steps of the result."""
    return np.float32(2.0**-fraction / call.output.q.scale) if call.output.q else np.float32(1)


def _params(call: Call, cell: str) -> Params:
    hidden, kept = _fractions(cell, call.attrs)
    product_shift, state_shift = call.attrs["shifts"]
    return {
        **layer.params(call, lanes=4),
        "hidden_steps": np.float32(2.0**hidden),
        "hidden_limit": np.float32(_hidden_limit(cell, call.attrs)),
        "carry": np.uint32(_carry(cell, call.attrs)),
        "product_shift": np.uint32(product_shift),
        "state_steps": np.float32(2.0**kept),
        "state_step": np.float32(2.0**-kept),
        "state_shift": np.uint32(state_shift),
        "scale": _multiplier(call, hidden),
        "zero": np.int32(call.output.q.zero if call.output.q else 0),
        "lo": np.int32(call.attrs["lo"]),
        "hi": np.int32(call.attrs["hi"]),
    }


def _pack_weight(call: Call, weight: Array) -> Array:
    return layer.pack_weight(call, weight, 4).view("<u4").reshape(-1)


def _op(cell: str) -> Op:
    name, state = f"q8ta_{cell}", (Operand("cell"),) if CELLS[cell].keeps else ()
    return Op(
        name=name,
        operands=(
            Operand("pre", dtypes=(INT16X4,)),
            Operand("weight", constant=True, dtypes=(INT8,)),
            Operand("multiplier", constant=True, valid=_valid_multiplier),
            Operand("bias", constant=True, dtypes=(INT32,), valid=_valid_bias),
            Operand("knots", constant=True, dtypes=(INT32,), valid=_valid_knots),
            Operand("hidden"),
            *state,
        ),
        infer=functools.partial(_infer, cell=cell),
        reference=functools.partial(_reference, cell=cell),
        schema={**layer.SCHEMA, **RANGE},
        macs=layer.macs,
        work=layer.work,
        kernels=layer.kernels(
            name,
            cell,
            ("recurrent_int8", name, "dot"),
            lanes=4,
            inputs=(ONLY_4W | FLOAT,),
            output=ONLY_4W | FLOAT,
            params=functools.partial(_params, cell=cell),
            prepack={1: _pack_weight},
        ),
    )


OPS = tuple(_op(cell) for cell in CELLS)
