"""One step of the cells of recurrent layers, in float64 and in integers, as torch defines lstm and gru."""

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
"""Bound of states, and of what a gate multiplies: 128 where a state has all its fraction bits."""

Shifts = tuple[int, int]
"""How many fraction bits fewer the hidden states that the product reads have, and the states that a cell keeps: none
where they stay within 4 and 128, more where calibration met larger ones."""

KNOTS = 512
"""Segments of tanh from 0 to REACH. Beyond REACH it is 1 in all its fraction bits."""

REACH = 8


@dataclass(frozen=True)
class Cell:
    """One step of a layer. It takes, with one entry for each gate, slices of the projected input and of the product
    with the hidden state, and the hidden state and the cell's own state. It returns both states anew.

    Attributes:
        gates: number of gates.
        keeps: whether it has a state besides the hidden one.
    """

    gates: int
    keeps: bool
    real: Callable[[Floats, Floats, Floats, Floats], tuple[Floats, Floats]]
    integer: Callable[[Int64, Int64, Int64, Int64, Int64, Shifts], tuple[Int64, Int64]]


def tanh_knots() -> NDArray[np.int32]:
    """tanh at the ends of its segments, in 2^-GATE."""
    return np.rint(np.tanh(np.linspace(0, REACH, KNOTS + 1)) * 2.0**GATE).astype(np.int32)


def tanh(x: Int64, knots: Int64) -> Int64:
    """tanh between its knots: from 2^-FRACTION to 2^-GATE."""
    bits = (REACH << FRACTION).bit_length() - 1 - (KNOTS.bit_length() - 1)
    size = np.minimum(np.abs(x), (REACH << FRACTION) - 1)
    at, part = size >> bits, size & ((1 << bits) - 1)
    value = knots[at] + (((knots[at + 1] - knots[at]) * part + (1 << (bits - 1))) >> bits)
    found: Int64 = np.where(x < 0, -value, value)
    return found


def sigmoid(x: Int64, knots: Int64) -> Int64:
    """(1 + tanh(x / 2)) / 2."""
    return ((1 << GATE) + tanh(x >> 1, knots)) >> 1


def gated(gate: Int64, x: Int64) -> Int64:
    """gate * x, with x in two slices that int32 holds up to STATE_LIMIT, rounded half up."""
    found: Int64 = (gate * (x >> 8) + ((gate * (x & 255) + 128) >> 8) + (1 << (GATE - 9))) >> (GATE - 8)
    return found


def _sigmoid(x: Floats) -> Floats:
    e = np.exp(-np.abs(x))  # 0 at infinities, whose gates close
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
    """All steps of a layer in one direction: the hidden states of every step, and the cell's last state.

    Args:
        pre: the projected input, (steps, batch, gates * units).
        hidden, state: what the first step reads, (batch, units).
        reverse: whether the last step comes first.
        step: one step, from its slice of `pre`, hidden and state to both anew.
    """
    found = np.empty((len(pre), *hidden.shape), hidden.dtype)
    for time in reversed(range(len(pre))) if reverse else range(len(pre)):
        hidden, state = step(pre[time], hidden, state)
        found[time] = hidden
    return found, state
