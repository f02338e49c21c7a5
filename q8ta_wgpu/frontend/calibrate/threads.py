"""The number of threads with which torch calibrates a small network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.fx import GraphModule

from q8ta_wgpu.frontend.multiply_adds import multiply_adds

_SMALL = 1 << 26
"""A network with at most this many multiply-adds in a call is small: some milliseconds of a core. Splitting each
operator among threads would save some of that on idle cores, but costs milliseconds for each operator on busy ones."""

_lock = threading.Lock()
_users = 0
_before = 0


@contextmanager
def few_threads(graph: GraphModule) -> Iterator[None]:
    """Makes torch use one thread for computations of this thread, if the network is small. torch has a separate number
    for each thread."""
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
    return sum(multiply_adds(node) for node in graph.graph.nodes if node.op == "call_function")
