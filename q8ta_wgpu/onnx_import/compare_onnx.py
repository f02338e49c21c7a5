"""compare for ONNX files: where a quantized file loses accuracy, value by value, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.errors import InputError, UnsupportedError, shown
from q8ta_wgpu.ir.graph import RANGES, Array, Graph, Node, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.onnx_import.from_onnx import FILES, File, Sizes, local
from q8ta_wgpu.passes.plan.joins import origins_of
from q8ta_wgpu.quantization.comparison import Comparison, Layer
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.noise_causes import measured
from q8ta_wgpu.quantization.parts import Judge
from q8ta_wgpu.session.inputs import arguments, arrays

_SUFFIXES = (".stored", ".real")
"""What names of values end with that were quantized, and dequantized again."""


def compare(file: File, model: Model, inputs: Any) -> Comparison:
    """Compares a float ONNX file and its int8 model on one set of inputs.

    Examples:
        >>> model = q8.quantize("net.onnx", calibration=items)
        >>> print(q8.compare("net.onnx", model, x))    # name operators of the worst rows in skip=[...]
        >>> q8.compare("vad.onnx", model, {"input": x, "sr": 16000})    # made with constants={"sr": 16000}

    Args:
        file: the path of the float file, or its bytes.
        model: what `quantize` made of it.
        inputs: an array, a tuple of arrays in the order of the model's inputs, or a dict by their names, to which the
            constants belong that the model was made with.

    Returns:
        A Comparison: a row for every int8 or int16 value that the model stores and every output, by its name in the
        file. There is no simulation beside the integers, and noise of rounded weights counts as noise from before.

    Raises:
        InputError: the file is not the one that the model was made of, or the inputs do not fit it.
        UnsupportedError: as `from_onnx`.
    """
    if not isinstance(file, FILES) or not isinstance(model, Model):
        found = f"{shown(type(file).__name__)} and {shown(type(model).__name__)}"
        raise InputError(f"compare takes a float ONNX file and the Model that quantize made of it, found {found}")
    given, named = arguments(inputs)
    constants = {name: value for name, value in named.items() if name not in model.graph.arguments}
    values = arrays(model.graph, given, {name: value for name, value in named.items() if name not in constants})
    shapes = [values[name].shape for name in model.graph.arguments]
    if shapes != [model.graph.types[name].shape for name in model.graph.arguments]:
        model = model.reshape(*shapes)
    program = _program(local(file), model, values, constants)
    kept = {name: program.graph.stored(name, x) for name, x in values.items()}
    exact = run(program.graph, kept, keep=True)
    ours = run(model.graph, {name: model.graph.stored(name, x) for name, x in values.items()}, keep=True)
    rows = _Rows(program, model.graph, exact, ours).run()
    asked = any(decision.by == "asked for" for decision in model.graph.decisions)
    return Comparison(rows, precision="int16" if asked else "auto" if model.graph.decisions else "", of_file=True)


def _program(file: File, model: Model, values: Mapping[str, Array], constants: Mapping[str, Any]) -> FloatProgram:
    """The float program at the sizes of the inputs. Raises InputError where the file has other inputs."""
    try:
        from q8ta_wgpu.onnx_import.read import read
    except ModuleNotFoundError as error:
        raise UnsupportedError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error
    data = read(file)
    given = {*values, *constants, *data.constants}
    if missing := [port.name for port in data.graph.input if port.name not in given]:
        raise InputError(
            f"the file has an input {shown(missing[0])} that the model does not have: if it was fixed by constants=, "
            f"give its value beside the inputs, {{{shown(missing[0])}: ...}}; else give the file that it was made of"
        )
    ports = [port for port in data.graph.input if port.name in values]
    sizes = {
        dim.dim_param or f"{port.name}.{i}": values[port.name].shape[i]
        for port in ports
        for i, dim in enumerate(port.type.tensor_type.shape.dim)
        if dim.WhichOneof("value") != "dim_value" or dim.dim_value < 1
    }
    program = Sizes(file, sizes, constants).programs[0]
    if program.graph.arguments != model.graph.arguments or len(program.graph.results) != len(model.graph.results):
        raise InputError(
            f"the model has the inputs {', '.join(model.graph.arguments)}, the file {', '.join(program.graph.inputs)}: "
            "give the file that it was made of"
        )
    return program


@dataclass
class _Rows:
    """The rows of a comparison.

    Attributes:
        program: the float program.
        graph: of the int8 model.
        exact, ours: the values of both, by name.
        found: the rows so far, by the name of the value in the int8 model.
    """

    program: FloatProgram
    graph: Graph
    exact: Mapping[str, Array]
    ours: Mapping[str, Array]
    found: dict[str, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._made = {node.output: node for node in self.graph.nodes}
        self._sources = {node.output: node for node in self.program.graph.nodes}

    def run(self) -> tuple[Layer, ...]:
        """All rows, the largest loss first."""
        names = self.program.graph.results
        ends = dict(zip(self.graph.results, names, strict=True))
        origins = dict(zip(self.graph.results, origins_of(self.program.graph, names), strict=True))
        for node in self.graph.nodes:
            stored = self.graph.types[node.output]
            name = ends.get(node.output, self._name(node.output))
            fits = name in self.exact and self.exact[name].shape == stored.shape
            if node.output in ends or (fits and stored.dtype in RANGES and name in self.program.observable):
                judge = Judge([[self.exact[name]]], [origins[node.output]]) if node.output in ends else None
                self.found[node.output] = self._row(node, name, stored, judge)
        return tuple(sorted(self.found.values(), key=lambda layer: (-layer.lost, -layer.clipped)))

    def _name(self, value: str) -> str:
        """The name in the float program of what is stored."""
        while value.endswith(_SUFFIXES):
            value = value.removesuffix(_SUFFIXES[0]).removesuffix(_SUFFIXES[1])
        return value

    def _row(self, node: Node, name: str, stored: TensorType, judge: Judge | None) -> Layer:
        exact, real = self.exact[name], self.ours[node.output]
        if stored.q is not None:
            real = (real.astype(np.float64) - stored.q.zero) * stored.q.scale
        value = measured(exact, real, stored, [*self._before(node)], judge)
        paths = self.program.paths.get(self.program.calls.get(name, ""), ("",))
        source = self._sources[name].source if name in self._sources else ""
        called, dtype = self.program.names.get(name, name), stored.dtype.removesuffix("x4")
        place, output = len(self.found), judge is not None
        return Layer(called, paths[0], source, place=place, output=output, stored=dtype, **value)

    def _before(self, node: Node) -> Iterator[float]:
        """The ratios of the stored values that a node reads, perhaps behind others that have no row."""
        waiting = list(node.inputs)
        for name in waiting:
            if name in self.found:
                yield self.found[name].snr
            elif name in self._made:
                waiting += [each for each in self._made[name].inputs if each not in waiting]
