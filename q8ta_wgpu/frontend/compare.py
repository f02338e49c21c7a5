"""compare: where a quantized network loses accuracy, layer by layer."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, counted
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.attributes import changed_buffers
from q8ta_wgpu.frontend.calibrate.equalize import equalize_alike
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
from q8ta_wgpu.ir.graph import RANGES, Array, Graph
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.compare_onnx import compare as compare_file
from q8ta_wgpu.onnx_import.from_onnx import FILES, File
from q8ta_wgpu.passes import PASSES, run_passes
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues
from q8ta_wgpu.passes.plan.joins import origins_of
from q8ta_wgpu.quantization.compared import Compared
from q8ta_wgpu.quantization.comparison import Comparison


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
    compared, nodes = _compared(exported, graph, names, in_float[0], ours[0])
    real = [_real(nodes, values) for values in simulated]
    found = list(zip(in_float, ours, real, weighed, strict=True))
    each = tuple(Comparison(compared.rows(*values), precision=asked) for values in found)
    rows = compared.rows(*map(_joined, zip(*found, strict=True))) if several else each[0].layers
    output = names.get(output, output)
    return Comparison(rows, predicted, yardstick, each if several else (), asked, output)


Values = dict[str, Array]
"""The values of a call by the names of operators in the quantized program."""


def _compared(
    exported: ExportedProgram, graph: Graph, names: Mapping[str, str], in_float: Container[str], ours: Container[str]
) -> tuple[Compared, dict[str, Node]]:
    """Which values of the int8 graph have rows, and their nodes in torch's simulation: those that the program rounds to
    int8 or int16, and its outputs. An output whose bytes are those of such a value is that one."""
    nodes = {node.name: node for node in exported.graph.nodes}
    floats = {node.name: _rounded(node).name for node in nodes.values() if is_qdq(node)}
    rows = {n: node for n, node in nodes.items() if _is_quantize(node) and n in ours and graph.types[n].dtype in RANGES}
    stands, origins, results = {name: floats[name] for name in rows}, dict[str, Any](), set[str]()
    states = len(exported.graph_signature.buffers_to_mutate)
    ends = [node for node in exported.graph.output_node().args[0][states:] if isinstance(node, Node)]
    for node, name, joined in zip(ends, graph.results, origins_of(graph, graph.results), strict=True):
        made, row = _rounded(node), node.all_input_nodes[0].name if is_qdq(node) else ""
        if row not in rows:
            if made.op != "call_function" or made.name not in in_float:
                continue
            rows[name], stands[name], row = node, made.name, name
        results.add(row)
        origins[row] = joined and (joined[0], [floats.get(part, part) for part in joined[1]])

    def place(name: str, cause: str) -> tuple[str, str, str]:
        made = nodes[name]
        module = ["", *module_paths(_with_weights(made, in_float) if cause == "weights" else made)][-1]
        return names.get(name, name), module, source_of(made)

    inputs = {node.name for node in exported.graph.find_nodes(op="placeholder")}
    return Compared(graph, stands, origins, results, inputs, place), rows


def _with_weights(made: Node, in_float: Container[str]) -> Node:
    """The last call before a stored value, or that of its own operator, which reads a rounded weight."""
    waiting = [made]
    for node in waiting:
        if any(is_qdq(source) and _rounded(source).name not in in_float for source in node.all_input_nodes):
            return node
        waiting += [source for source in node.all_input_nodes if not is_qdq(source) and source not in waiting]
    return made


def _joined(calls: Sequence[Values]) -> Values:
    """The values of all calls, joined along the first dimension."""
    first, *others = calls
    return {
        name: np.concatenate([np.atleast_1d(value), *(np.atleast_1d(call[name]) for call in others)])
        for name, value in first.items()
    }


def _real(rows: Mapping[str, Node], simulated: Values) -> Values:
    """The values of the simulation that have rows, as real numbers, by their names in the int8 graph."""
    found = {}
    for name, node in rows.items():
        zero, scale = (int(node.args[2]), float(node.args[1])) if _is_quantize(node) else (0, 1.0)  # type: ignore[arg-type]
        found[name] = np.asarray((simulated[node.name].astype(np.float64) - zero) * scale)
    return found


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
        if not checks.is_like(x, one.dtype, one.shape):
            raise InputError(
                f"input {index} is {checks.described([x])}, the program was exported for {checks.described([one])}: "
                "give inputs of that size, or quantize with dynamic_batch=True or dynamic_shapes for others"
            )
        if not torch.isfinite(x).all():
            raise InputError(f"input {index} holds NaN or infinity, beside which no noise is measured: clean it")


def _float_values(module: torch.nn.Module, exported: ExportedProgram, calls: Sequence[checks.Tensors]) -> list[Values]:
    """The float module's values in each call."""
    signature = exported.graph_signature
    names, changed = list(signature.buffers_to_mutate.values()), changed_buffers(module, calls[0])
    initial = tuple(exported.state_dict[name] for name in names)
    source, program = Traceable.exported(module, calls[0], changed)
    if names != (source.states.names if source.states else []):
        raise InputError(_ANOTHER)
    graph = source.folded(program)
    fold_norms(graph)
    Quantizer(skip=noted(exported.graph_module, SKIPPED, ())).transform_for_annotation(graph)
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
    graph, _ = import_program(exported)
    names = user_names(graph)
    graph = run_passes(graph, [step for step in PASSES if step is not fold_epilogues])
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
