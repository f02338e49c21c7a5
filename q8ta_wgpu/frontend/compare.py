"""compare: where a quantized network loses accuracy, layer by layer."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, UnsupportedError, counted
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.calibrate.equalize import equalize_alike
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.importer.importer import PRECISION, import_program
from q8ta_wgpu.frontend.nodes import QDQ, is_qdq, module_paths, source_of
from q8ta_wgpu.frontend.quantize import batched, float_graph, float_program
from q8ta_wgpu.ir.graph import RANGES, Array, Graph
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import PASSES, run_passes
from q8ta_wgpu.passes.fold_epilogues import fold_epilogues
from q8ta_wgpu.writing import write

CLIPPED = 0.01
"""Share of a layer's values at the ends of its range from which clipping counts as the cause of a loss."""

LOSS = 3.0
"""dB that a layer may lose before advice names it: halving a scale is worth six."""


_LISTED = 4
"""Most names in a sentence."""


@dataclass(frozen=True)
class Layer:
    """One stored int8 value, or an output of the network.

    Attributes:
        name: the operator whose result it is, in the exported program.
        module: path of its module, as `Quantizer(skip=[...])` takes it; empty without one.
        source: where in the user's model.
        simulated: signal-to-noise ratio in dB of PT2E's simulation against the float module, over all channels.
        snr: the same of this library's integer arithmetic.
        lost: dB by which `snr` is below the worst of the values that the layer reads.
        clipped: share of the float values beyond the int8 range; 0 for values that are not stored in int8.
        place: its index in the network's order.
        output: whether it is an output of the network.
    """

    name: str
    module: str
    source: str
    simulated: float
    snr: float
    lost: float
    clipped: float
    place: int
    output: bool = False


@dataclass(frozen=True)
class Comparison:
    """Every stored int8 value of a network and its outputs, the largest loss first. `print` shows the table, and below
    it what to do.

    Attributes:
        layers: the rows, as `Layer`.
        predicted: signal to noise in dB that `quantize` predicted for the output that is farthest below the yardstick;
            None where it predicted none.
        yardstick: of a network that rounds nothing but weights and what weighted sums read, on the same inputs.
    """

    layers: tuple[Layer, ...]
    predicted: float | None = None
    yardstick: float | None = None

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do: a sentence for each cause of a loss; empty where little is lost."""
        clipped = [x.name for x in self.layers if x.clipped > CLIPPED]
        lossy = [x for x in self.layers if x.lost >= LOSS and x.clipped <= CLIPPED]
        found = []
        if lossy:
            modules = dict.fromkeys(x.module for x in lossy if x.module)
            skip = f"Quantizer(skip=[{', '.join([*map(repr, modules), '...'])}])"
            found.append(
                f"{_listed([x.name for x in lossy])}: 8 bits are too few. {skip} leaves modules in float; name those "
                "that read the value, too"
            )
        if clipped:
            found.append(
                f"{_listed(clipped)}: clipped. Calibrate with inputs that reach so far, or by another observer"
            )
        return tuple(found)

    def __str__(self) -> str:
        head = f"{'lost dB':>8} {'SNR dB':>8} {'PT2E dB':>8} {'clipped':>8}  layer"
        rows = [
            f"{x.lost:8.1f} {x.snr:8.1f} {x.simulated:8.1f} {100 * x.clipped:7.2f}%  {x.name} {x.source}".rstrip()
            + (" (output)" if x.output else "")
            for x in self.layers
        ]
        if self.predicted is not None and self.yardstick is not None:
            rows.append(
                f"{self.predicted:.1f} dB were predicted for the outputs, where rounding nothing but weights and what "
                f"they are multiplied by leaves {self.yardstick:.1f}"
            )
        return "\n".join([head, *rows, *self.advice])

    def plot(self, path: str | Path) -> None:
        """Draws both ratios of every layer in the network's order to an image file (matplotlib). Raises
        UnsupportedError without matplotlib, InputError where the file cannot be written."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise UnsupportedError('a plot needs matplotlib: pip install "q8ta-wgpu[show]"') from error
        figure = Figure(figsize=(max(6.0, 0.18 * len(self.layers)), 5), layout="constrained")
        axes = figure.add_subplot()
        order = sorted(self.layers, key=lambda layer: layer.place)
        axes.plot([x.simulated for x in order], "o-", label="PT2E simulation")
        axes.plot([x.snr for x in order], ".--", label="int8")
        axes.set_xticks(range(len(order)), [x.name for x in order], rotation=90, fontsize=6, parse_math=False)
        axes.set_ylabel("signal to noise in dB")
        axes.legend()
        drawn = io.BytesIO()
        try:
            figure.savefig(drawn, format=Path(path).suffix[1:])
        except ValueError as error:  # an ending that matplotlib does not know
            raise InputError(f"cannot write {path}: {error}") from error
        write(Path(path), drawn.getvalue())


