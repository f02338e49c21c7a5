"""The report of a model: how many operators run in int8 and in float32, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from q8ta_wgpu.errors import counted
from q8ta_wgpu.ir.decision import Decision, share_of, size_of
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT16X4, INT32, RANGES, Graph, Node
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.kernels import OPS

_LISTED = 4
"""The most names in a line."""


@dataclass(frozen=True)
class Report:
    """The report of a model, to print.

    Attributes:
        int8: number of compute nodes in int8 or int16, by operator with the stages of its epilogue.
        int16: number of int16 values that nodes write.
        macs: multiply-adds in int8, and in total.
        float32: number of compute nodes in float32, by operator.
        islands: names of float32 nodes between int8 values: data is dequantized for them and quantized again.
        borders: number of nodes between float32 and int8: quantize, dequantize, and int8 operators that read or write
            float32.
        exact: whether all bytes are the same on every device. Then the only float operators are borders and those that
            move elements.
        weight_bytes: size of all constants.
        widened: the values that are stored in more bits than the operators around them ask for.
        reasons: notes on these, of the passes and on islands, by cause. Each names a value and its place in the user's
            model.
        states: name, stored dtype and shape of each state that is kept from call to call.
        details: whether `print` shows every note. Otherwise it shows a line for each reason.
    """

    int8: dict[str, int]
    int16: int
    macs: tuple[int, int]
    float32: dict[str, int]
    islands: tuple[str, ...]
    borders: int
    exact: bool
    weight_bytes: int
    widened: tuple[Decision, ...]
    reasons: dict[str, tuple[str, ...]]
    states: tuple[str, ...] = ()
    details: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes, without their causes."""
        return tuple(note for notes in self.reasons.values() for note in notes)

    @staticmethod
    def of(graph: Graph, details: bool = False) -> Report:
        """The report of a runnable graph."""
        int8: Counter[str] = Counter()
        floats: Counter[str] = Counter()
        borders = 0
        after_int8: dict[str, bool] = {}
        float_nodes: list[str] = []
        for node in graph.nodes:
            after_int8[node.output] = _has_int8(graph, node) or any(after_int8.get(i, False) for i in node.inputs)
            if node.op in ("quantize", "dequantize"):
                borders += 1
            elif _has_int8(graph, node):
                int8[_described(graph, node)] += 1
                borders += graph.types[node.output].dtype == FLOAT32
                borders += _reads_float(graph, node)
            else:
                floats[node.op] += 1
                float_nodes.append(node.output)
        before_int8 = _before_int8(graph)
        islands = tuple(name for name in float_nodes if after_int8[name] and name in before_int8)
        weights = sum(array.nbytes for array in graph.constants.values())
        int16 = sum(graph.types[node.output].dtype == INT16X4 for node in graph.nodes)
        widened = tuple(decision for decision in graph.decisions if decision.is_widened)
        reasons = _reasons(graph, widened, islands)
        states = tuple(f"{s.name} {graph.types[s.read].dtype}[{graph.sizes(s.read)}]" for s in graph.states)
        exact = all(isinstance(OPS[op].int8, Moves) for op in floats)
        counts = dict(int8), int16, _macs(graph), dict(floats)
        return Report(*counts, islands, borders, exact, weights, widened, reasons, states, details)

    def __str__(self) -> str:
        def listed(counts: dict[str, int]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda i: (-i[1], i[0])))

        total = sum(self.int8.values()) + sum(self.float32.values())
        nodes = counted(total, "compute node")
        lines = [f"{sum(self.int8.values())} of {nodes} in int8: {listed(self.int8) or 'none'}"]
        if self.macs[1]:
            lines.append(f"{100 * self.macs[0] / self.macs[1]:.1f} % of {_digits(self.macs[1])} multiply-adds in int8")
        if self.states:
            lines.append(f"from call to call stay {', '.join(self.states)}")
        if self.int16:
            lines.append(f"{counted(self.int16, 'int16 value')} between nodes")
        lines += [
            f"{sum(self.float32.values())} in float32: {listed(self.float32) or 'none'}",
            f"{counted(len(self.islands), 'float island')} between int8 values"
            + (f": {', '.join(self.islands)}" if self.islands else ""),
            f"{counted(self.borders, 'border')} between float32 and int8, weights {self.weight_bytes / 1e6:.2f} MB",
            "the same bytes on every device"
            if self.exact
            else "the same bytes on every device up to the first float32 node, which has a tolerance",
        ]
        return "\n".join([*lines, *(self.notes if self.details else self._grouped())])

    def _grouped(self) -> list[str]:
        """A line for each reason: what is stored in more than 8 bits together, of other notes the first."""
        causes = {_cause_of(each) for each in self.widened}
        others = [notes for cause, notes in self.reasons.items() if cause not in causes]
        return [*together(self.widened), *(f"{n}, and {len(more)} more" if more else n for n, *more in others)]


