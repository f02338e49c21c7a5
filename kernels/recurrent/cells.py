"""The cells of recurrent layers: one step of lstm and gru as torch defines them, in float64 and in integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.ir.arithmetic import rte
from q8ta_wgpu.ir.graph import Array

Floats = NDArray[np.float64]
Int64 = NDArray[np.int64]

FRACTION = 16
"""Fraction bits of sums and states."""

GATE = 15
"""Fraction bits of the results of sigmoid and tanh."""

STATE_LIMIT = 2**23 - 1
"""The largest magnitude of states, and of the factor of a gate: 128 in real values, without shifts."""

Shifts = tuple[int, int]
"""The numbers of fraction bits that are given up for a larger range: (of the hidden states in the product, of the
states of a cell). Both are 0 if hidden states stay within 4 and states within 128; calibration chooses more for larger
ones."""

KNOTS = 512
"""Segments of tanh from 0 to REACH. Beyond REACH it is 1 to GATE fraction bits."""

REACH = 8


@dataclass(frozen=True)
class Cell:
    """The cell of a recurrent layer.

    Attributes:
        gates: number of gates.
        has_cell_state: whether it has a state besides the hidden state.
        real: one step in float64: (projected input (gates, batch, units), product with the hidden state of the same
            shape, hidden state (batch, units), cell state) -> (hidden state, cell state).
        integer: the same in integers, with two more arguments: the knots of tanh, and Shifts.
    """

    gates: int
    has_cell_state: bool
    real: Callable[[Floats, Floats, Floats, Floats], tuple[Floats, Floats]]
    integer: Callable[[Int64, Int64, Int64, Int64, Int64, Shifts], tuple[Int64, Int64]]


def tanh_knots() -> NDArray[np.int32]:
    """tanh at the ends of its segments, int32 (KNOTS + 1,), in 2^-GATE."""
    return np.rint(np.tanh(np.linspace(0, REACH, KNOTS + 1)) * 2.0**GATE).astype(np.int32)


def tanh(x: Int64, knots: Int64) -> Int64:
    """tanh of x in 2^-FRACTION, interpolated between its knots. The result is in 2^-GATE."""
    bits = (REACH << FRACTION).bit_length() - 1 - (KNOTS.bit_length() - 1)
    size = np.minimum(np.abs(x), (REACH << FRACTION) - 1)
    segment, fraction = size >> bits, size & ((1 << bits) - 1)
    value = knots[segment] + (((knots[segment + 1] - knots[segment]) * fraction + (1 << (bits - 1))) >> bits)
    found: Int64 = np.where(x < 0, -value, value)
    return found


def sigmoid(x: Int64, knots: Int64) -> Int64:
    """sigmoid of x in 2^-FRACTION as (1 + tanh(x / 2)) / 2. The result is in 2^-GATE."""
    return ((1 << GATE) + tanh(x >> 1, knots)) >> 1


def gated(gate: Int64, x: Int64) -> Int64:
    """gate * x, rounded half up, for a gate in 2^-GATE. x is split into high and low bits, so that products fit int32
    up to STATE_LIMIT."""
    found: Int64 = (gate * (x >> 8) + ((gate * (x & 255) + 128) >> 8) + (1 << (GATE - 9))) >> (GATE - 8)
    return found


def _sigmoid(x: Floats) -> Floats:
    e = np.exp(-np.abs(x))  # 0 at infinities
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


def _lstm(x: Floats, s: Floats, hidden: Floats, state: Floats) -> tuple[Floats, Floats]:
    i, f, g, o = x + s
    state = _sigmoid(f) * state + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(state), state


def _lstm_int8(x: Int64, s: Int64, hidden: Int64, state: Int64, knots: Int64, shifts: Shifts) -> tuple[Int64, Int64]:
    i, f, g, o = x + s
    new = rte(sigmoid(i, knots) * tanh(g, knots), 2 * GATE - FRACTION + shifts[1])
    state = np.clip(gated(sigmoid(f, knots), state) + new, -STATE_LIMIT, STATE_LIMIT)
    most = (REACH << FRACTION) >> shifts[1]
    reached = tanh(np.clip(state, -most, most) << shifts[1], knots)
    return rte(sigmoid(o, knots) * reached, 2 * GATE - FRACTION), state


def _gru(x: Floats, s: Floats, hidden: Floats, state: Floats) -> tuple[Floats, Floats]:
    r, z = _sigmoid(x[:2] + s[:2])
    n = np.tanh(x[2] + r * s[2])
    hidden = n + z * (hidden - n)
    return hidden, hidden


def _gru_int8(x: Int64, s: Int64, hidden: Int64, state: Int64, knots: Int64, shifts: Shifts) -> tuple[Int64, Int64]:
    r, z = sigmoid(x[:2] + s[:2], knots)
    reset = gated(r, np.clip(s[2] >> shifts[0], -STATE_LIMIT, STATE_LIMIT)) << shifts[0]
    n = tanh(x[2] + reset, knots) << (FRACTION - GATE) >> shifts[1]
    hidden = n + gated(z, hidden - n)
    return hidden, hidden


CELLS: Mapping[str, Cell] = {"lstm": Cell(4, True, _lstm, _lstm_int8), "gru": Cell(3, False, _gru, _gru_int8)}


def run(
    pre: Array, hidden: Array, state: Array, reverse: bool, step: Callable[[Array, Array, Array], tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Runs all steps of a layer in one direction.

    Args:
        pre: the projected input, (steps, batch, gates * units).
        hidden, state: the first states, (batch, units).
        reverse: whether the last step is run first.
        step: (projected input of a step, hidden, state) -> (hidden, state).

    Returns:
        The hidden states of all steps, (steps, batch, units), and the last state, (batch, units).
    """
    found = np.empty((len(pre), *hidden.shape), hidden.dtype)
    for time in reversed(range(len(pre))) if reverse else range(len(pre)):
        hidden, state = step(pre[time], hidden, state)
        found[time] = hidden
    return found, state
