"""How many threads torch takes to calibrate a small network."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.nodes import is_transposed, is_weighted, multiplies, named_arguments, sizes_of

_SMALL = 1 << 26
"""Multiply-adds of a call up to which a network is small: some milliseconds of a core. Sharing each operator among
threads would save part of that where cores are idle, and costs milliseconds an operator where they are busy."""

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def few_threads(graph: GraphModule) -> Iterator[None]:
    """Lets torch compute with one thread in this one, if the network is small. torch keeps the number by thread."""
    global _users, _before
    if _work(graph) > _SMALL:
        yield
        return
    with _lock:
        _before = _before if _users else torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            torch.set_num_threads(_before)


def _work(graph: GraphModule) -> int:
    """Multiply-adds of a call of a float graph."""
    return sum(_multiply_adds(node) for node in graph.graph.nodes if node.op == "call_function")


def _multiply_adds(node: Node) -> int:
    """Of a convolution or linear, a recurrent layer, or a product of two activations; 0 of other calls."""
    given = named_arguments(node) if isinstance(node.target, torch._ops.OpOverload) else {}
    if "params" in given:
        return _size(given["input"]) // sizes_of(given["input"])[-1] * sum(map(_size, given["params"]))
    if "query" in given:
        return 2 * _size(given["query"]) * sizes_of(given["key"])[-2]
    if multiplies(node):
        return _size(node) * sizes_of(node.all_input_nodes[0])[-1]
    if not is_weighted(node) or not isinstance(weight := given.get("weight"), Node):
        return 0
    return _size(given["input"] if is_transposed(node) else node) * math.prod(sizes_of(weight)[1:])


def _size(node: Node) -> int:
    return math.prod(sizes_of(node))