def together(decisions: Iterable[Decision]) -> list[str]:
    """What a report says of values in more than 8 bits, a line for all that are alike: how many values, at what cost,
    and which they are, the costliest first."""
    groups: dict[str, list[Decision]] = {}
    for each in decisions:
        groups.setdefault(_cause_of(each), []).append(each)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Decision]) -> str:
    first, *others = group
    if not others:
        return first.note
    names = [each.values[0] for each in sorted(group, key=lambda each: -each.cost)]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    noise = min(each.noise or 0.0 for each in group)
    alone = f": alone each would make at least {share_of(noise)} the noise that outputs may have" if noise else ""
    return (
        f"{len(group)} values: each {_cause_of(first)}{alone}, for "
        f"{size_of(sum(each.cost for each in group))} more: {', '.join(names[:_LISTED])}{more}"
    )


def _described(graph: Graph, node: Node) -> str:
    """The name of a node's operator, with " of 4 bits" for such a weight, and the stages of its epilogue besides
    rounding."""
    stages = node.attrs["epilogue"].label if "epilogue" in node.attrs else "requantize"
    weight = graph.types[node.inputs[1]] if "epilogue" in node.attrs else None
    bits = " of 4 bits" if weight is not None and weight.dtype == INT8 and len(weight.shape) == 3 else ""
    return f"{node.op}{bits}" if stages == "requantize" else f"{node.op}{bits} ({stages})"


def _has_int8(graph: Graph, node: Node) -> bool:
    """Whether a node has an integer operand or result. An int8 operator that reads float32 has integer weights."""
    found = any(graph.types[name].dtype in (INT8, *RANGES) for name in (*node.inputs, node.output))
    return found or any(graph.types[name].dtype == INT32 for name in node.inputs if name not in graph.constants)


def _reads_float(graph: Graph, node: Node) -> bool:
    """Whether a node reads a float32 activation."""
    return any(graph.types[name].dtype == FLOAT32 and name not in graph.constants for name in node.inputs)


def _before_int8(graph: Graph) -> set[str]:
    """Names of float32 values from which an int8 value is computed."""
    before: set[str] = set()
    for node in reversed(graph.nodes):
        if node.output in before or graph.types[node.output].dtype in RANGES or _has_int8(graph, node):
            before.update(name for name in node.inputs if graph.types[name].dtype == FLOAT32)
    return before


def _macs(graph: Graph) -> tuple[int, int]:
    """Multiply-adds of the int8 nodes, and of all nodes."""
    int8 = count = 0
    for node in graph.nodes:
        work = OPS[node.op].macs(graph.call(node))
        count += work
        int8 += work if _has_int8(graph, node) else 0
    return int8, count


def _digits(number: int) -> str:
    """A number with three significant digits and a unit: 4.09 G."""
    unit, name = next(((u, n) for u, n in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if number >= u), (1.0, ""))
    return f"{number / unit:.3g}{name}"


def _cause_of(widened: Decision) -> str:
    return f"{widened.how} {widened.reason}"


def _reasons(graph: Graph, widened: Sequence[Decision], islands: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """A note on each value that is widened, the notes of a graph, and a note on each other island, by cause."""
    producers = {node.output: node for node in graph.nodes}
    found: dict[str, list[str]] = {}
    for each in widened:
        found.setdefault(_cause_of(each), []).append(each.note)
    for note in graph.notes:
        name, _, text = note.partition(": ")
        cause, _, detail = text.partition("; ")
        cause = cause if detail else text.removesuffix(producers[name].origin) if name in producers else note
        found.setdefault(cause, []).append(note)
    noted = {note.partition(": ")[0] for note in graph.notes if " stays in float32: " in note}
    for name in islands:
        if name not in noted:
            cause = f"{producers[name].op} stays in float32: {_cause(graph, producers, producers[name])}"
            found.setdefault(cause, []).append(f"{name}: {cause}{producers[name].origin}")
    return {cause: tuple(notes) for cause, notes in found.items()}


def _cause(graph: Graph, producers: dict[str, Node], node: Node) -> str:
    """The cause of an island on which no pass made a note: it is not quantized on both sides."""
    if reason := graph.values[node.output].in_float:
        return reason
    if OPS[node.op].int8 is None:
        return "it has no int8 form"
    for name in node.inputs:
        source = producers[name].op if name in producers else "input"
        if name not in graph.constants and graph.types[name].dtype == FLOAT32 and source != "dequantize":
            why = f", {said}" if (said := graph.values[name].unrounded) else ""
            return f"it reads the result of {source} in float32{why}"
    readers = [reader.op for reader in graph.nodes if node.output in reader.inputs and reader.op != "quantize"]
    return f"{readers[0]} reads its result in float32" if readers else "its scales have no int8 form in common"
