"""The rewriter: order, readers and what is dropped, after each kind of edit."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.model.verify import verify
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.rewriter import Rewriter

SHAPE = TensorType((2, 3))


def _graph(*nodes: tuple[str, tuple[str, ...], str], outputs: tuple[str, ...]) -> Graph:
    """Elementwise nodes on the input x."""
    graph = Graph(["x"], list(outputs), [Node(*node) for node in nodes], {"x": SHAPE})
    graph.nodes = [replace(n, attrs={"alpha": 1.0}) if n.op == "add" else n for n in graph.nodes]
    graph.types |= dict.fromkeys((node[2] for node in nodes), SHAPE)
    return graph


def _text(rewriter: Rewriter) -> list[str]:
    """The nodes as committed, which must be a graph."""
    rewriter.commit()
    rewriter.graph.prune()
    verify(rewriter.graph)
    return [f"{node.output} = {node.op}({', '.join(node.inputs)})" for node in rewriter.graph.nodes]


def test_readers_are_counted_once_and_outputs_are_read_by_the_caller() -> None:
    rewriter = Rewriter(
        _graph(("relu", ("x",), "a"), ("add", ("a", "a"), "b"), ("tanh", ("b",), "c"), outputs=("b", "c"))
    )
    only = rewriter.only_reader("a")
    assert only is not None
    assert only.output == "b"
    assert rewriter.only_producer("a") == rewriter.producer("a")
    assert [node.output for node in rewriter.readers("b")] == ["c"]
    assert rewriter.only_reader("b") is None
    assert rewriter.only_producer("b") is None
    assert rewriter.only_reader("c") is None
    assert rewriter.producer("x") is None


def test_inserted_nodes_come_before_in_the_order_they_were_inserted() -> None:
    rewriter = Rewriter(_graph(("relu", ("x",), "a"), ("tanh", ("a",), "b"), outputs=("b",)))
    seen = []
    for node in rewriter.nodes():
        seen.append(node.output)
        if node.output == "b":
            first = rewriter.insert(node, "abs", ("a",), {}, "new")
            second = rewriter.insert(node, "exp", (first,), {}, "new")
            between = rewriter.producer(second)
            assert between is not None
            third = rewriter.insert(between, "sqrt", (first,), {}, "new")
            rewriter.replace(between, replace(between, inputs=(third,)))
            rewriter.replace(node, replace(node, inputs=(second,)))
    assert seen == ["a", "b"]
    assert _text(rewriter) == [
        "a = relu(x)",
        "new = abs(a)",
        "new.2 = sqrt(new)",
        "new.1 = exp(new.2)",
        "b = tanh(new.1)",
    ]


def test_what_an_edit_leaves_unread_goes_with_all_that_only_it_read() -> None:
    graph = _graph(
        ("relu", ("x",), "a"), ("tanh", ("a",), "b"), ("exp", ("b",), "c"), ("abs", ("a",), "d"), outputs=("c", "d")
    )
    rewriter = Rewriter(graph)
    node = rewriter.producer("c")
    assert node is not None
    assert rewriter.only_reader("a") is None
    rewriter.replace(node, Node("sqrt", ("x",), "ignored"))
    assert rewriter.producer("b") is None
    assert rewriter.only_reader("a") == rewriter.producer("d")
    assert _text(rewriter) == ["a = relu(x)", "c = sqrt(x)", "d = abs(a)"]


def test_an_alias_moves_readers_and_outputs() -> None:
    graph = _graph(
        ("relu", ("x",), "a"),
        ("tanh", ("a",), "b"),
        ("add", ("b", "a"), "c"),
        ("abs", ("b",), "d"),
        outputs=("b", "c", "d"),
    )
    rewriter = Rewriter(graph)
    rewriter.alias("b", "a")
    assert [reader.output for reader in rewriter.readers("a")] == ["c", "d"]
    assert rewriter.only_reader("a") is None
    assert _text(rewriter) == ["a = relu(x)", "c = add(a, a)", "d = abs(a)"]
    assert rewriter.graph.outputs == ["a", "c", "d"]


def test_a_node_can_become_a_constant() -> None:
    rewriter = Rewriter(_graph(("relu", ("x",), "a"), ("tanh", ("a",), "b"), ("exp", ("b",), "c"), outputs=("c",)))
    node = rewriter.producer("b")
    assert node is not None
    rewriter.make_constant(node, np.zeros((2, 3), np.float32))
    assert _text(rewriter) == ["c = exp(b)"]


def test_against_execution_order_every_node_is_seen_as_it_is() -> None:
    rewriter = Rewriter(_graph(("relu", ("x",), "a"), ("tanh", ("a",), "b"), ("exp", ("b",), "c"), outputs=("c",)))
    seen = []
    for node in rewriter.backwards():
        seen.append((node.op, node.output))
        if node.output == "c":
            first = rewriter.producer("a")
            assert first is not None
            rewriter.replace(first, replace(first, op="abs"))
            rewriter.alias("b", "a")
    assert seen == [("exp", "c"), ("abs", "a")]


def _layers(count: int) -> Graph:
    """Linears whose activations lie behind views and permutes, so that every pass that swaps nodes has work."""
    graph = Graph(["v"], ["v"], types={"v": TensorType((2, 8))})
    weight = graph.add_constant("weight", np.eye(8, dtype=np.float32))
    bias = graph.add_constant("bias", np.zeros(8, np.float32))
    for _ in range(count):
        for op, attrs, shape in (
            ("linear", {}, (2, 8)),
            ("view", {"shape": (2, 2, 4)}, (2, 2, 4)),
            ("permute", {"dims": (1, 0, 2)}, (2, 2, 4)),
            ("silu", {}, (2, 2, 4)),
            ("relu", {}, (2, 2, 4)),
            ("view", {"shape": (2, 8)}, (2, 8)),
        ):
            name, inputs = graph.fresh("v"), (*graph.outputs, *([weight, bias] if op == "linear" else []))
            graph.types[name] = TensorType(shape)
            graph.nodes.append(Node(op, inputs, name, attrs))
            graph.outputs = [name]
    return graph


def test_time_grows_with_the_graph_and_no_faster() -> None:
    def seconds(count: int) -> float:
        graph, started = _layers(count), time.process_time()
        run_passes(graph)
        return time.process_time() - started

    seconds(10)
    small, large = (min(seconds(count) for _ in range(3)) for count in (50, 400))
    assert large < 24 * small, f"8 times the nodes took {large / small:.1f} times as long"
