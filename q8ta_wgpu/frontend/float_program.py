"""A module as the float program that is calibrated: exported, plain, with constants folded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.checks import Tensors
from q8ta_wgpu.frontend.export.buffers_as_inputs import States
from q8ta_wgpu.frontend.export.decompose import decomposed
from q8ta_wgpu.frontend.export.editor import name_of
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.export.plain import is_plain
from q8ta_wgpu.frontend.export.refusals import check_changes, check_floats, check_random, untraceable
from q8ta_wgpu.frontend.export.remove_no_ops import remove_no_ops
from q8ta_wgpu.frontend.export.rewrite import rewrite
from q8ta_wgpu.frontend.export.states import mark_states
from q8ta_wgpu.frontend.export.tracing import torch_lock, traced
from q8ta_wgpu.frontend.importer.importer import structure_of

_IN_PLACE = re.compile(r"_(_\d+)?$")
"""The end of the name of an operator that changed a tensor in place, before it was replaced by one that does not."""


@dataclass(frozen=True)
class Traceable:
    """A module that torch can trace.

    Attributes:
        module: a module without side effects: states are its last inputs, and it returns (results, new states).
        inputs: an example of its inputs.
        states: the buffers that are the last inputs; None if there are none.
    """

    module: torch.nn.Module
    inputs: Tensors
    states: States | None = None

    @staticmethod
    def exported(
        module: torch.nn.Module, example: Tensors, changed: Sequence[str], whole: bool = True
    ) -> tuple[Traceable, ExportedProgram]:
        """A module for inputs like an example, and its program. The buffers that it changes become states.

        Raises as `program`, and UnsupportedError for states of a module that only partly runs on the device.
        """
        if changed and not whole:
            raise UnsupportedError(
                f"the module changes its buffers {', '.join(changed)}, which stay on the device from call "
                'to call: with unsupported="torch" nothing does, so make them inputs and results'
            )
        states = States(module, changed, example) if changed else None
        source = (
            Traceable(states.functional, (*example, *states.initial), states) if states else Traceable(module, example)
        )
        return source, source.program(whole)

    def program(self, whole: bool = False, inputs: Tensors | None = None) -> ExportedProgram:
        """The exported module without in-place operators, for other inputs than the example if `inputs` is passed.
        Raises UnsupportedError if it changes other things than states; with `whole`, also for what `compile` would
        refuse."""
        inputs = self.inputs if inputs is None else inputs
        try:
            with torch_lock():
                program = traced(lambda: torch.export.export(self.module, inputs))
                remove_no_ops(program)
                rewrite(program)
                if not is_plain(program):
                    program = decomposed(program)
        except Exception as error:
            raise untraceable(error) from error
        check_changes(program.graph_signature)
        if whole:
            check_random(program.graph)
            structure_of(program, range(len(program.graph_signature.user_outputs)))
        return program

    def folded(self, program: ExportedProgram, whole: bool = False) -> GraphModule:
        """The graph of a program with constants folded. With `whole`, raises UnsupportedError for floats of other
        dtypes."""
        graph: GraphModule = program.module(check_guards=False)
        fold(graph)
        for node in graph.graph.nodes:
            if node.op == "call_function" and _IN_PLACE.search(node.name):
                node._rename(name_of(node.target))
        if self.states:
            mark_states(graph, len(self.states.names))
        if whole:
            check_floats(graph)
        return graph

    def graph(self, inputs: Tensors | None = None) -> GraphModule:
        """The float graph that is quantized, for other inputs than the example if `inputs` is passed, with batch norms
        folded."""
        graph = self.folded(self.program(False, inputs))
        fold_norms(graph)
        return graph
