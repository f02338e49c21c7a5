"""lstm and gru: all steps of a recurrent layer in one direction, in one dispatch.

Their input is the projected input: the products of the network's input with its weights, a `linear` over all steps. A
step computes the product with the hidden state, and the cell. aten's lstm and gru, which may have several layers and
two directions, are imported as linears, these operators and cats.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Recurrent
from q8ta_wgpu.ir.kernel import FLOAT
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand
from q8ta_wgpu.kernels.recurrent import cells, layer, q8ta_recurrent
from q8ta_wgpu.kernels.recurrent.cells import CELLS


def _infer(types: tuple[TensorType, ...], attrs: Attrs, cell: str) -> tuple[Shape, str]:
    pre, weight, bias, *first = (t.shape for t in types)
    return layer.infer(cell, pre, weight, bias, first, attrs), FLOAT32


def _reference(call: Call, arrays: Sequence[Array], cell: str) -> Array:
    pre, weight, bias, hidden, *state = (a.astype(np.float64) for a in arrays)
    pre = layer.steps_first(pre, call.attrs)
    hidden, cell_state = (np.broadcast_to(a, (pre.shape[1], a.shape[1])) for a in (hidden, *(state or [hidden])))

    def step(x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
        sums = hidden @ weight.T + bias
        by_gate = [np.stack(np.split(term, CELLS[cell].gates, axis=1)) for term in (x, sums)]
        return CELLS[cell].real(by_gate[0], by_gate[1], hidden, state)

    sequence, last = cells.run(pre, hidden, cell_state, call.attrs["reverse"], step)
    return layer.result(call, sequence, last).astype(np.float32)


def _case(cell: str, steps: int, batch: int, units: int, first: int, **attrs: Any) -> Case:
    gates, states = CELLS[cell].gates * units, 2 if CELLS[cell].has_cell_state else 1
    lead = (batch, steps) if attrs.get("batch_first") else (steps, batch)
    shapes = ((*lead, gates), (gates, units), (gates,), *((first, units),) * states)
    return Case(shapes, {"reverse": False, "batch_first": False, "result": "sequence", "shifts": (0, 0), **attrs})


def _op(cell: str) -> Op:
    state = (Operand("cell", real=True),) if CELLS[cell].has_cell_state else ()
    return Op(
        name=cell,
        operands=(
            Operand("pre"),
            Operand("weight", constant=True),
            Operand("bias", constant=True),
            Operand("hidden", real=True),
            *state,
        ),
        infer=functools.partial(_infer, cell=cell),
        reference=functools.partial(_reference, cell=cell),
        schema=layer.SCHEMA,
        macs=layer.macs,
        work=layer.work,
        kernels=layer.kernels(
            cell,
            cell,
            ("recurrent_float32", cell),
            lanes=1,
            inputs=(FLOAT,),
            output=FLOAT,
            params=functools.partial(layer.params, lanes=1),
            prepack={1: functools.partial(layer.pack_weight, lanes=1)},
        ),
        int8=Recurrent(functools.partial(q8ta_recurrent.lower, cell=cell), q8ta_recurrent.PROJECTED),
        cases=(
            _case(cell, 5, 2, 7, 2),
            _case(cell, 3, 3, 67, 1, batch_first=True, reverse=True),
            _case(cell, 4, 2, 7, 2, result="state", shifts=(4, 2)),
            _case(cell, 4, 2, 7, 1, result="both", shifts=(4, 2)),
        ),
        tolerance=1e-4,
    )


OPS = tuple(_op(cell) for cell in CELLS)
