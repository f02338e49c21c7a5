"""compare: where a quantized network loses accuracy, layer by layer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, counted
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.attributes import Attributes, changed_buffers
from q8ta_wgpu.frontend.calibrate.equalize import equalize_alike
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.calibrate.simulate import decibels, fill_of
from q8ta_wgpu.frontend.comparison import Comparison, Layer
from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.export.formulas import at
from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.frontend.nodes import QDQ, is_qdq, module_paths, source_of
from q8ta_wgpu.frontend.notes import PRECISION, SIZES, noted
from q8ta_wgpu.ir.graph import RANGES, Array, Graph
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import PASSES, run_passes
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues


def compare(
    module: torch.nn.Module,
    exported: ExportedProgram,
    inputs: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]],
) -> Comparison:
    """Compares the float module, PT2E's simulation and the integer arithmetic on one set of inputs, or on several calls
    one after the other. Each of the three has its own states, which begin with the same values.

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
        A Comparison: a row for every stored int8 value and every output.

    Raises:
        InputError: the inputs differ from the example, the module does not run on them, or `exported` is not an
            exported program or was made from another module.
        UnsupportedError: as `quantize` and `compile` raise it.
    """
    checks.check_module(module)
    several = isinstance(inputs, (tuple, list)) and bool(inputs) and isinstance(inputs[0], (tuple, list))
    calls = [checks.example(call) for call in (inputs if several else [inputs])]
    if not isinstance(exported, ExportedProgram):
        raise InputError(f"exported must be the program that quantize returned, found {type(exported).__name__}")
    exported = _at_sizes(exported, calls[0])
    for call in calls:
        _check_inputs(exported, call)
    before = Attributes(module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            in_float = _float_values(module, exported, calls)
        finally:
            before.put_back()
        simulated = _simulated(exported, calls)
    graph, ours = _integer_values(exported, calls)
    _, yardstick, _, predicted = noted(exported.graph_module, PRECISION, (None,) * 4)
    each = [Comparison(_rows(exported, graph, *values)) for values in zip(in_float, simulated, ours, strict=True)]
    if not several:
        return Comparison(each[0].layers, predicted, yardstick)
    rows = _rows(exported, graph, _joined(in_float), _joined(simulated), _joined(ours))
    return Comparison(rows, predicted, yardstick, tuple(each))


Values = dict[str, Array]
"""The values of a call by the names of operators in the quantized program."""


def _rows(
    exported: ExportedProgram, graph: Graph, in_float: Values, simulated: Values, ours: Values
) -> tuple[Layer, ...]:
    """The rows of a comparison, the largest loss first."""
    layers: dict[str, Layer] = {}
    for node in exported.graph.nodes:
        if node.name in ours and _is_quantize(node) and graph.types[node.name].dtype in RANGES:
            layers[node.name] = _layer(node, graph, in_float, simulated, ours[node.name], layers)
    states = len(exported.graph_signature.buffers_to_mutate)
    ends = [node for node in exported.graph.output_node().args[0][states:] if isinstance(node, Node)]
    for node, name in zip(ends, graph.results, strict=True):
        stored = node.all_input_nodes[0].name if is_qdq(node) else ""
        if stored in layers:
            layers[stored] = replace(layers[stored], output=True)
            continue
        made = _rounded(node)  # the output is a moved value, whose bytes are those of its source
        if made.op == "call_function" and made.name in in_float and node.name in simulated:  # not a state
            q, array = graph.types[name].q, ours[name]
            real = array if q is None else _real(array, q.zero, q.scale)
            simulation, snr = (_snr(in_float[made.name], found) for found in (simulated[node.name], real))
            layers[made.name] = replace(_row(made, simulation, snr, 0.0, _read(made), layers), output=True)
    return tuple(sorted(layers.values(), key=lambda layer: (-layer.lost, -layer.clipped)))


def _joined(calls: Sequence[Values]) -> Values:
    """The values of all calls, concatenated along the first dimension."""
    first, *others = calls
    return {
        name: np.concatenate([np.atleast_1d(value), *(np.atleast_1d(call[name]) for call in others)])
        for name, value in first.items()
    }


def _layer(
    node: Node,
    graph: Graph,
    in_float: dict[str, Array],
    simulated: dict[str, Array],
    stored: Array,
    done: dict[str, Layer],
) -> Layer:
    made = _rounded(node)
    exact, q = in_float[made.name], graph.types[node.name].q
    assert q is not None
    low, high = (
        (end - q.zero + side / 2) * q.scale
        for end, side in zip(RANGES[graph.types[node.name].dtype], (-1, 1), strict=True)
    )
    snr = _snr(exact, _real(stored, q.zero, q.scale))
    step, zero = float(node.args[1]), int(node.args[2])  # type: ignore[arg-type]
    simulation = _snr(exact, _real(simulated[node.name], zero, step))
    clipped = float(np.mean((exact < low) | (exact > high)))
    read = [name for source in node.all_input_nodes for name in _read(source)]
    return _row(made, simulation, snr, clipped, read, done)


def _real(stored: Array, zero: int, scale: float) -> Array:
    """Stored integers dequantized, float64."""
    return np.asarray((stored.astype(np.float64) - zero) * scale)


def _row(
    made: Node, simulation: float, snr: float, clipped: float, read: Iterable[str], done: dict[str, Layer]
) -> Layer:
    paths, before = module_paths(made), [done[name].snr for name in read if name in done]
    lost = max(0.0, min(before) - snr) if before else 0.0
    return Layer(made.name, paths[-1] if paths else "", source_of(made), simulation, snr, lost, clipped, len(done))


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
    reads = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    inputs = [*signature.user_inputs, *(reads[name] for name in names)]
    known = [n for n in exported.graph.nodes if n.op == "call_function" and not is_qdq(n)]
    for transform in (lambda _: None, Quantizer().transform_for_annotation):  # other quantizers do not expand attention
        transform(graph)
        found = graph.graph.find_nodes(op="placeholder")
        same = dict(zip(inputs, found, strict=True))
        found = [node for node in graph.graph.nodes if node.op == "call_function"]
        if [str(n.target) for n in found] == [str(n.target) for n in known]:
            ends = {node.name for node in graph.graph.output_node().all_input_nodes}
            outputs = _recorded(graph, calls, initial)
            equalize_alike(graph, dict(zip(known, found, strict=True)))
            same |= {n.name: f for n, f in zip(known, found, strict=True)}
            return [
                {name: (first if f.name in ends else values)[f.name] for name, f in same.items() if f.name in values}
                for values, first in zip(_recorded(graph, calls, initial), outputs, strict=True)
            ]
    raise InputError(_ANOTHER)


_ANOTHER = "the exported program was not made from this module by q8ta_wgpu.quantize"


def _simulated(exported: ExportedProgram, calls: Sequence[checks.Tensors]) -> list[Values]:
    """The values of PT2E's simulation in each call. The simulation keeps states itself."""
    module = exported.module(check_guards=False)
    return _recorded(copy.deepcopy(module) if exported.graph_signature.buffers_to_mutate else module, calls)


