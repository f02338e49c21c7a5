"""Names that a person knows: a value is called what made it in the user's program, such as `layer1.0.conv2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import Graph, Node
from q8ta_wgpu.ir.value import ValueInfos

_BORDERS = ("quantize", "dequantize")

_SOURCE = re.compile(r"(?P<module>[^ ()]+)(?: \(.+\))?")
"""`module.path (file.py:12)`, or one of both."""

_LINE = re.compile(r"[^ ]+\.py:\d+|<.*")


def user_names(graph: Graph) -> dict[str, str]:
    """The names of an imported graph's values, before passes change it. What a module computes has the module's path;
    where that is several operators, with the operator's name behind it: `layer1.0.add`. Operators of no module keep
    the names that torch or the file gives them. A value that is rounded or read again has the name of the value that
    it stands for."""
    by_module: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op not in _BORDERS and (module := _module(node)):
            by_module.setdefault(module, []).append(node)
    found, taken = dict[str, str](), {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        if node.op in _BORDERS:
            found[node.output] = found.get(node.inputs[0], node.inputs[0])
            continue
        module = _module(node)
        wanted = _wanted(module, node, by_module[module]) if module else node.output
        name, count = wanted, 1
        while name in taken:
            name, count = f"{wanted}_{count}", count + 1
        taken.add(name)
        found[node.output] = name
    return found


def _wanted(module: str, node: Node, beside: Sequence[Node]) -> str:
    """The path of a module, with a node's operator behind it where others are beside it or the path ends with a number,
    unless the path says it."""
    operators, last = {_operator(each) for each in beside}, module.rpartition(".")[2]
    alone = len(beside) == 1 and not last.isdecimal()
    return module if alone or (len(operators) == 1 and _operator(node) in last) else f"{module}.{_operator(node)}"


def _module(node: Node) -> str:
    """The path of the module that computes a node; empty where none is known."""
    return _module_of(node.source)


def _module_of(source: str) -> str:
    found = _SOURCE.fullmatch(source)
    return "" if found is None or _LINE.fullmatch(found["module"]) else found["module"]


def _operator(node: Node) -> str:
    """The name of a node's operator in the user's program, which its value is called after."""
    return _without_number(node.output.partition(".")[0])


def _without_number(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


def call_by(graph: Graph, names: Mapping[str, str]) -> None:
    """Gives the values of a graph, and those that it notes something about, the names that `user_names` found before
    passes changed it."""
    final, taken, results = dict[str, str](), {*graph.inputs, *graph.constants}, set(graph.outputs)
    for node in sorted(graph.nodes, key=lambda node: node.output not in results):  # results have the plain names
        wanted = _known(node.output, names)
        if wanted in taken:
            wanted += f".{graph.types[node.output].dtype.removesuffix('x4')}"
        name, count = wanted, 1
        while name in taken:
            name, count = f"{wanted}.{count}", count + 1
        taken.add(name)
        final[node.output] = name

    def said(name: str) -> str:
        return final.get(name) or names.get(name, name)

    graph.nodes = [
        replace(node, inputs=tuple(final.get(name, name) for name in node.inputs), output=final[node.output])
        for node in graph.nodes
    ]
    graph.types = {final.get(name, name): found for name, found in graph.types.items()}
    graph.outputs = [final.get(name, name) for name in graph.outputs]
    values = ValueInfos()
    for name, known in graph.values.items():
        values.set(said(name), **{key: found for key, found in vars(known).items() if found})
    graph.values = values
    notes = (note.partition(": ") for note in graph.notes)
    graph.notes = [said(name) + colon + text for name, colon, text in notes]
    graph.decisions = [_renamed(each, {**names, **final}) for each in graph.decisions]


def _renamed(decision: Decision, names: Mapping[str, str]) -> Decision:
    """A decision about values. Of one that is in the graph no longer, such as a softmax within an attention, the place
    says the module."""
    first, *others = decision.values
    if first not in names and (module := _module_of(decision.source)):
        first = f"{module}.{_without_number(first)}"
    return replace(decision, values=tuple(names.get(name, name) for name in (first, *others)))


def _known(value: str, names: Mapping[str, str]) -> str:
    """The name of a value, or of the one that a pass made it from: those are called `linear.int8`, for example."""
    root = value
    while root not in names and "." in root:
        root = root.rpartition(".")[0]
    return names.get(root, value)
