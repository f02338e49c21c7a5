"""Error messages for what cannot be exported, or not to int8."""

from __future__ import annotations

import traceback

import torch
from torch.export import ExportGraphSignature
from torch.fx import Graph, GraphModule

from q8ta_wgpu.errors import UnsupportedError, one_line
from q8ta_wgpu.frontend.nodes import line_of, other_float, source_of


def check_floats(graph: GraphModule) -> None:
    """Raises UnsupportedError if a value that depends on an input is computed in another float dtype than float32."""
    for node in graph.graph.nodes:
        if dtype := other_float(node):
            raise UnsupportedError(
                f"{node.target} at {source_of(node) or node.name} computes in {dtype}: int8 is made from float32, so "
                "make its other operand float32 (.float()), and leave out torch.autocast, .half() and .to"
            )


def check_changes(signature: ExportGraphSignature) -> None:
    """Raises UnsupportedError for a program that changes other things than states."""
    way = "compute new tensors instead (no inplace=True on an input)"
    once = "if it does that in its first call only, call it once before; else make buffers of them (register_buffer)"
    for what, changed, remedy in (
        ("buffers", signature.buffers_to_mutate, way),
        ("inputs", signature.user_inputs_to_mutate, way),
        ("parameters", signature.parameters_to_mutate, once),
    ):
        if changed:
            names = list(changed.values())
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UnsupportedError(f"the module changes its {what} {', '.join(names[:3])}{more}: {remedy}")


def check_random(graph: Graph) -> None:
    """Raises UnsupportedError if random numbers are drawn. (The importer reports active dropouts, also those of
    attention.)"""
    for node in graph.nodes:
        tags = getattr(node.target, "tags", ())
        reported = any(name in str(node.target) for name in ("dropout", "attention", "lstm", "gru"))
        if torch.Tag.nondeterministic_seeded in tags and not reported:
            raise UnsupportedError(
                f"{node.target} at {source_of(node) or node.name} draws random numbers, which int8 inference does not: "
                "make them an input of the module"
            )


def untraceable(error: Exception) -> UnsupportedError:
    """The error for a module that torch.export could not trace, with a remedy for the usual causes."""
    text = str(error)
    way = "write that part in torch's own operators on tensors"
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        way = (
            "its control flow must not depend on the data: compute both results and choose with torch.where, or "
            "quantize the part of the module that has none (of a detector, what comes before boxes are chosen)"
        )
        if "specialized integer" in text:
            way = (
                "take no number out of a tensor (.item(), int(x), an index without dimensions): index by a list of "
                "one, x[:, place.reshape(1)], or choose with torch.where"
            )
    elif "register a pytree" in text:
        way = "return tensors in tuples, lists or dicts"
    elif "nn_module_stack metadata" in text:  # the copy that torch adds for self.table = self.table.contiguous()
        way = "assign no buffer to itself in forward: do that once, in __init__"
    said = one_line(text.partition("\nCaused by:")[0] or type(error).__name__)
    where = line_of((frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__))
    at = f" at {where}" if where else ""
    return UnsupportedError(f"torch.export cannot trace the module{at}: {said}. To get on, {way}")
