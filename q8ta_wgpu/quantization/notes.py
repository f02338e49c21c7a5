"""What a report says of values that are stored in more than 8 bits."""

from __future__ import annotations

from collections.abc import Iterable

from q8ta_wgpu.ir.decision import share_of
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.quantization.steps import Step
from q8ta_wgpu.quantization.stored import StoredValues, Table


def note(graph: Graph, values: StoredValues, steps: Iterable[Step]) -> None:
    """Adds to a quantized graph a sentence for each step, and why values are not rounded."""
    for step in steps:
        name = step.reading[0].values[0]
        graph.notes.append(sentence(step, values))
        if step.width == "float32":
            graph.values.set(name, unrounded=step.reason)
            reading = values.readers_of(*step.reading)
            stays = {node.output: step.reason for node in reading if node.output in values.transforms}
            graph.values.leave_in_float(stays)


def sentence(step: Step, values: StoredValues) -> str:
    """How a value is stored, why, and at what cost."""
    name = step.reading[0].values[0]
    how = "is not rounded" if step.width == "float32" else f"is stored in {step.width}"
    alone = f": here alone they would make {share_of(step.noise)} the noise that the outputs should have at most"
    most = alone if step.noise else ""
    made = values.producers.get(name)
    if isinstance(step.reading[0], Table):
        made = values.readers_of(*step.reading)[0]
        how = f"reads a table of int16 {step.reason}{most}"
        return f"{made.output}: {how}, for {_bytes(step.cost)} more to store{made.origin}"
    return f"{name}: {how} {step.reason}{most}, for {_bytes(step.cost)} more to move{made.origin if made else ''}"


def _bytes(cost: float) -> str:
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"
