"""A graph while a pass changes it: the producer and the readers of each value, and five edits.

Each value has one name and one producer, and nodes stay in execution order, so the cost of an edit depends only on the
nodes it names. Nodes whose value nothing reads after an edit are dropped at once. So answers such as `only_reader` are
always about the present graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Graph, Node, QParams
from q8ta_wgpu.model.verify import infer


class Rewriter:
    """Edits the nodes and outputs of `graph`; the nodes are written back by `commit`.

    Types and constants are the graph's own, at once: a pass reads and adds them there.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes = {node.output: node for node in graph.nodes}
        self._readers: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for node in graph.nodes:
            self._read(node)
        self._outputs = set(graph.outputs)
        # For each original node a list, in execution order: the values inserted before it, then its own.
        self._order = [[node.output] for node in graph.nodes]
        self._list_of = {names[0]: names for names in self._order}

    def commit(self) -> None:
        """Writes the nodes back to the graph, in execution order."""
        self.graph.nodes = list(self.nodes())

    def nodes(self) -> Iterator[Node]:
        """The nodes in execution order. A pass may edit the graph between two of them: later nodes are given as edited,
        dropped ones are skipped, and those inserted before the present one are not visited."""
        return self._visit(list(names) for names in self._order)

    def backwards(self) -> Iterator[Node]:
        """The nodes in reverse execution order; otherwise as `nodes`."""
        return self._visit(names[::-1] for names in reversed(self._order))

    def _visit(self, groups: Iterable[list[str]]) -> Iterator[Node]:
        for names in groups:
            for name in names:
                if name in self._nodes:
                    yield self._nodes[name]

    # --- questions ---

    def producer(self, name: str) -> Node | None:
        """The node that computes a value; None for inputs and constants."""
        return self._nodes.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value, each once."""
        return [self._nodes[reader] for reader in self._readers[name]]

    def only_reader(self, name: str) -> Node | None:
        """The only node that reads a value; None if there are more or none, or the value is an output of the graph."""
        single = len(self._readers[name]) == 1 and name not in self._outputs
        return self.readers(name)[0] if single else None

    def only_producer(self, name: str) -> Node | None:
        """The node that computes a value, if the value has an only reader, so that both nodes can be fused."""
        return self.producer(name) if self.only_reader(name) is not None else None

    # --- edits ---

    def insert(
        self, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs, hint: str, q: QParams | None = None
    ) -> str:
        """Inserts a node before another one, whose place in the user's model it reports; returns its value's name. The
        value's type follows from its inputs; `q` is its scale and zero point where they are others."""
        node = Node(op, inputs, self.graph.fresh(hint), attrs, before.source)
        self.graph.types[node.output] = infer(self.graph, node, q)
        names = self._list_of[node.output] = self._list_of[before.output]
        names.insert(names.index(before.output), node.output)
        self._nodes[node.output] = node
        self._read(node)
        return node.output

    def read(self, reader: Node, old: str, new: str) -> Node:
        """Lets a node read another value wherever it reads `old`; returns the new node."""
        return self.replace(reader, replace(reader, inputs=tuple(new if n == old else n for n in reader.inputs)))

    def replace(self, node: Node, by: Node) -> Node:
        """Replaces a node by another one, which keeps the value's name; returns the new node.

        `by` may only read values that are computed before `node`.
        """
        new = self._nodes[node.output] = replace(by, output=node.output)
        self._read(new)
        self._unread(node.output, set(node.inputs).difference(by.inputs))
        return new

    def alias(self, old: str, new: str) -> None:
        """Redirects all readers of a value to another one of the same type, which must be computed before it."""
        for reader in self.readers(old):
            inputs = tuple(new if name == old else name for name in reader.inputs)
            self._nodes[reader.output] = replace(reader, inputs=inputs)
            self._readers[new][reader.output] = None
        del self._readers[old]
        if old in self._outputs:
            self._outputs.remove(old)
            self._outputs.add(new)
            self.graph.outputs = [new if name == old else name for name in self.graph.outputs]
        if old in self._nodes:
            self._drop(self._nodes[old])

    def make_constant(self, node: Node, array: Array) -> None:
        """Replaces a node by a constant of the same name."""
        self.graph.constants[node.output] = np.asarray(array, order="C")
        self._drop(node)

    # --- bookkeeping of readers ---

    def _read(self, node: Node) -> None:
        for name in node.inputs:
            self._readers[name][node.output] = None

    def _drop(self, node: Node) -> None:
        del self._nodes[node.output]
        self._unread(node.output, set(node.inputs))

    def _unread(self, reader: str, names: set[str]) -> None:
        """Notes that `reader` no longer reads these values; drops nodes that are unread then, recursively."""
        waiting = [(reader, names)]
        while waiting:
            reader, names = waiting.pop()
            for name in names:
                del self._readers[name][reader]
                node = self._nodes.get(name)
                if node is not None and not self._readers[name] and name not in self._outputs:
                    del self._nodes[name]
                    waiting.append((name, set(node.inputs)))
