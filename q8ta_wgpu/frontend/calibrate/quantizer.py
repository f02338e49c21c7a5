"""A torchao PT2E quantizer that annotates from the operator table."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import InputError, check_switch, shown
from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.attention import Attention, attention_of, expand_attention
from q8ta_wgpu.frontend.calibrate.masks import gather_masks, given_mask, masks, parts_of
from q8ta_wgpu.frontend.calibrate.parts import taken_apart
from q8ta_wgpu.frontend.calibrate.pt2e import ANNOTATION, QuantizationAnnotation, SharedQuantizationSpec
from q8ta_wgpu.frontend.calibrate.pt2e import Quantizer as TorchaoQuantizer
from q8ta_wgpu.frontend.calibrate.residual import widen
from q8ta_wgpu.frontend.calibrate.units import becomes_integers, is_head, only_kept_read, scales_operand, unit_of
from q8ta_wgpu.frontend.export.cats import factors_before_cats, norms_before_cats
from q8ta_wgpu.frontend.export.constants import float_constants
from q8ta_wgpu.frontend.export.identities import remove_identities
from q8ta_wgpu.frontend.export.recurrent import expand_recurrent, feeds_states, weights_of
from q8ta_wgpu.frontend.nodes import (
    adds,
    folds_into,
    gives_whole,
    is_constant,
    is_depthwise,
    is_float,
    is_kept,
    is_transposed,
    keep,
    kind,
    module_paths,
    named_arguments,
)
from q8ta_wgpu.ir.graph import QParams
from q8ta_wgpu.ir.int8 import (
    Arithmetic,
    Elementwise,
    Monotonic,
    Moves,
    Normalization,
    Product,
    Recurrent,
    Rowwise,
    Sloped,
    WeightedSum,
)
from q8ta_wgpu.kernels import ATEN


def _is_matrix(node: Node) -> bool:
    return is_constant(node) and node.meta["val"].dim() == 2


def _is_masked(node: Node) -> bool:
    """Whether a node adds a mask, or is a view of that."""
    while isinstance(kind(node), Moves) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return masks(node) or given_mask(node) is not None


class Quantizer(TorchaoQuantizer):  # type: ignore[misc]
    """A torchao quantizer for static int8 in everything that the operator table has in int8.

    Examples:
        >>> quantizer = q8.Quantizer(skip=["2"])    # the module at path "2" stays in float32
        >>> exported = q8.quantize(module, example_inputs, calibration=batches, quantizer=quantizer)

    Activations are int8, affine per tensor; weights are int8, symmetric per output channel. A value is rounded only
    where an int8 tensor is stored. A weighted sum, an add, a mul or a batch norm is one fusion group with the batch
    norm, addend, activation and clamps after it. A weighted sum that nothing reads in int8 is not rounded. Operators
    that only move bytes share one scale and zero point between inputs and output, except slices of a weighted sum,
    which have their own.

    Args:
        qat: fake quantization with moving averages, for `prepare_qat_pt2e`.
        residual: dtype of residual streams, "int16" or "int8": the sums that layer_norm and rms_norm read. Networks
            without such norms have none.
        fit_weights: whether `quantize` fits weights to the calibration inputs. The rounding error of a weight is spread
            over others and taken out of the bias (calibrate/rounding.py). With 128 inputs or more, channels are
            equalized (calibrate/equalize.py).
        skip: paths of modules that stay in float, as `compare` names them, with everything inside. Their inputs are not
            rounded for them; their outputs only where something in int8 reads them.

    Raises:
        InputError: `residual` is neither, `skip` is no list of strings, or `qat` or `fit_weights` is no bool.
    """

    def __init__(
        self, qat: bool = False, residual: str = "int16", skip: Sequence[str] = (), fit_weights: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(residual, str) or residual not in ("int8", "int16"):
            raise InputError(f"residual must be 'int16' or 'int8', found {shown(residual)}")
        check_switch("qat", qat)
        check_switch("fit_weights", fit_weights)
        if isinstance(skip, str):
            raise InputError(f"skip is a list of module paths, found a string: write skip=[{skip!r}]")
        if not isinstance(skip, Iterable) or not all(isinstance(path, str) for path in skip):
            raise InputError(f"skip is a list of module paths, such as 'layer1.0', found {shown(skip)}")
        self.fit_weights = fit_weights and not qat
        self._residual = scheme.residual(qat) if residual == "int16" else None
        self._skip = tuple(skip)
        self._activation = scheme.activation(qat)
        self._whole = scheme.whole(qat)
        self._part = scheme.activation(qat, torch.per_tensor_symmetric)
        self._shares = functools.cache(scheme.fixed if qat else scheme.share)
        self._weight = scheme.weight(qat, channels=0)
        self._columns = scheme.weight(qat, channels=1)

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Attention as the products and the softmax it is made of, recurrent layers one by one; norms before cats;
        nothing that changes nothing."""
        norms_before_cats(model, lambda node: any(_comes_from(node, path) for path in self._skip))
        factors_before_cats(model)
        expand_attention(model)
        expand_recurrent(model)
        remove_identities(model)
        float_constants(model)
        gather_masks(model)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes the annotation of every node the table knows. Raises InputError where `skip` names no module."""
        for path in self._skip:
            skipped = [node for node in model.graph.nodes if _comes_from(node, path)]
            if not skipped:
                raise InputError(
                    f"skip names {path!r}, but no operator comes from a module of that path (a batch norm right behind "
                    "a convolution or linear is part of that one: name it instead)"
                )
            for node in skipped:
                keep(node)
        for node in reversed(model.graph.nodes):
            if isinstance(kind(node), Moves | Monotonic) and only_kept_read(node):
                keep(node)
            if is_kept(node):
                node.meta[ANNOTATION] = QuantizationAnnotation(_annotated=True)
        for mask in filter(None, map(given_mask, model.graph.nodes)):
            for part in parts_of(mask):
                part.meta[ANNOTATION] = QuantizationAnnotation(_annotated=True)
        found = filter(None, map(attention_of, model.graph.nodes))
        attentions = [whole for whole in found if not is_head(unit_of(whole.context))]  # whose result stays in float
        inside = {node: whole for whole in attentions for node in (whole.scores, *whole.between, whole.context)}
        for node in model.graph.nodes:
            name = str(node.target)
            if node.op != "call_function" or name not in ATEN or ANNOTATION in node.meta:
                continue
            if node in inside:
                self._attention(node, inside[node])
                continue
            if not is_float(node):  # of a comparison what is compared, not the bools
                if isinstance(kind(node), Arithmetic | Elementwise):
                    inputs = self._operands(node.all_input_nodes)
                    node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
                continue
            match kind(node):
                case WeightedSum():
                    self._weighted(node)
                case Rowwise(_, result):
                    x = node.all_input_nodes[0]
                    inputs = {} if _is_masked(x) else {x: self._read(x)}
                    self._put(node, inputs, self._shares(result) if result else None)
                case Arithmetic() if masks(node) or given_mask(node) or scales_operand(node):
                    self._passing(node)
                case Arithmetic() | Product() | Elementwise():
                    self._put(node, self._operands(node.all_input_nodes))
                case Moves() if _is_masked(node) or feeds_states(node):
                    node.meta[ANNOTATION] = QuantizationAnnotation(_annotated=True)
                case Moves() | Monotonic():
                    self._shared(node)
                case Recurrent():
                    self._recurrent(node)
                case Normalization() if folds_into(node, node.args[0]):
                    pass  # part of the sum before it, which stays in float
                case Normalization() | Sloped():
                    self._put(node, {node.all_input_nodes[0]: self._read(node.all_input_nodes[0])})
        if self._residual:
            widen(model, self._residual)
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: what is not annotated stays in float and is reported by `compile`."""

    def _attention(self, node: Node, whole: Attention) -> None:
        """Queries, keys, values and the context: scores and weights are never stored as int8."""
        if node is whole.context:
            self._put(node, self._operands((whole.values,)))
            return
        inputs = self._operands(node.all_input_nodes) if node is whole.scores else {}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)

    def _weighted(self, node: Node) -> None:
        arguments = named_arguments(node)
        x = arguments.get("input", arguments.get("mat1", arguments.get("self")))
        weight = arguments.get("weight")
        matrix = arguments.get("mat2", arguments.get("other"))  # of x @ matrix: its columns are the channels
        if isinstance(x, Node) and isinstance(matrix, Node) and _is_matrix(x) and not is_constant(matrix):
            x, weight = matrix, x  # of a constant x its rows are
        if not isinstance(x, Node):
            return
        if isinstance(weight, Node) and is_constant(weight):
            columns = is_transposed(node) and not is_depthwise(weight, arguments)
            self._put(node, {x: self._read(x), weight: self._columns if columns else self._weight})
            self._apart(node)
        elif isinstance(matrix, Node) and _is_matrix(matrix):
            self._put(node, {x: self._read(x), matrix: self._columns})
        elif isinstance(matrix, Node):
            self._put(node, self._operands((x, matrix)))

    def _apart(self, node: Node) -> None:
        """Parts of a sum are rounded each by itself, with one zero point, so that they can be stored as one tensor."""
        moves, parts = taken_apart(node)
        if not parts or any(ANNOTATION in value.meta for value in (*moves, *parts)):
            return
        for value in (node, *moves, *parts):
            given = value.meta.setdefault(ANNOTATION, QuantizationAnnotation(_annotated=True))
            given.output_qspec = self._part if value in parts else None

    def _recurrent(self, node: Node) -> None:
        """Input, weights and the hidden states of all steps; other states stay in float32."""
        x = node.args[0]
        assert isinstance(x, Node)
        specs = {x: self._read(x), **dict.fromkeys(filter(is_constant, weights_of(node)), self._weight)}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
        for result in node.users:
            spec = self._activation if result.args[1] == 0 else None
            result.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=spec, _annotated=True)

    def _read(self, node: Node) -> Any:
        """How an operand is quantized: as it was where its operator says how, whatever the data, as a part of a sum and
        as whole numbers."""
        if (given := node.meta.get(ANNOTATION)) and given.output_qspec in (self._part, self._whole):
            return given.output_qspec
        match kind(node):
            case Moves() | Monotonic() if node.all_input_nodes:
                return self._read(node.all_input_nodes[0])
            case None if node.target is operator.getitem and isinstance(kind(node.args[0]), Moves):
                return self._read(node.all_input_nodes[0])
            case Rowwise(_, QParams() as result):
                return self._shares(result)
        return self._activation

    def _operands(self, nodes: Iterable[Node]) -> dict[Node, Any]:
        """How operands are quantized, but for those that a product takes with their factor."""
        return {n: self._read(n) for n in nodes if is_float(n) and not scales_operand(n)}

    def _passing(self, node: Node) -> None:
        """What is read, not what is given: scores before their mask, since with it a step would be as large as the mask
        is low, and an operand before its factor, which becomes part of a product's rounding."""
        mask = given_mask(node)
        read = next(n for n in node.all_input_nodes if not is_constant(n) and n is not mask)
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map={read: self._read(read)}, _annotated=True)

    def _shared(self, node: Node) -> None:
        inputs = [n for n in node.all_input_nodes if is_float(n)]
        if not inputs:
            return
        share = SharedQuantizationSpec((inputs[0], node))
        specs: dict[Node, Any] = {inputs[0]: self._read(inputs[0])} | {n: share for n in inputs[1:]}
        if isinstance(node.meta.get("val"), (list, tuple)):
            node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
            for item in filter(is_float, node.users):  # places are none
                item.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=share, _annotated=True)
            return
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, output_qspec=share, _annotated=True)

    def _put(self, node: Node, inputs: dict[Node, Any], output: Any = None) -> None:
        """One unit, rounded once: inputs on its first node, the output's spec on its last."""
        unit = unit_of(node)
        inputs = {} if becomes_integers(unit) else inputs
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
        for before, part in pairwise(unit):
            other = adds(part, before)
            specs = {other: self._read(other)} if other else {}
            part.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
        if not is_head(unit):
            whole = any(gives_whole(part) for part in unit)
            unit[-1].meta[ANNOTATION].output_qspec = output or (self._whole if whole else self._activation)
            return
        for moved in unit[-1].users:
            if kind(moved) is not None:
                moved.meta[ANNOTATION] = QuantizationAnnotation(_annotated=True)


def _comes_from(node: Node, path: str) -> bool:
    """Whether a node was called in a module, or within it."""
    return any(part == path or part.startswith(f"{path}.") for part in module_paths(node))
