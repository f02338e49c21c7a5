"""What our quantizer rounds, as torchao's annotations: for training, and for programs that torchao's own functions
prepare."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.recurrent_layers import weights_of
from q8ta_wgpu.frontend.export.states import keep_sums
from q8ta_wgpu.frontend.nodes import (
    constant,
    is_constant,
    is_float,
    kind,
    named_arguments,
    output_axis,
    why_in_float,
)
from q8ta_wgpu.frontend.notes import IN_FLOAT, JOINED, note
from q8ta_wgpu.frontend.pt2e import specs
from q8ta_wgpu.frontend.pt2e.torchao import ANNOTATION, QuantizationAnnotation, SharedQuantizationSpec
from q8ta_wgpu.frontend.read_float import float_program
from q8ta_wgpu.ir.int8 import Recurrent, WeightedSum
from q8ta_wgpu.passes.plan.rounding import rounding_of
from q8ta_wgpu.passes.plan.storage import INT8, Shared, Storage
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.planned import SHORTEST_ROW


def _is_matrix(node: Node) -> bool:
    return is_constant(node) and node.meta["val"].dim() == 2


class Annotations:
    """The annotations of a graph.

    Args:
        model: the graph.
        qat: for training.
        streams: whether residual streams are stored in 16 bits.

    Attributes:
        activation: torchao's spec of each storage.
        weight, columns: the specs of weights whose outputs come first, and second.
    """

    def __init__(self, model: GraphModule, qat: bool = False, streams: bool = True) -> None:
        self._model, self._streams = model, streams
        self.activation: Callable[[Storage], Any] = functools.cache(functools.partial(specs.activation, qat))
        self.weight, self.columns = (specs.weight(qat, channels) for channels in (0, 1))
        self._nodes = {node.name: node for node in model.graph.nodes}

    def write(self) -> None:
        """Writes them."""
        model = self._model
        keep_sums(model)
        self._activations(float_program(model))
        for node in model.graph.nodes:
            if isinstance(kind(node), Recurrent) and not why_in_float(node):
                self._recurrent(node)
            elif isinstance(kind(node), WeightedSum) and ANNOTATION in node.meta:
                self._weight_of(node)
            elif node.target is torch.ops.aten.embedding.default and not why_in_float(node):
                self._table_of(node)

    def _activations(self, program: FloatProgram) -> None:
        """Writes those of activations, as they are planned."""
        kept, values = set(program.states.values()), {name: self._nodes[node] for name, node in program.names.items()}
        given = (program.graph, program.observable, program.calls, program.moving, program.begins)
        plan = rounding_of(*given, streams=self._streams, kept=kept)
        for call, reason in plan.in_float.items():
            note(self._nodes[call], IN_FLOAT, reason)
        for call in program.joined:
            note(self._nodes[call], JOINED, True)
        for (call, name), storage in plan.reads.items():
            if (source := values.get(name)) is not None and is_float(source):
                for reader in program.readers(call, name):
                    self._annotation(self._nodes[reader]).input_qspec_map[source] = self._spec(storage)
        for name, storage in plan.gives.items():
            self._annotation(values[name]).output_qspec = self._spec(storage)

    def _annotation(self, node: Node) -> Any:
        return node.meta.setdefault(ANNOTATION, QuantizationAnnotation(_annotated=True))

    def _spec(self, storage: Storage) -> Any:
        """torchao's spec of a storage."""
        if isinstance(storage, Shared):
            call = self._nodes[storage.call]
            return SharedQuantizationSpec((next(iter(call.meta[ANNOTATION].input_qspec_map)), call))
        return self.activation(storage)

    def _weight_of(self, node: Node) -> None:
        """Annotates the weight of a sum by its outputs: rows, or columns of a transposed convolution and a product."""
        read: dict[Node, Any] = node.meta[ANNOTATION].input_qspec_map
        arguments = named_arguments(node)
        weight = arguments.get("weight")
        if isinstance(weight, Node) and is_constant(weight):
            read[weight] = self.columns if output_axis(node) else self.weight
            return
        x = arguments.get("mat1", arguments.get("self"))
        matrix = arguments.get("mat2", arguments.get("other"))
        for operand, spec in ((matrix, self.columns), (x, self.weight)):
            if isinstance(operand, Node) and _is_matrix(operand) and operand not in read:
                read[operand] = spec
                return

    def _table_of(self, node: Node) -> None:
        """Annotates a learned table: each row has a scale, unless rows are short. A computed table, of sines for
        example, is a buffer and is not rounded."""
        table = node.args[0]
        assert isinstance(table, Node)
        learned = is_constant(table) and isinstance(constant(self._model, table), torch.nn.Parameter)
        if learned and table.meta["val"].shape[1] >= SHORTEST_ROW:
            self._annotation(node).input_qspec_map[table] = self.weight

    def _recurrent(self, node: Node) -> None:
        """Annotates the input, the weights and the hidden states of all steps. Other states stay in float32."""
        x = node.args[0]
        assert isinstance(x, Node)
        specs = {x: self.activation(INT8), **dict.fromkeys(filter(is_constant, weights_of(node)), self.weight)}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
        for result in node.users:
            spec = self.activation(INT8) if result.args[1] == 0 else None
            result.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=spec, _annotated=True)
