"""Code that float32 and int8 layers share: attributes, the shape rule, and kernels that run the steps of a row in a
workgroup."""

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
    "result": Attr("enum", choices=("sequence", "state", "both")),
    "shifts": Attr("ints", low=0, high=12, length=2),
}
"""* `reverse`: the last step is run first.
* `batch_first`: dimension 0 is the batch and dimension 1 the steps; else the other way round.
* `result`: 'sequence', the hidden states of all steps, or 'state', the state after the last step (batch, units), which
  is the cell state of lstm and the hidden state of gru; or 'both' in float32: the sequence, with the state as one more
  step behind it.
* `shifts`: `cells.Shifts` of the int8 form."""

MOST_UNITS = 2000
"""The most hidden units, since workgroup memory holds their states."""

PACE = 8
"""Items of hidden states in a turn of the product's loop, which is unrolled."""

BLOCK = 8
"""Units whose weights lie together, so that the threads of a CPU's vector go forward through memory. With all units in
a row an LSTM of 768 units takes 2.2 times as long on lavapipe in int8, and 2.5 times in float32."""

SMALL, LARGE = 64, 256
"""Threads of a workgroup. A thread computes one unit at a time."""


def infer(cell: str, pre: Shape, weight: Shape, bias: Shape, first: Sequence[Shape], attrs: Attrs) -> Shape:
    """The shape of a layer's result.

    Args:
        cell: 'lstm' or 'gru'.
        pre: shape of the projected input.
        weight, bias: shapes of the recurrent weight (gates * units, units) and its bias (gates * units,).
        first: shapes of the first states, (batch, units) or (1, units).
        attrs: attributes of SCHEMA.

    Raises:
        GraphError: shapes do not fit, or there are more than MOST_UNITS units.
    """
    gates, units = CELLS[cell].gates, weight[-1] if weight else 0
    if len(pre) != 3 or weight != (gates * units, units) or bias != (gates * units,) or pre[2] != gates * units:
        raise GraphError(f"{cell} of {pre} with weight {weight} and bias {bias}: each has {gates} gates of all units")
    if not 0 < units <= MOST_UNITS:
        raise GraphError(f"{cell} takes up to {MOST_UNITS} hidden units, found {units}")
    batch = pre[0] if attrs["batch_first"] else pre[1]
    if any(shape not in ((1, units), (batch, units)) for shape in first):
        raise GraphError(f"{cell} of {pre} begins with states of {(batch, units)}, found {list(first)}")
    if attrs["result"] == "state":
        return batch, units
    steps = (pre[1] if attrs["batch_first"] else pre[0]) + (attrs["result"] == "both")
    return (batch, steps, units) if attrs["batch_first"] else (steps, batch, units)


def steps_first(x: Array, attrs: Attrs) -> Array:
    """A sequence in the order of the attributes, with its steps moved to dimension 0. It is its own inverse."""
    return np.swapaxes(x, 0, 1) if attrs["batch_first"] else x


def result(call: Call, sequence: Array, last: Array) -> Array:
    """The result of a call, of its hidden states (steps, batch, units) and its last state (batch, units)."""
    if call.attrs["result"] == "state":
        return last
    found = np.concatenate([sequence, last[None]]) if call.attrs["result"] == "both" else sequence
    return steps_first(found, call.attrs)


def _batch(call: Call) -> int:
    return call.inputs[0].shape[0 if call.attrs["batch_first"] else 1]


def _steps(call: Call) -> int:
    return call.inputs[0].shape[1 if call.attrs["batch_first"] else 0]


def _units(call: Call) -> int:
    return call.output.shape[-1]


def macs(call: Call) -> int:
    """The number of multiply-accumulates of a call: those with hidden states."""
    return _batch(call) * _steps(call) * call.inputs[1].numel


def work(call: Call) -> int:
    """`Op.work`: loop steps of all threads."""
    return macs(call) + call.inputs[0].numel


def padded(units: int, lanes: int) -> int:
    """The number of items, of `lanes` hidden states each, padded to whole turns of PACE items."""
    return -(-units // (lanes * PACE)) * PACE


def pack_weight(call: Call, weight: Array, lanes: int) -> Array:
    """The weight (gates * units, units) as (blocks, items / 4, gates, BLOCK, 4 * lanes): a unit's weights of four items
    are a vector, as `vector_at` in recurrent.wgsl says."""
    units, items = weight.shape[1], padded(weight.shape[1], lanes)
    full = np.pad(weight.reshape(-1, units, units), ((0, 0), (0, -units % BLOCK), (0, items * lanes - units)))
    parts = full.reshape(len(full), -1, BLOCK, items // 4, 4 * lanes)
    return np.ascontiguousarray(parts.transpose(1, 3, 0, 2, 4))


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
    """The kernels of a layer, which have a workgroup for each row of the batch: one with SMALL threads for few units,
    one with LARGE threads.

    Args:
        name: of the operator.
        cell: 'lstm' or 'gru'.
        files: WGSL files.
        lanes: hidden states of an item.
        options: more fields of Kernel.
    """

    def supports(call: Call, target: Target, threads: int) -> bool:
        return (_units(call) <= SMALL) == (threads == SMALL)

    def source(call: Call) -> tuple[str, ...]:
        result = call.attrs["result"]
        step = "sequence" if result == "both" else result
        step = "real_sequence" if lanes > 1 and step == "sequence" and call.output.q is None else step
        return "recurrent", *files, f"store_step=store_step_of_{step}", f"store_end=store_end_of_{result}"

    def constants(call: Call, threads: int) -> dict[str, int]:
        found = padded(_units(call), lanes)
        return {"UNITS": _units(call), "ITEMS": found, "THREADS": threads, "GATES": CELLS[cell].gates, "PACE": PACE}

    def turns(call: Call, threads: int) -> int:
        """Turns of the loops over steps, and in each step over the product and over items. Each loop has one more turn
        for its end."""
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
            wide=lambda call: ("weight",),
            unrolled=lambda target: True,  # loops with a fixed number of turns, which `turns` does not count
            **options,
        )
        for suffix, threads in ((".small", SMALL), ("", LARGE))
    )
