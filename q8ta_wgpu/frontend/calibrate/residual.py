"""Residual streams: which values a transformer's blocks add to and its norms read, and how they are quantized.

A stream is made of sums that a layer_norm or rms_norm reads, or another sum of the stream, through operators that only
move elements. Rounded to 8 bits at every sum it loses more than anything else does; it is kept in 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.pt2e import ANNOTATION, QuantizationAnnotation, QuantizationSpec
from q8ta_wgpu.frontend.nodes import is_constant, is_float, is_weighted, kind
from q8ta_wgpu.ir.int8 import Moves

_SUMS = ("aten.add.Tensor", "aten.add_.Tensor")
_NORMS = ("aten.layer_norm.default", "aten.native_layer_norm.default", "aten.rms_norm.default")


def widen(model: GraphModule, spec: QuantizationSpec) -> None:
    """Changes the annotation of every stream in an annotated graph to `spec`, and of what is added to it.

    A weighted sum that only the stream reads is added before it is rounded. A cat that a stream begins with, as that of
    a class token and patches, is part of it. What else reads the stream keeps its own spec, to which the stream is
    requantized. A graph without a stream is left as it is.
    """
    if not (stream := _streams(model)):
        return
    wide = set(stream)
    for node in model.graph.nodes:
        if node in stream:
            _widen_sum(node, wide, spec)
        elif _is_shared(node) and _feeds(node, stream):
            begins = _begins(node, wide)
            if begins:
                _widen_operands(node, wide, spec)
            if begins or any(source in wide for source in node.all_input_nodes):
                _give(node, wide, spec)
        elif str(node.target) in _NORMS and node.all_input_nodes[0] in wide:
            _read(node, node.all_input_nodes[0], spec)


def _streams(model: GraphModule) -> set[Node]:
    found: set[Node] = set()
    for node in reversed(model.graph.nodes):
        if _is_sum(node) and _feeds(node, found):
            found.add(node)
    return found


def _feeds(node: Node, stream: set[Node]) -> bool:
    """Whether a norm or a sum of the stream reads a value, moved or not."""
    return any(user in stream or str(user.target) in _NORMS for user in _readers(node))


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        yield user
        if _moves(user):
            yield from _readers(user)


def _is_sum(node: Node) -> bool:
    """Whether a node adds two float tensors and is rounded itself, by no operator that it is part of."""
    tensors = str(node.target) in _SUMS and all(isinstance(a, Node) and is_float(a) for a in node.args[:2])
    return tensors and getattr(node.meta.get(ANNOTATION), "output_qspec", None) is not None


def _moves(node: Node) -> bool:
    return isinstance(kind(node), Moves) and not isinstance(node.meta.get("val"), (list, tuple))


def _is_shared(node: Node) -> bool:
    """Whether a node moves what is quantized: in a module that is left in float none does."""
    return _moves(node) and bool(getattr(node.meta.get(ANNOTATION), "input_qspec_map", None))


def _begins(node: Node, stream: set[Node]) -> bool:
    """Whether a cat puts a constant, such as a class token, beside what the network computes, or is itself added to the
    stream: at one scale of 8 bits the smaller of what it joins would be lost."""
    if str(node.target) != "aten.cat.default":
        return False
    return any(map(_is_repeated, node.all_input_nodes)) or not stream.isdisjoint(node.users)


def _is_repeated(node: Node) -> bool:
    """Whether a node is a constant, repeated for a batch or not."""
    return is_constant(node) or (_moves(node) and all(map(_is_repeated, node.all_input_nodes[:1])))


def _widen_operands(node: Node, wide: set[Node], spec: QuantizationSpec) -> None:
    """Lets weighted sums that a cat alone reads give what they are in the stream."""
    for operand in node.all_input_nodes:
        for moved in _from_weighted(operand) if len(operand.users) == 1 else []:
            _give(moved, wide, spec)


def _is_rounded_sum(node: Node) -> bool:
    """Whether a node is a weighted sum whose own result is rounded, and read once."""
    rounded = getattr(node.meta.get(ANNOTATION), "output_qspec", None) is not None
    return rounded and is_weighted(node) and len(node.users) == 1


def _widen_sum(node: Node, wide: set[Node], spec: QuantizationSpec) -> None:
    node.meta[ANNOTATION].output_qspec = spec
    # A sum takes in what is of its own shape, and no position that is repeated for the batch.
    alike = all(n.meta["val"].shape == node.meta["val"].shape for n in node.all_input_nodes)
    joined = not alike or any(n not in node.meta[ANNOTATION].input_qspec_map for n in node.all_input_nodes)
    for operand in sorted(node.all_input_nodes, reverse=True):  # the one that is computed last joins its sum
        if operand in wide or is_constant(operand):
            _read(node, operand, spec)
        elif not joined and _is_rounded_sum(operand):
            joined = True
            operand.meta[ANNOTATION].output_qspec = None
            node.meta[ANNOTATION].input_qspec_map.pop(operand, None)
        elif path := _from_weighted(operand):
            for moved in path:
                _give(moved, wide, spec)
            _read(node, operand, spec)


def _from_weighted(node: Node) -> list[Node]:
    """A weighted sum and what moves its result, each read by the next alone, up to a node; empty if there is none."""
    path = [node]
    while _is_shared(path[0]) and len(path[0].all_input_nodes) == 1 and len(path[0].users) == 1:
        path.insert(0, path[0].all_input_nodes[0])
    return path if _is_rounded_sum(path[0]) else []


def _give(node: Node, wide: set[Node], spec: QuantizationSpec) -> None:
    """Lets a node give a value of the stream; what moves elements reads it so, too."""
    wide.add(node)
    annotation: QuantizationAnnotation = node.meta[ANNOTATION]
    if _moves(node):
        first = next(iter(annotation.input_qspec_map))
        annotation.input_qspec_map[first] = spec  # its other operands and its result share it
    else:
        annotation.output_qspec = spec


def _read(node: Node, operand: Node, spec: Any) -> None:
    if ANNOTATION in node.meta and operand in node.meta[ANNOTATION].input_qspec_map:
        node.meta[ANNOTATION].input_qspec_map[operand] = spec
