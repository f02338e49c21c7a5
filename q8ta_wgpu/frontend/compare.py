"""compare: where a quantized network loses accuracy, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, counted
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.attributes import changed_buffers
from q8ta_wgpu.frontend.calibrate.equalize import equalize_alike
from q8ta_wgpu.frontend.calibrate.masked_rows import give_zeros
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.export.formulas import at
from q8ta_wgpu.frontend.export.modes import computing, quietly
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.export.own_copy import own_copy
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.frontend.nodes import QDQ, is_qdq, module_paths, source_of
from q8ta_wgpu.frontend.notes import ASKED, PRECISION, SIZES, SKIPPED, noted
from q8ta_wgpu.importing.user_names import user_names
from q8ta_wgpu.ir.graph import RANGES, Array, Graph, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.compare_onnx import compare as compare_file
from q8ta_wgpu.onnx_import.from_onnx import FILES, File
from q8ta_wgpu.passes import PASSES, run_passes
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues
from q8ta_wgpu.passes.plan.joins import origins_of
from q8ta_wgpu.quantization.comparison import Comparison, Layer
from q8ta_wgpu.quantization.noise_causes import measured
from q8ta_wgpu.quantization.parts import Judge


def compare(
    module: torch.nn.Module | File,
    exported: ExportedProgram | Model,
    inputs: Any,
) -> Comparison:
    """Compares the float module, PT2E's simulation and the integer arithmetic on one set of inputs, or on several calls
    one after the other. Each of the three has its own states, which begin with the same values. A float ONNX file is
    compared with the Model that `quantize` made of it, by `q8ta_wgpu.onnx_import.compare_onnx`.

    Examples:
        >>> exported = q8.quantize(module, example_inputs, calibration=batches)
        >>> comparison = q8.compare(module, exported, (x,))
        >>> worst = comparison.layers[0]    # its snr in dB, and how much it lost

    Args:
        module: the float module, in eval mode.
        exported: the program that `quantize` returned for it.
        inputs: positional arguments with the shapes and dtypes of the example inputs; with a dynamic batch or dynamic
            shapes, of any size that they allow. For several calls a list of such tuples, all of the same sizes.

    Returns:
        A Comparison: a row for every stored int8 or int16 value and every output.

    Raises:
        InputError: the inputs differ from the example, the module does not run on them, or `exported` is not an
            exported program or was made from another module.
        UnsupportedError: as `quantize` and `compile` raise it.
    """
    if isinstance(module, FILES):
        return compare_file(module, exported, inputs)  # type: ignore[arg-type]  # it says what it takes
    checks.check_module(module)
    several = isinstance(inputs, (tuple, list)) and bool(inputs) and isinstance(inputs[0], (tuple, list))
    calls = [checks.example(call) for call in (inputs if several else [inputs])]
    if not isinstance(exported, ExportedProgram):
        raise InputError(f"exported must be the program that quantize returned, found {type(exported).__name__}")
    with computing(), quietly():
        exported = _at_sizes(exported, calls[0])
        for call in calls:
            _check_inputs(exported, call)
        in_float = _float_values(own_copy(module), exported, calls)
        simulated = _simulated(exported, calls)
        weighed = _simulated(exported, calls, in_float)
        graph, names, ours = _integer_values(exported, calls)
    asked = noted(exported.graph_module, ASKED, "")
    *_, output, yardstick, _, predicted = noted(exported.graph_module, PRECISION, ("", None, None, None))
    found = [_Found(*values) for values in zip(in_float, simulated, weighed, ours, strict=True)]
    each = [Comparison(_named(_rows(exported, graph, values), names), precision=asked) for values in found]
    output = names.get(output, output)
    if not several:
        return Comparison(each[0].layers, predicted, yardstick, (), asked, output)
    rows = _rows(exported, graph, _Found(*map(_joined, zip(*found, strict=True))))
    return Comparison(_named(rows, names), predicted, yardstick, tuple(each), asked, output)


def _named(rows: Sequence[Layer], names: Mapping[str, str]) -> tuple[Layer, ...]:
    """Rows called what the user's program calls them."""
    return tuple(replace(row, name=names.get(row.name, row.name)) for row in rows)


Values = dict[str, Array]
"""The values of a call by the names of operators in the quantized program."""


