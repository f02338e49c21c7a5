"""The record of how a quantized graph stores each value, and why: what `explain` and the report read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.quantization.precision import Precision
from q8ta_wgpu.quantization.steps import Step
from q8ta_wgpu.quantization.stored import ROLES, WIDTHS, Reading, StoredValues, Width


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


def write_record(graph: Graph, values: StoredValues, found: Precision, readings: Iterable[Reading]) -> None:
    """Writes into a quantized graph how it stores each value, and why values and operators stay in float32.

    Args:
        graph: the quantized graph.
        values: what is stored.
        found: what was decided.
        readings: those that the record is of.
    """
    steps, chosen = {step.reading: step for step in found.steps}, found.chosen
    for stored, role in readings:
        width = min((stored.width_for(edge, chosen) for edge in stored.edges(role)), key=WIDTHS.index)
        same = [steps[stored, r] for r in (role, *ROLES) if (stored, r) in steps]
        step = next((step for step in same if step.width == width), None)
        decision = _decision(values, (stored, role), width, step, found)
        graph.decisions.append(decision)
        if width == "float32":
            graph.values.set(stored.values[0], unrounded=decision.reason)
            readers = (node.output for node in values.readers_of(stored, role))
            graph.values.leave_in_float({n: decision.reason for n in readers if n in values.transforms})


def _decision(values: StoredValues, reading: Reading, width: Width, step: Step | None, found: Precision) -> Decision:
    """The decision about a reading. `step`: the one that led to its width; None where the plan did."""
    stored, role = reading
    matched = found.matched.get(reading, ())
    made = values.producers.get(stored.values[0])
    return Decision(
        values=tuple(stored.values),
        role=role,
        width=width,
        by="plan" if step is None else step.rule or "noise",
        reason=step.reason if step is not None else "",
        matched=tuple(dict.fromkeys(each.rule for each in matched)),
        noise=found.noise.get(reading),
        cost=float(step.cost) if step is not None and step.reading == reading else 0.0,
        narrow=max((each.width for each in matched), key=WIDTHS.index, default=stored.width),
        source=made.source if made is not None else "",
    )
