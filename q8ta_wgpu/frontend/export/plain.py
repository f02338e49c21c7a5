"""Plain programs: without in-place operators and operators that torch would decompose. Converts other programs to plain
ones."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.export.decompose import decomposed
from q8ta_wgpu.frontend.export.folding import is_pure
from q8ta_wgpu.frontend.export.own_copy import own_copy
from q8ta_wgpu.frontend.export.tracing import traced
from q8ta_wgpu.frontend.nodes import OWN, QDQ, integer, named_arguments
from q8ta_wgpu.importing.import_table import ATEN


def plain(program: Any) -> ExportedProgram:
    """A plain program from an exported program, or from a converted module, which is exported.

    Raises UnsupportedError if it is neither, or a module that was prepared but not converted.
    """
    if isinstance(program, torch.fx.GraphModule):
        _refuse_observers(program)
    exported = _export(program) if isinstance(program, torch.fx.GraphModule) else program
    if not isinstance(exported, ExportedProgram):
        raise UnsupportedError(
            f"expected a torch.export.ExportedProgram, found {type(exported).__name__}: "
            "q8ta_wgpu.quantize(module, example_inputs, calibration) makes one of a float module; of one that another "
            "PT2E quantizer converted, give torch.export.export(converted_module, example_inputs)"
        )
    return exported if is_plain(exported) else decomposed(exported)


def is_plain(program: ExportedProgram) -> bool:
    """Whether a program is imported as it is. Decomposing would trace it again, which takes as long as exporting it.

    Operators of constants may be of any kind, since they are computed. Nodes that nothing reads, such as torch's
    assertions about dtypes, are not imported.
    """
    signature = program.graph_signature
    states = {
        name for name, buffer in signature.inputs_to_buffers.items() if buffer in signature.buffers_to_mutate.values()
    }
    varying = {*signature.user_inputs, *states}
    for node in program.graph.nodes:
        fixed = is_pure(node) or node.op == "placeholder"
        if fixed and not any(source.name in varying for source in node.all_input_nodes):
            continue
        varying.add(node.name)
        if not _is_known(node):
            return False
    return True


def _is_known(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return node.op in ("placeholder", "output") or target is operator.getitem
    if target is torch.ops.aten.index_put.default and named_arguments(node).get("accumulate"):
        return False
    known = str(target) in ATEN or target.namespace in (QDQ, OWN) or not node.users
    return known and not target._schema.is_mutable


def _refuse_observers(module: torch.fx.GraphModule) -> None:
    """Raises UnsupportedError if a module still observes values, before torch.export traces it: tracing runs the
    observers, which spoils them for convert_pt2e."""
    for name, part in module.named_modules():
        if hasattr(part, "calculate_qparams"):
            raise UnsupportedError(
                f"expected a quantized program, found a module that still observes values (by {name}, a "
                f"{type(part).__name__}): call torchao's convert_pt2e(module) first, and give what it returns"
            )


def _export(converted: torch.fx.GraphModule) -> ExportedProgram:
    """Exports what convert_pt2e returned, with zeros of the shapes its placeholders were traced with.

    Exporting again also drops the `_guards_fn` call that torch.export puts into every module it makes.
    """
    values = [node.meta.get("val") for node in converted.graph.nodes if node.op == "placeholder"]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise UnsupportedError(
            "this GraphModule does not know its input shapes: pass torch.export.export(module, example_inputs)"
        )
    example = tuple(torch.zeros([integer(d) for d in v.shape], dtype=v.dtype) for v in values)
    return traced(lambda: torch.export.export(own_copy(converted), example))
