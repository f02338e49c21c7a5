"""q8ta_lstm and q8ta_gru: recurrent layers with int8 weights and fixed-point states of more than 8 bits.

The projected input is int16. Sums and states have 16 fraction bits, gates have 15. The product reads hidden states with
13 fraction bits, each as two int8. So only the stored result is rounded to int8 or int16, not the states from step to
step. A float32 result is the hidden states as they are. All arithmetic is in integers, so that bytes and states are the
same on every device.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT16X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall, Weight
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import WIDE_RANGE, Op, Operand
from q8ta_wgpu.kernels.recurrent import cells, layer
from q8ta_wgpu.kernels.recurrent.cells import CELLS, FRACTION, KNOTS, Int64

PROJECTED = QParams(2.0**-10, 0, INT16X4)
"""Quantization of the projected input: up to 32, far beyond the values where sigmoid and tanh saturate."""

PRODUCT_FRACTION = 13
"""Fraction bits of the hidden states in the product."""

PRODUCT_LIMIT = (1 << 15) - 129
"""The largest magnitude of a first hidden state in the product: almost 4 without a shift. Later ones lie between the
first one and results of tanh."""

SUM_LIMIT = 2.0**27
"""The largest magnitude of each term of a sum: four of them fit int32."""


def lower(call: QuantizedCall, cell: str) -> Int8Form:
    """The int8 form of a layer. Its multipliers convert sums to 2^-FRACTION, and its bias is in 2^-FRACTION. Raises
    NoInt8Form where there is none."""
    weight, bias = call.constants.get(1), call.constants.get(2)
    if call.q[0] != PROJECTED or not isinstance(weight, Weight) or not isinstance(bias, np.ndarray):
        raise NoInt8Form("it needs a projected input in int16 and a quantized weight")
    if weight.axis != 0 or weight.zero.any():
        raise NoInt8Form("its weight has another zero point than 0, or scales along another axis than its outputs")
    multiplier = (weight.scale * 2.0 ** (FRACTION - PRODUCT_FRACTION + call.attrs["shifts"][0])).astype(np.float32)
    offset = np.rint(np.clip(bias.astype(np.float64) * 2.0**FRACTION, -SUM_LIMIT, SUM_LIMIT)).astype(np.int32)
    if not (np.isfinite(multiplier).all() and multiplier.max() < 2.0**100):
        raise NoInt8Form(f"a scale of its weight, {weight.scale.max():.3g}, is too large")
    scale = 2.0 ** -_fractions(cell, call.attrs)[0] / call.out.scale if call.out else 1.0
    if not np.isfinite(np.float32(scale)):
        raise NoInt8Form("the scale of its result is too small")
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
    if _product_shift(cell, attrs) < 1:
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
    """(fraction bits of hidden states, fraction bits of the cell state). Both are the same for cells without a cell
    state."""
    state = FRACTION - int(attrs["shifts"][1])
    return FRACTION if CELLS[cell].has_cell_state else state, state


def _product_shift(cell: str, attrs: Attrs) -> int:
    """The number of low bits of a hidden state that are rounded off for the product."""
    return _fractions(cell, attrs)[0] - PRODUCT_FRACTION + int(attrs["shifts"][0])


def _hidden_limit(cell: str, attrs: Attrs) -> int:
    """The largest magnitude of a first hidden state. If it is the cell's only state, its difference from a tanh is
    within STATE_LIMIT, too."""
    limit = PRODUCT_LIMIT << _product_shift(cell, attrs)
    return limit if CELLS[cell].has_cell_state else min(limit, cells.STATE_LIMIT - (1 << FRACTION))


def _fixed(x: Array, rows: int, fraction: int, limit: int) -> Int64:
    """A first state in 2^-fraction, int64 (rows, units). NaN is 0."""
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
    fraction, state_fraction = _fractions(cell, call.attrs)
    first = _fixed(hidden, pre.shape[1], fraction, _hidden_limit(cell, call.attrs))
    first_state = _fixed(state[0], pre.shape[1], state_fraction, cells.STATE_LIMIT) if state else first
    transposed = weight.astype(np.float64).T  # exact: sums are integers below 2^53

    def step(x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
        operand = arithmetic.rte(hidden, _product_shift(cell, call.attrs))
        high = (operand + 128) >> 8
        sums = [(half.astype(np.float64) @ transposed).astype(np.int64) for half in (high, operand - (high << 8))]
        scaled = _scaled(sums[0], multiplier * np.float32(256)) + _scaled(sums[1], multiplier) + bias
        by_gate = [np.stack(np.split(term, gates, axis=1)) for term in (x, scaled)]
        return CELLS[cell].integer(by_gate[0], by_gate[1], hidden, state, table, call.attrs["shifts"])

    sequence, last = cells.run(pre, first, first_state, call.attrs["reverse"], step)
    if call.output.q is None:
        states = (x.astype(np.float32) * np.float32(2.0**-n) for x, n in ((sequence, fraction), (last, state_fraction)))
        return layer.result(call, *states)
    hidden = layer.result(call, sequence, last).astype(np.float32)
    steps = np.rint(hidden * _multiplier(call, fraction))
    return arithmetic.stored(call, np.clip(steps, -(2.0**20), 2.0**20).astype(np.int64))


def _multiplier(call: Call, fraction: int) -> np.float32:
    """The number of the result's steps in 2^-fraction; of a float32 result the fraction itself."""
    return np.float32(2.0**-fraction / (call.output.q.scale if call.output.q else 1.0))


def _params(call: Call, cell: str) -> Params:
    hidden, state = _fractions(cell, call.attrs)
    product_shift, state_shift = call.attrs["shifts"]
    return {
        **layer.params(call, lanes=4),
        "hidden_steps": np.float32(2.0**hidden),
        "hidden_limit": np.float32(_hidden_limit(cell, call.attrs)),
        "carry": np.uint32(_product_shift(cell, call.attrs)),
        "product_shift": np.uint32(product_shift),
        "state_steps": np.float32(2.0**state),
        "state_step": np.float32(2.0**-state),
        "state_shift": np.uint32(state_shift),
        "scale": _multiplier(call, hidden),
        "zero": np.int32(call.output.q.zero if call.output.q else 0),
        "lo": np.int32(call.attrs["lo"]),
        "hi": np.int32(call.attrs["hi"]),
    }


def _pack_weight(call: Call, weight: Array) -> Array:
    return layer.pack_weight(call, weight, 4).view("<u4").reshape(-1)


def _op(cell: str) -> Op:
    name, state = f"q8ta_{cell}", (Operand("cell"),) if CELLS[cell].has_cell_state else ()
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
        results=(INT16X4, FLOAT32),
        schema={**layer.SCHEMA, **WIDE_RANGE},
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