def compare(module: torch.nn.Module, exported: ExportedProgram, inputs: Sequence[torch.Tensor]) -> Comparison:
    """Compares the float module, PT2E's simulation and the integer arithmetic on one set of inputs.

    Examples:
        >>> exported = q8.quantize(module, example_inputs, calibration=batches)
        >>> comparison = q8.compare(module, exported, (x,))
        >>> worst = comparison.layers[0]    # its snr in dB, and how much it lost

    Args:
        module: the float module, in eval mode.
        exported: what `quantize` made of it.
        inputs: positional arguments with the shapes and dtypes of the example inputs; with a dynamic batch, of any
            batch size.

    Returns:
        A Comparison: a row for every stored int8 value and every output.

    Raises:
        InputError: the inputs differ from the example, the module does not run on them, or `exported` is no exported
            program or was made from another module.
        UnsupportedError: as `quantize` and `compile` raise it.
    """
    checks.check_module(module)
    example = checks.example(inputs)
    if not isinstance(exported, ExportedProgram):
        raise InputError(f"exported must be the program that quantize returned, found {type(exported).__name__}")
    _check_inputs(exported, example)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if states := checks.check_runs(module, example):
            raise UnsupportedError(
                f"the module changes its buffers {', '.join(states)}, and compare looks at one call: give it a module "
                "that takes them as inputs"
            )
        in_float = _float_values(module, exported, example)
        simulated = _recorded(exported.module(check_guards=False), example)
    graph, structure = import_program(exported)
    graph = run_passes(graph, [step for step in PASSES if step is not fold_epilogues])
    if graph.batched:
        graph = Model(graph, structure).rebatch(example[0].shape[0]).graph
    ours = reference.run(
        graph, {n: graph.stored(n, x.numpy()) for n, x in zip(graph.inputs, example, strict=True)}, True
    )
    layers: dict[str, Layer] = {}
    for node in exported.graph.nodes:
        if node.name in ours and _is_quantize(node) and graph.types[node.name].dtype in RANGES:
            layers[node.name] = _layer(node, graph, in_float, simulated, ours[node.name], layers)
    ends = [node for node in exported.graph.output_node().args[0] if isinstance(node, Node)]
    for node, name in zip(ends, graph.outputs, strict=True):
        stored = node.all_input_nodes[0].name if is_qdq(node) else ""
        if stored in layers:
            layers[stored] = replace(layers[stored], output=True)
        elif node.name in in_float:
            layers[node.name] = _output(node, in_float, simulated, ours[name], layers)
    rows = tuple(sorted(layers.values(), key=lambda layer: (-layer.lost, -layer.clipped)))
    _, yardstick, _, predicted = exported.graph_module.meta.get("custom", {}).get(PRECISION, (None,) * 4)
    return Comparison(rows, predicted, yardstick)


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
    snr = _snr(exact, (stored.astype(np.float64) - q.zero) * q.scale)
    step, zero = float(node.args[1]), int(node.args[2])  # type: ignore[arg-type]
    simulation = _snr(exact, (simulated[node.name].astype(np.float64) - zero) * step)
    clipped = float(np.mean((exact < low) | (exact > high)))
    read = [name for source in node.all_input_nodes for name in _read(source)]
    return _row(made, simulation, snr, clipped, read, done)


def _output(
    node: Node, in_float: dict[str, Array], simulated: dict[str, Array], ours: Array, done: dict[str, Layer]
) -> Layer:
    """The row of a result in float."""
    exact = in_float[node.name]
    row = _row(node, _snr(exact, simulated[node.name]), _snr(exact, ours), 0.0, _read(node), done)
    return replace(row, output=True)


def _row(
    made: Node, simulation: float, snr: float, clipped: float, read: Iterable[str], done: dict[str, Layer]
) -> Layer:
    paths, before = module_paths(made), [done[name].snr for name in read if name in done]
    lost = max(0.0, min(before) - snr) if before else 0.0
    return Layer(made.name, paths[-1] if paths else "", source_of(made), simulation, snr, lost, clipped, len(done))