class _Found(NamedTuple):
    """The values of one call, or of several joined.

    Attributes:
        in_float: of the float module.
        simulated: of PT2E's simulation.
        weighed: of the simulation if all stored values before are exact, so that only weights are rounded.
        ours: of the integer arithmetic.
    """

    in_float: Values
    simulated: Values
    weighed: Values
    ours: Values

    def row(
        self,
        node: Node,
        stored: TensorType,
        name: str,
        made: Node,
        before: Sequence[float],
        place: int,
        judges: Callable[[Array], Judge] | None,
    ) -> Layer:
        """The row of a value.

        Args:
            node: its node in the simulation.
            stored: its type in the graph.
            name: its name there.
            made: the float operator whose result it is.
            before: signal to noise in dB of the stored values from which it is computed.
            place: its index among the rows.
            judges: of an output, how its exact values are judged by parts.
        """
        exact = self.in_float[made.name]
        step = (int(node.args[2]), float(node.args[1])) if _is_quantize(node) else (0, 1.0)  # type: ignore[arg-type]
        simulated = _real(self.simulated[node.name], *step)
        real = self.ours[name] if stored.q is None else _real(self.ours[name], stored.q.zero, stored.q.scale)
        judge, weighed = judges and judges(exact), self.weighed.get(made.name)
        by_channels = made.op == "placeholder"
        value = measured(exact, real, stored, before, judge, weighed, simulated, by_channels)
        module = ["", *module_paths(self._with_weights(made) if value["cause"] == "weights" else made)][-1]
        dtype = stored.dtype.removesuffix("x4")
        return Layer(made.name, module, source_of(made), place=place, output=bool(judges), stored=dtype, **value)

    def _with_weights(self, made: Node) -> Node:
        """The last call before a stored value, or that of its own operator, which reads a rounded weight."""
        waiting = [made]
        for node in waiting:
            if any(is_qdq(source) and _rounded(source).name not in self.in_float for source in node.all_input_nodes):
                return node
            waiting += [source for source in node.all_input_nodes if not is_qdq(source) and source not in waiting]
        return made


def _rows(exported: ExportedProgram, graph: Graph, found: _Found) -> tuple[Layer, ...]:
    """The rows of a comparison, the largest loss first."""
    layers: dict[str, Layer] = {}
    states = len(exported.graph_signature.buffers_to_mutate)
    ends = [node for node in exported.graph.output_node().args[0][states:] if isinstance(node, Node)]
    floats = {node.name: _rounded(node).name for node in exported.graph.nodes if is_qdq(node)}
    joined = (o and (o[0], [floats.get(name, name) for name in o[1]]) for o in origins_of(graph, graph.results))
    origins = dict(zip(ends, joined, strict=True))
    origins |= {node.all_input_nodes[0]: origin for node, origin in origins.items() if is_qdq(node)}

    def row(node: Node, name: str) -> Layer:
        judges = (lambda exact: Judge([[exact]], [origins[node]])) if node in origins else None
        made = _rounded(node)
        return found.row(node, graph.types[name], name, made, list(before(made)), len(layers), judges)

    def before(made: Node) -> Iterator[float]:
        """The ratios of the stored values that a value is computed from. One that is only moved has no row: its bytes
        are those of its source."""
        waiting, met = [made], {made}
        for node in waiting:
            new = [source for source in node.all_input_nodes if source not in met]
            met.update(new)
            rows = [source for source in new if _is_quantize(source) and source.name in layers]
            yield from (layers[source.name].snr for source in rows)
            waiting += [source for source in new if source.op == "call_function" and source not in rows]

    for node in exported.graph.nodes:
        if node.name in found.ours and _is_quantize(node) and graph.types[node.name].dtype in RANGES:
            layers[node.name] = row(node, node.name)
    for node, name in zip(ends, graph.results, strict=True):
        if is_qdq(node) and node.all_input_nodes[0].name in layers:
            continue
        made = _rounded(node)  # the output is a moved value, whose bytes are those of its source
        if made.op == "call_function" and made.name in found.in_float and node.name in found.simulated:  # not a state
            layers[made.name] = row(node, name)
    return tuple(sorted(layers.values(), key=lambda layer: (-layer.lost, -layer.clipped)))


def _joined(calls: Sequence[Values]) -> Values:
    """The values of all calls, concatenated along the first dimension."""
    first, *others = calls
    return {
        name: np.concatenate([np.atleast_1d(value), *(np.atleast_1d(call[name]) for call in others)])
        for name, value in first.items()
    }


def _real(stored: Array, zero: int, scale: float) -> Array:
    """Stored integers dequantized, float64."""
    return np.asarray((stored.astype(np.float64) - zero) * scale)


def _at_sizes(exported: ExportedProgram, inputs: checks.Tensors) -> ExportedProgram:
    """A program that was quantized with dynamic_shapes, for inputs of these sizes."""
    said = noted(exported.graph_module, SIZES)
    ranks = [node.meta["val"].dim() for node in _inputs(exported)]
    if said is None or ranks != [x.dim() for x in inputs]:
        return exported
    found = Dimensions.of(said)
    if isinstance(point := found.point([x.shape for x in inputs]), str):
        raise InputError(f"the inputs have other sizes than dynamic_shapes names: {point}")
    return at(exported, found, point)


def _inputs(exported: ExportedProgram) -> list[Node]:
    names = set(exported.graph_signature.user_inputs)
    return [node for node in exported.graph.nodes if node.name in names]


