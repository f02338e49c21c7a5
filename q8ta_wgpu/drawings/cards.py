"""The cards of a drawing: one for every input, dispatch, free view and output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import FLOAT32, Graph
from q8ta_wgpu.model.report import Report
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.program.program import Dispatch, Program


@dataclass(frozen=True)
class Card:
    """One box.

    Attributes:
        value: the value it writes; for an output card, the value it takes.
        kind: 'input', 'output', 'int8', 'float' (computes in float32), 'border' (between float32 and int8),
            'transition' (a copy that layout sync inserted) or 'view' (another name of the same buffer).
        title: the kernel's name, or the operator's where nothing is dispatched.
        type: dtype and shape of the value, with scale and zero point.
        layout: how the value is stored.
        reads: the values it reads that other cards write.
        stages: the stages of a weighted sum's epilogue.
        source: its place in the user's model.
        reason: why it computes in float32, where int8 was possible.
        island: whether it is a float operator between int8 values.
        dispatch: its index in the program; None where nothing is dispatched.
        microseconds: measured time; None without one.
    """

    value: str
    kind: str
    title: str
    type: str
    layout: str
    reads: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    source: str = ""
    reason: str = ""
    island: bool = False
    dispatch: int | None = None
    microseconds: float | None = None


@dataclass(frozen=True)
class Picture:
    """The cards of a model planned for a target, and its program."""

    title: str
    cards: tuple[Card, ...]
    program: Program

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(writing card, reading card) for every value that a card reads, once."""
        writer = {card.value: i for i, card in enumerate(self.cards) if card.kind != "output"}
        pairs = ((writer[name], i) for i, card in enumerate(self.cards) for name in card.reads if name in writer)
        return list(dict.fromkeys(pairs))

    @property
    def microseconds(self) -> float:
        """The sum of all measured times; 0 without any."""
        return sum(card.microseconds or 0.0 for card in self.cards)


def picture(
    title: str, graph: Graph, plan: Plan, program: Program, report: Report, times: Sequence[float] | None = None
) -> Picture:
    """The cards of a lowered `graph` under a plan and its program.

    Args:
        title: the title.
        graph, plan, program: what is drawn.
        report: the model's report, for float islands and their reasons.
        times: microseconds of every dispatch.
    """
    cards = [_plain(graph, plan, name, "input", "input") for name in graph.inputs]
    cards += [
        _plain(graph, plan, node.output, "view", node.op, (plan.aliases[node.output],), node.source)
        for node in graph.nodes
        if node.output in plan.aliases
    ]
    for number, (step, dispatch) in enumerate(zip(plan.steps, program.dispatches, strict=True)):
        cards.append(
            _dispatched(graph, report, step, dispatch, number, None if times is None else float(times[number]))
        )
    cards += [_plain(graph, plan, name, "output", "output", (name,)) for name in graph.outputs]
    return Picture(title, tuple(cards), program)


def _plain(
    graph: Graph, plan: Plan, name: str, kind: str, title: str, reads: tuple[str, ...] = (), source: str = ""
) -> Card:
    layout = plan.layouts[name].short if name in plan.layouts else "constant"
    return Card(name, kind, title, str(graph.types[name]), layout, reads, source=source)


def _dispatched(
    graph: Graph, report: Report, step: Step, dispatch: Dispatch, number: int, microseconds: float | None
) -> Card:
    kind = _kind(graph, step)
    return Card(
        value=dispatch.value,
        kind=kind,
        title=dispatch.kernel,
        type=str(step.call.output),
        layout=dispatch.layouts[-1],
        reads=tuple(name for name in step.node.inputs if name not in graph.constants),
        stages=tuple(filter(None, dispatch.stages.split(" -> "))),
        source=dispatch.source,
        reason=_reason(report, dispatch.value) if kind == "float" else "",
        island=dispatch.value in report.islands,
        dispatch=number,
        microseconds=microseconds,
    )


def _kind(graph: Graph, step: Step) -> str:
    """Whether a step computes with float32 only, int8 only, or both."""
    if step.node.op == "q8ta_clone" and step.node.output not in graph.types:
        return "transition"
    named = zip(step.call.inputs, step.node.inputs, strict=True)
    moved = [step.call.output, *(t for t, name in named if name not in graph.constants)]
    if all(t.dtype == FLOAT32 for t in (*step.call.inputs, step.call.output)):
        return "float"
    return "border" if any(t.dtype == FLOAT32 for t in moved) else "int8"


def _reason(report: Report, value: str) -> str:
    """The note about a value that stays in float32."""
    return next((note.partition(": ")[2] for note in report.notes if note.startswith(f"{value}: ")), "")