def _check_inputs(exported: ExportedProgram, example: checks.Tensors) -> None:
    """Raises InputError unless inputs are of the number, shapes and dtypes that a program was exported with."""
    names = set(exported.graph_signature.user_inputs)
    wanted = [node.meta["val"] for node in exported.graph.nodes if node.name in names]
    if len(example) != len(wanted):
        raise InputError(f"expected {counted(len(wanted), 'input')}, found {len(example)}")
    for index, (x, one) in enumerate(zip(example, wanted, strict=True)):
        same = x.dim() == one.dim() and all(
            not isinstance(size, int) or size == found for size, found in zip(one.shape, x.shape, strict=True)
        )
        if not same or x.dtype != one.dtype:
            sizes = ", ".join(str(size) if isinstance(size, int) else "any" for size in one.shape)
            raise InputError(
                f"input {index} is {checks.described([x])}, the program was exported for {one.dtype} ({sizes}): give "
                "inputs of that size, or quantize with dynamic_batch=True for any batch"
            )


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, of many the first."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def _float_values(module: torch.nn.Module, exported: ExportedProgram, example: checks.Tensors) -> dict[str, Array]:
    """The float module's values, by the names their operators have in the quantized program."""
    dynamic = bool(exported.range_constraints)
    graph = float_graph(float_program(module, batched(example) if dynamic else example, dynamic))
    calls = [node for node in exported.graph.nodes if not is_qdq(node)]
    for transform in (lambda _: None, Quantizer().transform_for_annotation):  # others leave attention whole
        transform(graph)
        found = [node for node in graph.graph.nodes if node.op in ("placeholder", "call_function")]
        inputs = set(exported.graph_signature.user_inputs)
        known = [n for n in calls if n.op == "call_function" or n.name in inputs]
        if [str(n.target) for n in found if n.op != "placeholder"] == [
            str(n.target) for n in known if n.op != "placeholder"
        ]:
            outputs = _outputs(graph, example)
            equalize_alike(graph, dict(zip(known, found, strict=True)))
            values = {**_recorded(graph, example), **outputs}
            return {n.name: values[f.name] for n, f in zip(known, found, strict=True) if f.name in values}
    raise InputError("the exported program was not made from this module by q8ta_wgpu.quantize")


def _outputs(module: torch.fx.GraphModule, example: checks.Tensors) -> dict[str, Array]:
    """The tensors that a graph gives, by name."""
    (output,) = module.graph.find_nodes(op="output")
    results = zip(pytree.tree_leaves(output.args), pytree.tree_leaves(Interpreter(module).run(*example)), strict=True)
    return {node.name: value.numpy() for node, value in results if isinstance(value, torch.Tensor)}


def _recorded(module: torch.fx.GraphModule, example: checks.Tensors) -> dict[str, Array]:
    """Every tensor a graph computes, by name."""
    values: dict[str, Array] = {}

    class Recorder(Interpreter):
        def run_node(self, n: Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor) and n.op != "get_attr":
                values[n.name] = result.numpy()
            return result

    Recorder(module).run(*pytree.tree_leaves(example))
    return values


def _rounded(node: Node) -> Node:
    """The float value behind a quantize: also behind an int16 one before it, whose values are read in int8 as well."""
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
"""Values from which a channel's noise is set against its own signal: of a single one, as a classifier gives for each
class, that is near zero by chance, the ratio says nothing."""


def _snr(exact: Array, found: Array) -> float:
    """In dB, at most 120: noise to signal, the mean over all channels (dimension 1), so that no large channel hides
    what small ones lose. A channel a million times weaker than the others counts as silent; where channels have few
    values, all are taken together."""
    exact = exact.astype(np.float64)
    noise = (exact - found.reshape(exact.shape)) ** 2
    apart = exact.ndim > 1 and exact.size >= FEWEST * exact.shape[1]
    other = tuple(axis for axis in range(exact.ndim) if axis != 1) if apart else None
    signals, noises = np.sum(exact**2, axis=other), np.sum(noise, axis=other)
    ratio = float(np.mean(noises / (signals + 1e-6 * np.mean(signals) + 1e-30)))
    return min(120.0, -10 * float(np.log10(ratio))) if ratio > 0 else 120.0