def _check_inputs(exported: ExportedProgram, example: checks.Tensors) -> None:
    """Raises InputError unless inputs have the number, shapes and dtypes with which a program was exported."""
    wanted = [node.meta["val"] for node in _inputs(exported)]
    if len(example) != len(wanted):
        raise InputError(f"expected {counted(len(wanted), 'input')}, found {len(example)}")
    for index, (x, one) in enumerate(zip(example, wanted, strict=True)):
        sizes = [size if isinstance(size, int) else None for size in one.shape]
        if not checks.is_like(x, one.dtype, sizes):
            wanted_one = f"{one.dtype} {checks.listed(sizes)}"
            raise InputError(
                f"input {index} is {checks.described([x])}, the program was exported for {wanted_one}: give inputs of "
                "that size, or quantize with dynamic_batch=True or dynamic_shapes for others"
            )
        if not torch.isfinite(x).all():
            raise InputError(f"input {index} holds NaN or infinity, beside which no noise is measured: clean it")


def _float_values(module: torch.nn.Module, exported: ExportedProgram, calls: Sequence[checks.Tensors]) -> list[Values]:
    """The float module's values in each call."""
    signature = exported.graph_signature
    names, changed = list(signature.buffers_to_mutate.values()), changed_buffers(module, calls[0])
    initial = tuple(exported.state_dict[name] for name in names)
    source, program = Traceable.exported(module, calls[0], changed, bool(exported.range_constraints) and not names)
    if names != (source.states.names if source.states else []):
        raise InputError(_ANOTHER)
    graph = source.folded(program)
    fold_norms(graph)
    if noted(exported.graph_module, ASKED):  # other quantizers do not expand attention
        Quantizer(skip=noted(exported.graph_module, SKIPPED, ())).transform_for_annotation(graph)
    give_zeros(graph)
    reads = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    inputs = [*signature.user_inputs, *(reads[name] for name in names)]
    same = dict(zip(inputs, graph.graph.find_nodes(op="placeholder"), strict=True))
    computed = {n.name: n for n in exported.graph.nodes if n.op == "call_function" and not is_qdq(n)}
    found = {n.name: n for n in graph.graph.nodes if n.op == "call_function"}
    kept = {name for name in computed.keys() - found if computed[name].target is torch.ops.aten.clone.default}
    if {name: n.target for name, n in found.items()} != {n: computed[n].target for n in computed.keys() - kept}:
        raise InputError(_ANOTHER)
    same |= found
    ends = {node.name for node in graph.graph.output_node().all_input_nodes}
    outputs = _recorded(graph, calls, initial)
    equalize_alike(graph, {node: same[name] for name, node in computed.items() if name in same})
    return [
        {name: (first if f.name in ends else values)[f.name] for name, f in same.items() if f.name in values}
        for values, first in zip(_recorded(graph, calls, initial), outputs, strict=True)
    ]


_ANOTHER = "the exported program was not made from this module by q8ta_wgpu.quantize"


def _simulated(
    exported: ExportedProgram, calls: Sequence[checks.Tensors], known: Sequence[Values] = ()
) -> list[Values]:
    """The values of PT2E's simulation in each call. The simulation keeps states itself. `known` values are read as they
    are where rounded ones would be."""
    module = exported.module(check_guards=False)
    return _recorded(copy.deepcopy(module) if exported.graph_signature.buffers_to_mutate else module, calls, (), known)


def _integer_values(
    exported: ExportedProgram, calls: Sequence[checks.Tensors]
) -> tuple[Graph, dict[str, str], list[Values]]:
    """The runnable graph, in which the result of each quantize is a value of its own, what the user's program calls
    its values, and these in each call."""
    graph, structure = import_program(exported)
    names = user_names(graph)
    graph = run_passes(graph, [step for step in PASSES if step is not fold_epilogues])
    if graph.batched:
        graph = Model(graph, structure).rebatch(calls[0][0].shape[0]).graph
    held, found = reference.initial_states(graph), list[Values]()
    for call in calls:
        inputs = {n: graph.stored(n, x.numpy()) for n, x in zip(graph.arguments, call, strict=True)}
        values = reference.run(graph, {**inputs, **held}, True)
        held = {state.read: values[state.written] for state in graph.states}
        found.append(values)
    return graph, names, found


def _recorded(
    module: torch.fx.GraphModule,
    calls: Sequence[checks.Tensors],
    states: checks.Tensors = (),
    known: Sequence[Values] = (),
) -> list[Values]:
    """Every tensor that a graph computes in each call, by name. The graph's last inputs are states, and its last
    results their new values. In place of a dequantized value the `known` one of the call is read."""
    values: list[Values] = []

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            exact = known[len(values) - 1].get(_rounded(n).name) if known and is_qdq(n) else None
            if exact is not None and not _is_quantize(n):
                return torch.from_numpy(exact)
            result = super().run_node(n)
            if isinstance(result, torch.Tensor) and n.op != "get_attr":
                values[-1][n.name] = result.numpy().copy()  # a later call may write into this memory
            return result

    for call in calls:
        values.append({})
        found = pytree.tree_leaves(Recorder(module).run(*call, *states))
        states = tuple(found[len(found) - len(states) :])
    return values


def _rounded(node: Node) -> Node:
    """The float value before a quantize, or before several in a row (int16, then int8)."""
    while is_qdq(node):
        (node,) = node.all_input_nodes[:1]
    return node


def _is_quantize(node: Node) -> bool:
    return str(node.target).startswith(f"{QDQ}.quantize_per_tensor")
