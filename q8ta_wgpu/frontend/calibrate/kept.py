"""Values of which a reduction keeps the largest or smallest elements, and nothing else reads the others. Their range is
that of what is kept: the others fill most of a histogram, and what clips few of them may clip all that are kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.observer import RangeObserver, observer_of
from q8ta_wgpu.frontend.calibrate.watches import watches
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.frontend.nodes import kind
from q8ta_wgpu.ir.int8 import Monotonic, Moves

_OF = 8
"""A reduction keeps few elements if it gives one of so many. Windows of images keep more, and most of what is large."""

_UNMET = "_unmet"


@contextlib.contextmanager
def met_where_kept(model: GraphModule) -> Iterator[None]:
    """Lets observers meet the results of such reductions, and not what these read."""
    is_left = functools.cache(functools.partial(_is_left, model))
    left = {node: node.target for node in model.graph.find_nodes(op="call_module") if is_left(node)}
    if not left:
        yield
        return
    model.add_module(_UNMET, torch.nn.Identity())
    for node in left:
        node.target = _UNMET
    model.recompile()
    try:
        yield
    finally:
        for node, target in left.items():
            node.target = target
        model.delete_submodule(_UNMET)
        model.recompile()


def _is_left(model: GraphModule, node: Node) -> bool:
    """Whether all readers of an observer's call are such reductions, perhaps behind operators that move elements, whose
    results the same observer watches."""
    observer, readers = observer_of(model, node), [user for user in node.users if not watches(user)]
    if not isinstance(observer, RangeObserver) or not readers:
        return False
    for reader in readers:
        again = [user for user in reader.users if not watches(user)]
        if not again or any(observer_of(model, user) is not observer for user in again):
            return False
        few = isinstance(kind(reader), Monotonic) and _OF * size_of(reader) <= size_of(node)
        if not few and not (isinstance(kind(reader), Moves) and all(_is_left(model, user) for user in again)):
            return False
    return True
