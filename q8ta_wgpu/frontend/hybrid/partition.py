"""Partitions a program into the largest pieces that can be imported, and reports why the rest cannot."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner, Partition
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from q8ta_wgpu.frontend.importer.importer import import_piece
from q8ta_wgpu.frontend.importer.problems import Problems
from q8ta_wgpu.frontend.nodes import integer, is_qdq, kind, other_float
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.int8 import Product, Recurrent, WeightedSum
from q8ta_wgpu.kernels import OPS

SMALL = "there are no multiply-adds beside it that pay for the way to the GPU and back"
_PREFIX = "piece_"


@dataclass(frozen=True)
class Partitioned:
    """A program that partly runs on the GPU.

    Attributes:
        program: the graph that calls the pieces, which are submodules.
        pieces: the imported graph of each piece, by the submodule's name, in order.
        rest: the operators that are in no piece, and why.
        macs: multiply-adds in the pieces and in total.
    """

    program: GraphModule
    pieces: dict[str, Graph]
    rest: Problems
    macs: tuple[int, int]


def partition(module: GraphModule) -> Partitioned:
    """Partitions a program, whose parameters are attributes and which has no in-place operators.

    A piece that the importer refuses is partitioned again without the calls that it names, until all pieces are
    imported. A piece without multiply-adds is left to torch, unless it is the whole program. `module` is changed.
    """
    _copy_for_each_user(module)
    refused = _unfit(module)
    while True:
        fused = _split(module, refused)
        graphs: dict[str, Graph] = {}
        known = len(refused)
        for name, piece in _pieces(fused).items():
            found = import_piece(piece)
            if isinstance(found, Graph):
                graphs[name] = found
            else:
                refused |= _spread(piece, found)
        if len(refused) == known:
            break
    rest, left = Problems(), 0
    for node in fused.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_qdq(node):
            left += multiply_adds(node)
            rest.add_node(refused.get(node.name, SMALL), node)
    count = sum(OPS[node.op].macs(graph.call(node)) for graph in graphs.values() for node in graph.nodes)
    return Partitioned(fused, graphs, rest, (count, count + left))


def _pieces(fused: GraphModule) -> dict[str, Any]:
    return {name: piece for name, piece in fused.named_children() if name.startswith(_PREFIX)}


class _Support(OperatorSupportBase):
    """Supports every node that has not been refused. A parameter is supported if a node that reads it is."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        self.refused = refused

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        """Whether a piece may contain the node. Called by torch's partitioner."""
        if node.op == "get_attr" or node.target is operator.getitem:
            near = node.users if node.op == "get_attr" else node.all_input_nodes
            return all(self.is_node_supported(submodules, other) for other in near)
        return node.op == "call_function" and node.name not in self.refused


def _split(module: GraphModule, refused: Mapping[str, str]) -> GraphModule:
    """A copy of the program with its pieces as submodules. It shares the parameters."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    graph._codegen = module.graph._codegen
    copied = GraphModule(module, graph)
    position = {node: index for index, node in enumerate(graph.nodes)}
    partitioner = CapabilityBasedPartitioner(copied, _Support(refused), allows_single_node_partition=True)

    def pays(found: Partition) -> bool:
        return any(isinstance(kind(node), WeightedSum | Product | Recurrent) for node in found.nodes) or not refused

    paying = [found for found in partitioner.propose_partitions() if pays(found)]
    paying.sort(key=lambda found: min(position[node] for node in found.nodes))
    return partitioner.fuse_partitions(paying, prefix=_PREFIX)


def multiply_adds(call: Node) -> int:
    """The multiply-adds of a call, which torch counts by running it on fake tensors. It knows none of attention on CPUs
    and of recurrent layers."""
    args, kwargs = torch.fx.map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
    modes = [value.fake_mode for value in pytree.tree_leaves((args, kwargs)) if hasattr(value, "fake_mode")]
    if not modes:
        return 0
    with torch.no_grad(), modes[0], FlopCounterMode(display=False) as counter:
        call.target(*args, **kwargs)  # type: ignore[operator]
    return integer(counter.get_total_flops()) // 2


def _unfit(module: GraphModule) -> dict[str, str]:
    """Calls that compute in another float dtype than float32."""
    return {node.name: f"it computes in {dtype}" for node in module.graph.nodes if (dtype := other_float(node))}


def _spread(piece: GraphModule, refused: Mapping[str, str]) -> dict[str, str]:
    """Refuses the nodes that read an input which a piece cannot have."""
    found = {}
    for node in piece.graph.nodes:
        if node.name in refused:
            for at in node.users if node.op == "placeholder" else (node,):
                found[at.name] = refused[node.name]
    return found


def _copy_for_each_user(module: GraphModule) -> None:
    """Copies constants for every node that reads them, so that none of them are passed between pieces."""
    fixed: set[Node] = set()
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr" or (node.op == "call_function" and inputs and fixed.issuperset(inputs)):
            fixed.add(node)
    for node in reversed(module.graph.nodes):
        if node in fixed:
            for user in list(node.users)[1:]:
                with module.graph.inserting_before(user):
                    user.replace_input_with(node, module.graph.node_copy(node))
