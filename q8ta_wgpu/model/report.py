"""What became of a model: counts, float islands, notes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT16X4, RANGES, Graph, Node


@dataclass(frozen=True)
class Report:
    """The outcome of compilation.

    Attributes:
        int8: compute nodes per operator, with the stages behind a weighted sum, that run in int8 or int16.
        int16: how many values of nodes are int16.
        float32: compute nodes per operator that run in float32.
        islands: float32 nodes that lie between int8 values, so that data leaves int8 and comes back.
        borders: nodes between float32 and int8: quantize, dequantize, and int8 operators that read or write float32.
        exact: whether every value is the same byte on every device (no float operator but the borders).
        weight_bytes: size of all constants.
        notes: what the passes had to say.
    """

    int8: dict[str, int]
    int16: int
    float32: dict[str, int]
    islands: tuple[str, ...]
    borders: int
    exact: bool
    weight_bytes: int
    notes: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> Report:
        """Reads a runnable graph."""
        int8: Counter[str] = Counter()
        floats: Counter[str] = Counter()
        borders = 0
        after_int8: dict[str, bool] = {}
        float_nodes: list[str] = []
        for node in graph.nodes:
            after_int8[node.output] = _reads_int8(graph, node) or any(after_int8.get(i, False) for i in node.inputs)
            if node.op in ("quantize", "dequantize"):
                borders += 1
            elif _reads_int8(graph, node):
                int8[_described(node)] += 1
                borders += graph.types[node.output].dtype == FLOAT32
                borders += _reads_float(graph, node)
            else:
                floats[node.op] += 1
                float_nodes.append(node.output)
        before_int8 = _before_int8(graph)
        islands = tuple(name for name in float_nodes if after_int8[name] and name in before_int8)
        weights = sum(array.nbytes for array in graph.constants.values())
        int16 = sum(graph.types[node.output].dtype == INT16X4 for node in graph.nodes)
        return Report(dict(int8), int16, dict(floats), islands, borders, not floats, weights, tuple(graph.notes))

    def __str__(self) -> str:
        def listed(counts: dict[str, int]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda i: (-i[1], i[0])))

        total = sum(self.int8.values()) + sum(self.float32.values())
        lines = [
            f"{sum(self.int8.values())} of {total} compute nodes in int8: {listed(self.int8) or 'none'}",
            *([f"{self.int16} values between nodes are int16"] if self.int16 else []),
            f"{sum(self.float32.values())} in float32: {listed(self.float32) or 'none'}",
            f"{len(self.islands)} float islands between int8 values"
            + (f": {', '.join(self.islands)}" if self.islands else ""),
            f"{self.borders} borders between float32 and int8, weights {self.weight_bytes / 1e6:.2f} MB",
            "the same bytes on every device"
            if self.exact
            else "the same bytes on every device up to the first float32 node, which has a tolerance",
        ]
        return "\n".join([*lines, *self.notes])


def _described(node: Node) -> str:
    """The operator, and the stages of its epilogue where it has more than rounding."""
    stages = node.attrs["epilogue"].label if "epilogue" in node.attrs else "requantize"
    return node.op if stages == "requantize" else f"{node.op} ({stages})"


def _reads_int8(graph: Graph, node: Node) -> bool:
    """Whether a node computes with int8: activations, or the weights of what quantizes its float32 input itself."""
    return any(graph.types[name].dtype in (INT8, *RANGES) for name in node.inputs)


def _reads_float(graph: Graph, node: Node) -> bool:
    """Whether an activation of a node is float32."""
    return any(graph.types[name].dtype == FLOAT32 and name not in graph.constants for name in node.inputs)


def _before_int8(graph: Graph) -> set[str]:
    """Values from which an int8 value is computed."""
    before: set[str] = set()
    for node in reversed(graph.nodes):
        if node.output in before or graph.types[node.output].dtype in RANGES or _reads_int8(graph, node):
            before.update(name for name in node.inputs if graph.types[name].dtype == FLOAT32)
    return before
