"""The record of how a quantized graph stores each value, and why: what `explain` and the report read.

The widths are those that the graph has. What was decided says only why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Graph, Node
from q8ta_wgpu.quantization.precision import Precision
from q8ta_wgpu.quantization.steps import Step
from q8ta_wgpu.quantization.stored import RESULT, ROLES, WIDTHS, Edge, Reading, Shares, StoredValues, Table, Width

_WIDTHS: Mapping[str, Width] = {INT8X4: "int8", INT16X4: "int16"}


def between(made: Mapping[str, Node], name: str, read: str) -> Iterator[Node]:
    """The nodes of a quantized graph from what is read of a float value back to the value: the last one first.

    Args:
        made: the graph's nodes, by output.
        name: the value.
        read: the name under which it is read.
    """
    while read != name:
        node = made[read]
        yield node
        read = node.inputs[0]


def widths_of(values: StoredValues, graph: Graph) -> dict[Edge, Width]:
    """The width in which a quantized graph stores what each edge reads."""
    made = {node.output: node for node in graph.nodes}
    pairs = [
        ((values.calls[node.output], name), read)
        for node in values.graph.nodes
        for name, read in zip(node.inputs, made[node.output].inputs, strict=True)
    ]
    pairs += [((RESULT, name), read) for name, read in zip(values.graph.outputs, graph.outputs, strict=True)]
    found: dict[Edge, Width] = {}
    for edge, read in pairs:
        stored = values.edges.get(edge)
        if isinstance(stored, Table):
            found[edge] = _width_of_table(made, graph, stored, read)
        elif stored is not None:
            rounded = (node.output for node in between(made, edge[1], read) if node.op == "quantize")
            kept: Width = "int8" if isinstance(stored, Shares) else "float32"  # shares of 8 bits are attention's own
            found[edge] = next((_WIDTHS[graph.types[name].dtype] for name in rounded), kept)
    return found


def write_record(graph: Graph, values: StoredValues, widths: Mapping[Edge, Width], found: Precision) -> None:
    """Writes into a quantized graph how it stores each value, and why values and operators stay in float32.

    Args:
        graph: the quantized graph.
        values: what is stored.
        widths: of edges. Those without one are no part of the record.
        found: what was decided.
    """
    steps = {step.reading: step for step in found.steps}
    for stored in values.stored:
        for role in ROLES:
            own = [widths[edge] for edge in stored.edges(role) if edge in widths]
            if not own or not stored.values:
                continue
            width = min(own, key=WIDTHS.index)
            same = [steps[stored, r] for r in (role, *ROLES) if (stored, r) in steps]
            step = next((step for step in same if step.width == width), None)
            decision = _decision(values, (stored, role), width, step, found)
            graph.decisions.append(decision)
            if width == "float32":
                graph.values.set(stored.values[0], unrounded=decision.reason)
                readers = (node.output for node in values.readers_of(stored, role))
                graph.values.leave_in_float({n: decision.reason for n in readers if n in values.transforms})


def _decision(values: StoredValues, reading: Reading, width: Width, step: Step | None, found: Precision) -> Decision:
    """The decision about a reading. `step`: the one that led to its width; None where none did."""
    stored, role = reading
    matched = found.matched.get(reading, ())
    made = values.producers.get(stored.values[0])
    by = ("plan" if width == stored.width else "written") if step is None else step.rule or "noise"
    return Decision(
        values=tuple(stored.values),
        role=role,
        width=width,
        by=by,
        reason=step.reason if step is not None else "",
        matched=tuple(dict.fromkeys(each.rule for each in matched)),
        noise=found.noise.get(reading),
        cost=float(step.cost) if step is not None and step.reading == reading else 0.0,
        narrow=max((each.width for each in matched), key=WIDTHS.index, default=stored.width),
        source=made.source if made is not None else "",
    )


def _width_of_table(made: Mapping[str, Node], graph: Graph, table: Table, read: str) -> Width:
    """The width of a table's rows. Those of 4 bits are integers in int16, too."""
    if read in table.values:
        return "float32"
    return "int8" if table.fixed or graph.constants[made[read].inputs[0]].dtype == np.int8 else "int16"