def _integer_values(exported: ExportedProgram, calls: Sequence[checks.Tensors]) -> tuple[Graph, list[Values]]:
    """The runnable graph, in which the result of each quantize is a value of its own, and its values in each call."""
    graph, structure = import_program(exported)
    graph = run_passes(graph, [step for step in PASSES if step is not fold_epilogues])
    if graph.batched:
        graph = Model(graph, structure).rebatch(calls[0][0].shape[0]).graph
    held, found = reference.initial_states(graph), list[Values]()
    for call in calls:
        inputs = {n: graph.stored(n, x.numpy()) for n, x in zip(graph.arguments, call, strict=True)}
        values = reference.run(graph, {**inputs, **held}, True)
        held = {state.read: values[state.written] for state in graph.states}
        found.append(values)
    return graph, found


def _recorded(
    module: torch.fx.GraphModule, calls: Sequence[checks.Tensors], states: checks.Tensors = ()
) -> list[Values]:
    """Every tensor that a graph computes in each call, by name. The graph's last inputs are states, and its last
    results their new values."""
    values: list[Values] = []

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
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


def _read(node: Node) -> Iterator[str]:
    """The stored values that a value is computed from."""
    for source in node.all_input_nodes:
        if _is_quantize(source):
            yield source.name
        elif source.op == "call_function":
            yield from _read(source)


def _is_quantize(node: Node) -> bool:
    return str(node.target).startswith(f"{QDQ}.quantize_per_tensor")


FEWEST = 8
"""With fewer values, a channel's noise is not compared to its own signal. A channel of a single value, such as a class
of a classifier, may be near zero by chance, which makes the ratio meaningless."""


def _snr(exact: Array, found: Array) -> float:
    """The signal-to-noise ratio in dB, at most 120. Noise to signal is averaged over channels (dimension 1), so that a
    large channel does not hide the losses of small ones. A channel with more noise than signal counts as 0 dB, since
    the ratio of one with almost no signal (behind a ReLU, for example) is arbitrary. If all channels have more noise
    than signal, or if channels have few values, the ratio is computed over all values together. What takes the place of
    masked elements is no signal."""
    exact, found = exact.astype(np.float64), found.reshape(exact.shape)
    if (fill := fill_of([torch.from_numpy(exact)])) is not None:
        exact, found = (np.where(exact == fill, 0, x) for x in (exact, found))
    noise = (exact - found) ** 2
    apart = exact.ndim > 1 and exact.size >= FEWEST * exact.shape[1]
    other = tuple(axis for axis in range(exact.ndim) if axis != 1) if apart else None
    signals, noises = np.sum(exact**2, axis=other), np.sum(noise, axis=other)
    each = np.minimum(noises, signals) / np.maximum(signals, np.finfo(float).tiny)
    ratio = max(float(np.mean(each)), float(np.sum(noises) / max(np.sum(signals), np.finfo(float).tiny)))
    return decibels(ratio)
