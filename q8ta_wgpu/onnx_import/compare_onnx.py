"""compare for ONNX files: where a quantized file loses accuracy, value by value, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from q8ta_wgpu.errors import InputError, UnsupportedError, shown
from q8ta_wgpu.ir.graph import RANGES, Array, Graph
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.onnx_import.from_onnx import FILES, File, Sizes, local
from q8ta_wgpu.passes.plan.joins import origins_of
from q8ta_wgpu.quantization.compared import Compared
from q8ta_wgpu.quantization.comparison import Comparison
from q8ta_wgpu.quantization.float_program import FloatProgram
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
    rows = _compared(program, model.graph).rows(exact, ours)
    asked = any(decision.by == "asked for" for decision in model.graph.decisions)
    return Comparison(rows, precision="int16" if asked else "auto" if model.graph.decisions else "", of_file=True)


def _program(file: File, model: Model, values: Mapping[str, Array], constants: Mapping[str, Any]) -> FloatProgram:
    """The float program at the sizes of the inputs. Raises InputError where the file has other inputs."""
    try:
        from q8ta_wgpu.onnx_import.ports import described
    except ModuleNotFoundError as error:
        raise UnsupportedError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error
    ports = {port.name: port.shape for port in described(file)[0] if port.name not in constants}
    if missing := sorted(ports.keys() - values.keys()):
        raise InputError(
            f"the file has an input {shown(missing[0])} that the model does not have: if it was fixed by constants=, "
            f"give its value beside the inputs, {{{shown(missing[0])}: ...}}; else give the file that it was made of"
        )
    open_ = ((name, i) for name, shape in ports.items() for i, size in enumerate(shape) if not isinstance(size, int))
    sizes = {f"{name}.{i}": values[name].shape[i] for name, i in open_}
    program = Sizes(file, sizes, constants).programs[0]
    if program.graph.arguments != model.graph.arguments or len(program.graph.results) != len(model.graph.results):
        raise InputError(
            f"the model has the inputs {', '.join(model.graph.arguments)}, the file {', '.join(program.graph.inputs)}: "
            "give the file that it was made of"
        )
    return program


def _compared(program: FloatProgram, graph: Graph) -> Compared:
    """Which values of the int8 graph have rows: what calls of the file give in float, and results."""
    floats, sources = program.graph, {node.output: node.source for node in program.graph.nodes}
    ends = dict(zip(graph.results, floats.results, strict=True))
    stands = dict[str, str]()
    for node in graph.nodes:
        stored, name = graph.types[node.output], ends.get(node.output, _name(node.output))
        fits = name in floats.types and floats.types[name].shape == stored.shape
        if node.output in ends or (fits and stored.dtype in RANGES and name in program.observable):
            stands[node.output] = name
    origins = dict(zip(graph.results, origins_of(floats, floats.results), strict=True))

    def place(name: str, cause: str) -> tuple[str, str, str]:
        paths = program.paths.get(program.calls.get(name, ""), ("",))
        return program.names.get(name, name), paths[0], sources.get(name, "")

    return Compared(graph, stands, origins, ends, floats.inputs, place)


def _name(value: str) -> str:
    """The name in the float program of what is stored."""
    while value.endswith(_SUFFIXES):
        value = value.removesuffix(_SUFFIXES[0]).removesuffix(_SUFFIXES[1])
    return value
