"""What float and int8 layers share: attributes, the shape rule, and how a workgroup runs the steps of a row."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import Attr
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.recurrent.cells import CELLS

SCHEMA: Mapping[str, Attr] = {
    "reverse": Attr("bool"),
    "batch_first": Attr("bool"),
    "result": Attr("enum", choices=("sequence", "state")),
    "shifts": Attr("ints", low=0, high=12, length=2),
}
"""`reverse`: the last step comes first. `batch_first`: dimension 0 is the batch and 1 the steps, else the other way
round. `result`: the hidden states of all steps, or the cell's state after its last step, (batch, units): the cell state
of lstm, the hidden state of gru. `shifts`: `cells.Shifts` of the int8 form."""

MOST_UNITS = 2000
"""Most hidden states: a workgroup's memory holds them."""

PACE = 8
"""Hidden states, or words of them, in an unrolled turn of the product's loop."""

SMALL, LARGE = 64, 256
"""Threads of a workgroup, each for one unit at a time."""


def infer(cell: str, pre: Shape, weight: Shape, bias: Shape, first: Sequence[Shape], attrs: Attrs) -> Shape:
    """The result's shape, from those of the projected input, the weight, the bias and the states that come in.

    Raises GraphError where they do not fit."""
    gates, units = CELLS[cell].gates, weight[-1] if weight else 0
    if len(pre) != 3 or weight != (gates * units, units) or bias != (gates * units,) or pre[2] != gates * units:
        raise GraphError(f"{cell} of {pre} with weight {weight} and bias {bias}: each has {gates} gates of all units")
    if not 0 < units <= MOST_UNITS:
        raise GraphError(f"{cell} takes up to {MOST_UNITS} hidden units, found {units}")
    batch = pre[0] if attrs["batch_first"] else pre[1]
    if any(shape not in ((1, units), (batch, units)) for shape in first):
        raise GraphError(f"{cell} of {pre} begins with states of {(batch, units)}, found {list(first)}")
    return (*pre[:2], units) if attrs["result"] == "sequence" else (batch, units)


def steps_first(x: Array, attrs: Attrs) -> Array:
    """A sequence with its steps in dimension 0; or from that to the order of the attributes."""
    return np.swapaxes(x, 0, 1) if attrs["batch_first"] else x


def _batch(call: Call) -> int:
    return call.inputs[0].shape[0 if call.attrs["batch_first"] else 1]


def _steps(call: Call) -> int:
    return call.inputs[0].shape[1 if call.attrs["batch_first"] else 0]


def _units(call: Call) -> int:
    return call.output.shape[-1]


def macs(call: Call) -> int:
    """Multiply-accumulates with hidden states."""
    return _batch(call) * _steps(call) * call.inputs[1].numel


def work(call: Call) -> int:
    """Loop steps of all threads."""
    return macs(call) + call.inputs[0].numel


def padded(units: int, lanes: int) -> int:
    """Number of items of `lanes` hidden states, zeros to whole turns included."""
    return -(-units // (lanes * PACE)) * PACE


def pack_weight(call: Call, weight: Array, lanes: int) -> Array:
    """(items, gates, units, lanes): the threads of a workgroup read adjacent numbers."""
    units = weight.shape[1]
    long = np.pad(weight, ((0, 0), (0, padded(units, lanes) * lanes - units)))
    return np.ascontiguousarray(long.reshape(-1, units, padded(units, lanes), lanes).transpose(2, 0, 1, 3))


def params(call: Call, lanes: int) -> Params:
    """Uniform fields of every kernel, for items of `lanes` hidden states."""
    return {
        "items": np.uint32(padded(_units(call), lanes)),
        "batch": np.uint32(_batch(call)),
        "steps": np.uint32(_steps(call)),
        "reverse": np.uint32(call.attrs["reverse"]),
        "batch_first": np.uint32(call.attrs["batch_first"]),
    }


def kernels(name: str, cell: str, files: Sequence[str], lanes: int, **options: Any) -> tuple[Kernel, ...]:
    """The kernels of a layer, a workgroup for each row of the batch: one of few threads for few units, one of more."""

    def supports(call: Call, target: Target, threads: int) -> bool:
        return (_units(call) <= SMALL) == (threads == SMALL)

    def source(call: Call) -> tuple[str, ...]:
        kept = call.attrs["result"]
        return "recurrent", *files, f"keep_step=keep_step_of_{kept}", f"keep_end=keep_end_of_{kept}"

    def constants(call: Call, threads: int) -> dict[str, int]:
        found = padded(_units(call), lanes)
        return {"UNITS": _units(call), "ITEMS": found, "THREADS": threads, "GATES": CELLS[cell].gates, "PACE": PACE}

    def turns(call: Call, threads: int) -> int:
        """Of the steps, and in each of the product and of what packs; a loop takes one more to end."""
        found = padded(_units(call), lanes)
        product, pack = found // PACE + 1, -(-found // threads) + 1
        return pack + 1 + _steps(call) * (1 + -(-_units(call) // threads) * product + pack)

    def grid(call: Call, layout: Layout, threads: int) -> tuple[int, int, int]:
        return _batch(call) * threads, 1, 1

    return tuple(
        Kernel(
            name + suffix,
            source,
            supports=functools.partial(supports, threads=threads),
            turns=functools.partial(turns, threads=threads),
            constants=functools.partial(constants, threads=threads),
            threads=functools.partial(grid, threads=threads),
            workgroup=(threads, 1, 1),
            unrolled=lambda target: True,  # loops of fixed turns: `turns` does not count them
            **options,
        )
        for suffix, threads in ((".small", SMALL), ("", LARGE))
    )
