"""The number of threads with which torch calibrates a small network."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.kernels import OPS

_SMALL = 1 << 26
"""A network with at most this many multiply-adds in a call is small: some milliseconds of a core. Splitting each
operator among threads would save some of that on idle cores, but costs milliseconds for each operator on busy ones."""


@contextmanager
def few_threads(graph: Graph) -> Iterator[None]:
    """Lets torch use one thread for computations of this thread, if the network is small.

    OpenMP keeps a number for each thread. torch.set_num_threads would also change the one with which other threads
    begin.
    """
    setting = _setting()
    before = torch.get_num_threads()
    if setting is None or sum(OPS[node.op].macs(graph.call(node)) for node in graph.nodes) > _SMALL:
        yield
        return
    setting(1)
    try:
        yield
    finally:
        setting(before)


def _setting() -> Callable[[int], object] | None:
    """The function of the OpenMP that torch uses which sets this thread's number; None where none is found."""
    if sys.platform == "win32":  # has no namespace of all libraries
        return None
    with suppress(AttributeError, OSError):
        found: Callable[[int], object] = ctypes.CDLL(None).omp_set_num_threads
        return found
    return None
