"""A graph while a pass changes it: who writes a value, who reads it, and the edits that passes are made of.

Every value has one name and one node that writes it, and nodes stay in execution order, so an edit is local: it takes
the time of the nodes it names. What an edit leaves unread is dropped at once, with all that was computed for it alone:
"read by one node" is always an answer about the graph as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Graph, Node, TensorType


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
        # Each node's value, after those of the nodes inserted before it: short lists, in execution order.
        self._order = [[node.output] for node in graph.nodes]
        self._inserted = {names[0]: names for names in self._order}

    def commit(self) -> None:
        """Writes the nodes back to the graph, in execution order."""
        self.graph.nodes = list(self.nodes())

    def nodes(self) -> Iterator[Node]:
        """The nodes in execution order, each as it is when its turn comes; a pass may edit meanwhile.

        What is inserted before the present node is not visited.
        """
        return self._visit(list(names) for names in self._order)

    def backwards(self) -> Iterator[Node]:
        """The nodes against execution order, as `nodes` gives them."""
        return self._visit(names[::-1] for names in reversed(self._order))

    def _visit(self, groups: Iterable[list[str]]) -> Iterator[Node]:
        for names in groups:
            for name in names:
                if name in self._nodes:
                    yield self._nodes[name]

    # --- questions ---

    def producer(self, name: str) -> Node | None:
        """The node that writes a value; None for inputs and constants."""
        return self._nodes.get(name)

    def readers(self, name: str) -> list[Node]:
        """The nodes that read a value, each once however often it reads it."""
        return [self._nodes[reader] for reader in self._readers[name]]

    def only_reader(self, name: str) -> Node | None:
        """The node that alone reads a value; None if more do, or none, or the graph gives the value out."""
        alone = len(self._readers[name]) == 1 and name not in self._outputs
        return self.readers(name)[0] if alone else None

    def only_producer(self, name: str) -> Node | None:
        """The node that writes a value for one reader alone, so that both can become one node."""
        return self.producer(name) if self.only_reader(name) is not None else None

    # --- edits ---

    def insert(self, before: Node, op: str, inputs: tuple[str, ...], attrs: Attrs, to: TensorType, hint: str) -> str:
        """Adds a node before another one, from the same place in the user's model; returns its value's name."""
        name = self.graph.fresh(hint)
        self.graph.types[name] = to
        names = self._inserted[name] = self._inserted[before.output]
        names.insert(names.index(before.output), name)
        self._nodes[name] = Node(op, inputs, name, attrs, before.source)
        self._read(self._nodes[name])
        return name

    def replace(self, node: Node, by: Node) -> Node:
        """Computes a node's value as `by` does, from values written before `node`; returns the node that does so."""
        new = self._nodes[node.output] = replace(by, output=node.output)
        self._read(new)
        self._unread(node.output, set(node.inputs).difference(by.inputs))
        return new

    def alias(self, old: str, new: str) -> None:
        """Lets all that reads a value read another one of the same type, written before it."""
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
        """Turns a node's value into a constant."""
        self.graph.constants[node.output] = np.asarray(array, order="C")
        self._drop(node)

    # --- who reads what ---

    def _read(self, node: Node) -> None:
        for name in node.inputs:
            self._readers[name][node.output] = None

    def _drop(self, node: Node) -> None:
        del self._nodes[node.output]
        self._unread(node.output, set(node.inputs))

    def _unread(self, reader: str, names: set[str]) -> None:
        """`reader` reads these values no more: drops what is left unread, and what only that read."""
        left = [(reader, names)]
        while left:
            reader, names = left.pop()
            for name in names:
                del self._readers[name][reader]
                node = self._nodes.get(name)
                if node is not None and not self._readers[name] and name not in self._outputs:
                    del self._nodes[name]
                    left.append((name, set(node.inputs)))
