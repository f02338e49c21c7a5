"""A torchao PT2E quantizer that annotates from the operator table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import InputError, check_switch, is_integer, nearest, shown
from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.pt2e import ANNOTATION, QuantizationAnnotation, SharedQuantizationSpec
from q8ta_wgpu.frontend.calibrate.pt2e import Quantizer as TorchaoQuantizer
from q8ta_wgpu.frontend.calibrate.spelled import name_operators
from q8ta_wgpu.frontend.calibrate.state_precision import keep_sums, states_of, widen_states
from q8ta_wgpu.frontend.export.cats import factors_before_cats, norms_before_cats
from q8ta_wgpu.frontend.export.folding import float_constants
from q8ta_wgpu.frontend.export.linears import name_linears
from q8ta_wgpu.frontend.export.recurrent_layers import expand_recurrent, first_states, weights_of
from q8ta_wgpu.frontend.export.remove_no_ops import remove_identities
from q8ta_wgpu.frontend.export.sdpa import expand_attention
from q8ta_wgpu.frontend.importer.importer import Imported, import_float
from q8ta_wgpu.frontend.nodes import (
    constant,
    is_constant,
    is_float,
    kind,
    module_paths,
    named_arguments,
    output_axis,
    why_in_float,
)
from q8ta_wgpu.frontend.notes import IN_FLOAT, note
from q8ta_wgpu.ir.arithmetic import GROUPS
from q8ta_wgpu.ir.int8 import Monotonic, Moves, Recurrent, WeightedSum
from q8ta_wgpu.passes.plan.rounding import rounding_of
from q8ta_wgpu.passes.plan.storage import INT8, Rounding, Shared, Storage

_SHORTEST_ROW = 16
"""The fewest elements of a table's row for it to be rounded: shorter rows save less than three quarters, since each
also has a scale."""

_SKIPPED = "Quantizer(skip=...) names its module"
"""Why calls of modules that are skipped stay in float32."""


def _is_matrix(node: Node) -> bool:
    return is_constant(node) and node.meta["val"].dim() == 2


class Quantizer(TorchaoQuantizer):  # type: ignore[misc]
    """A torchao quantizer for static int8 in everything that the operator table has in int8.

    Examples:
        >>> quantizer = q8.Quantizer(skip=["layers.2"])    # the module at path "layers.2" stays in float32
        >>> exported = q8.quantize(module, example_inputs, calibration=batches, quantizer=quantizer)

    Activations are int8, affine per tensor; weights are int8, symmetric per output channel. A value is rounded only
    where an int8 tensor is stored. A weighted sum, an add, a mul or a batch norm is one fusion group with the batch
    norm, addend, activation and clamps after it. A weighted sum that nothing reads in int8 is not rounded. Operators
    that only move bytes share one scale and zero point between inputs and output, except slices of a weighted sum,
    which have their own, and what is joined only for an output, or to be taken apart again.

    Args:
        qat: fake quantization with moving averages, for `prepare_qat_pt2e`.
        residual: dtype of residual streams, "int16" or "int8": the sums that layer_norm and rms_norm read. Networks
            without such norms have none.
        fit_weights: whether `quantize` fits weights to the calibration inputs. The rounding error of a weight is spread
            over others and taken out of the bias. With 128 inputs or more, channels are equalized.
        skip: paths of modules that stay in float, as `compare` names them, with everything inside. Their inputs are not
            rounded for them; their outputs only where something in int8 reads them.
        precision: "auto" lets `quantize` store values in 16 bits, or leave them in float32, where int8 costs more than
            half a decibel of the outputs; "int8" does not; "int16" stores in 16 bits all that may be: int8 weights are
            then what costs, and language models choose the same tokens more often.
        weights: "int4" rounds the weights of linears and products, and tables of embeddings, to 4 bits, with a factor
            for each group of inputs of each output: half the bytes. Those of fewer inputs than a group, of convolutions
            and of recurrent layers stay in 8 bits.
        group: inputs that share a factor with weights="int4": 32, 64 or 128. None is 32.
        activations: "dynamic" stores what linears read in 16 bits, and the device rounds each row of it (each token) to
            8 bits by a scale of its own, with the same bytes on every device (8da8w; with weights="int4" 8da4w). All
            else is as with "static".

    Raises:
        InputError: `residual`, `precision`, `weights`, `group` or `activations` is none of these, `skip` is no list of
            strings, `qat` or `fit_weights` is no bool, `qat` is asked for with 16 or 4 bits or scales of rows, or
            `group` without 4 bits.
    """

    def __init__(
        self,
        qat: bool = False,
        residual: str = "int16",
        skip: Sequence[str] = (),
        fit_weights: bool = True,
        precision: str = "auto",
        weights: str = "int8",
        group: int | None = None,
        activations: str = "static",
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("residual", residual, ("int16", "int8")),
            ("precision", precision, ("auto", "int8", "int16")),
            ("weights", weights, ("int8", "int4")),
            ("activations", activations, ("static", "dynamic")),
        ):
            if not isinstance(value, str) or value not in known:
                listed = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
                raise InputError(f"{name} must be {listed}, found {shown(value)}")
        check_switch("qat", qat)
        check_switch("fit_weights", fit_weights)
        if group is not None and not (is_integer(group) and group in GROUPS):
            raise InputError(f"group must be one of {', '.join(map(str, GROUPS))}, found {shown(group)}")
        if group is not None and weights != "int4":
            raise InputError(
                f"group is how many inputs share a factor in weights of 4 bits, found group={group} with "
                f'weights={weights!r}: add weights="int4", or leave group out'
            )
        if qat and precision == "int16":
            raise InputError('values of 16 bits are not trained: use qat=False with precision="int16"')
        if qat and weights == "int4":
            raise InputError('weights of 4 bits are not trained: use qat=False with weights="int4"')
        if qat and activations == "dynamic":
            raise InputError('scales of rows are not trained: use qat=False with activations="dynamic"')
        if isinstance(skip, str):
            raise InputError(f"skip is a list of module paths, found a string: write skip=[{skip!r}]")
        if not isinstance(skip, Iterable) or not all(isinstance(path, str) for path in skip):
            raise InputError(f"skip is a list of module paths, such as 'layer1.0', found {shown(skip)}")
        self.qat, self.fit_weights = qat, fit_weights and not qat
        self.precision = "int8" if qat else precision
        self.dynamic = activations == "dynamic"
        self.streams = residual == "int16"
        self.skip = tuple(skip)
        self._activation: Callable[[Storage], Any] = functools.cache(functools.partial(scheme.activation, qat))
        self._weight = scheme.weight(qat, channels=0)
        self._columns = scheme.weight(qat, channels=1)
        self.group = (group or min(GROUPS)) if weights == "int4" else 0

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Replaces attention by two products and a softmax, recurrent layers by one call for each, products with a
        constant matrix by linears, and operators written as several calls by one. Moves norms before cats, and removes
        operators without effect."""
        norms_before_cats(model, self._why_skipped)
        factors_before_cats(model)
        expand_attention(model)
        expand_recurrent(model)
        remove_identities(model)
        float_constants(model)
        name_linears(model)
        name_operators(model, self._why_skipped)
        model.recompile()
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes the annotation of every node whose operator is in the table. Raises InputError if `skip` names no
        module."""
        self.keep_skipped(model)
        keep_sums(model)
        imported, written = import_float(model), {node for _, node in states_of(model)}
        plan = rounding_of(
            imported.graph,
            {name for name, node in imported.values.items() if is_float(node) and not is_constant(node)},
            imported.calls,
            {n.name: int8 for n in model.graph.nodes if isinstance(int8 := kind(n), Moves | Monotonic)},
            {node.name for node in first_states(model.graph)},
            streams=self.streams,
            kept={name for name, node in imported.values.items() if node in written},
        )
        widen_states(model, imported, plan)
        self._write(plan, imported, {node.name: node for node in model.graph.nodes})
        for node in model.graph.nodes:
            if isinstance(kind(node), Recurrent) and not why_in_float(node):
                self._recurrent(node)
            elif isinstance(kind(node), WeightedSum) and ANNOTATION in node.meta:
                self._weight_of(node)
            elif node.target is torch.ops.aten.embedding.default and not why_in_float(node):
                self._table_of(node, model)
        return model

    def keep_skipped(self, model: GraphModule) -> None:
        """Notes that the modules in `skip` stay in float32. Raises InputError if a name is no module's."""
        for path in self.skip:
            skipped = [node for node in model.graph.nodes if _comes_from(node, path)]
            if not skipped:
                raise InputError(_no_module(path, model))
            for node in skipped:
                note(node, IN_FLOAT, _SKIPPED)

    def _write(self, plan: Rounding, imported: Imported, nodes: Mapping[str, Node]) -> None:
        """Writes torchao's annotations of activations from a plan."""
        for call, reason in plan.in_float.items():
            note(nodes[call], IN_FLOAT, reason)
        for (call, name), storage in plan.reads.items():
            if (source := imported.values.get(name)) is not None and is_float(source):
                self._annotation(nodes[call]).input_qspec_map[source] = self._spec(storage, nodes)
        for name, storage in plan.gives.items():
            self._annotation(imported.values[name]).output_qspec = self._spec(storage, nodes)

    def validate(self, model: GraphModule) -> None:
        """Checks nothing: nodes without annotation stay in float and are reported by `compile`."""

    def _why_skipped(self, node: Node) -> str:
        return _SKIPPED if any(_comes_from(node, path) for path in self.skip) else ""

    def _annotation(self, node: Node) -> Any:
        return node.meta.setdefault(ANNOTATION, QuantizationAnnotation(_annotated=True))

    def _spec(self, storage: Storage, nodes: Mapping[str, Node]) -> Any:
        """torchao's spec of a storage."""
        if isinstance(storage, Shared):
            call = nodes[storage.call]
            return SharedQuantizationSpec((next(iter(call.meta[ANNOTATION].input_qspec_map)), call))
        return self._activation(storage)

    def _weight_of(self, node: Node) -> None:
        """Annotates the weight of a sum by its outputs: rows, or columns of a transposed convolution and a product."""
        read: dict[Node, Any] = node.meta[ANNOTATION].input_qspec_map
        arguments = named_arguments(node)
        weight = arguments.get("weight")
        if isinstance(weight, Node) and is_constant(weight):
            read[weight] = self._of_weight(weight, output_axis(node))
            return
        x = arguments.get("mat1", arguments.get("self"))
        matrix = arguments.get("mat2", arguments.get("other"))
        for operand, channels in ((matrix, 1), (x, 0)):
            if isinstance(operand, Node) and _is_matrix(operand) and operand not in read:
                read[operand] = self._of_weight(operand, channels)
                return

    def _table_of(self, node: Node, model: GraphModule) -> None:
        """Annotates a learned table: each row has a scale, unless rows are short. A computed table, of sines for
        example, is a buffer and is not rounded."""
        table = node.args[0]
        assert isinstance(table, Node)
        learned = is_constant(table) and isinstance(constant(model, table), torch.nn.Parameter)
        if learned and table.meta["val"].shape[1] >= _SHORTEST_ROW:
            whole = self.group and not table.meta["val"].shape[1] % self.group
            self._annotation(node).input_qspec_map[table] = self._of_weight(table, 0) if whole else self._weight

    def _of_weight(self, weight: Node, channels: int) -> Any:
        """The spec of a weight whose outputs are along `channels`."""
        if self.group and _is_matrix(weight) and weight.meta["val"].shape[1 - channels] >= self.group:
            return scheme.groups(self.group, channels)
        return self._columns if channels else self._weight

    def _recurrent(self, node: Node) -> None:
        """Annotates the input, the weights and the hidden states of all steps. Other states stay in float32."""
        x = node.args[0]
        assert isinstance(x, Node)
        specs = {x: self._activation(INT8), **dict.fromkeys(filter(is_constant, weights_of(node)), self._weight)}
        node.meta[ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
        for result in node.users:
            spec = self._activation(INT8) if result.args[1] == 0 else None
            result.meta[ANNOTATION] = QuantizationAnnotation(output_qspec=spec, _annotated=True)


def _comes_from(node: Node, path: str) -> bool:
    """Whether a node was called in a module, or in one of its submodules."""
    return any(module == path or module.startswith(f"{path}.") for module in module_paths(node))


def _no_module(path: str, model: GraphModule) -> str:
    """The message about an entry of `skip` that is no module's path."""
    known = dict.fromkeys(path for node in model.graph.nodes for path in module_paths(node))
    near = f"nearest to it: {', '.join(map(repr, nearest(path, known)))}" if known else "no module has a path"
    return (
        f"skip names {shown(path)}, but no operator comes from a module of that path: {near} (a batch norm right "
        "behind a convolution or linear is part of that one: name it instead; Identity and Dropout compute nothing)"
    )
