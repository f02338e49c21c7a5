"""from_onnx: an ONNX file to a Model."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping

from q8ta_wgpu.calibrate.insert import FloatProgram
from q8ta_wgpu.errors import InputError, UnsupportedError, shown
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes import run_passes

File = str | os.PathLike[str] | bytes | bytearray
"""A path of a file, or its bytes."""

FILES = (str, os.PathLike, bytes, bytearray)
"""The classes of these."""


def from_onnx(source: File, sizes: Mapping[str, int] | None = None) -> Model:
    """Reads a quantized ONNX network: QDQ, QOperator, or dynamic (DynamicQuantizeLinear). Needs no torch.

    Examples:
        >>> model = q8.from_onnx("net.onnx", sizes={"batch": 1})
        >>> session = q8.Session(model)

    Args:
        source: the path of an .onnx file, or its bytes; external data is read from the file's own folder.
        sizes: the size of each dimension that the file leaves open, by its name; of one without a name by that of the
            input and its position, "input.0".

    Returns:
        A Model, as `compile` makes. Of several outputs it gives a dict by their names.

    Raises:
        UnsupportedError: the package onnx is missing, the file is none, or it holds nodes that cannot be imported (all
            are named).
        InputError: `source` is neither a path nor bytes, there is no such file, or `sizes` are no sizes.
    """
    program, structure = imported(source, sizes)
    graph = program.graph
    if not any(node.op in ("quantize", "dequantize") for node in graph.nodes):
        graph.notes.append("the file holds no quantized values: quantize it first")
    return Model(run_passes(graph), structure)


def imported(source: File, sizes: Mapping[str, int] | None) -> tuple[FloatProgram, Structure]:
    """The graph of a file, and the structure of its outputs. Raises as `from_onnx` does."""
    try:
        from q8ta_wgpu.onnx_import.importer import import_program
        from q8ta_wgpu.onnx_import.read import read
    except ModuleNotFoundError as error:
        raise UnsupportedError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error
    return import_program(read(source), _checked(sizes))


def _checked(sizes: object) -> dict[str, int]:
    found = {} if sizes is None else sizes
    if not isinstance(found, Mapping):
        raise InputError(f'sizes must be numbers by name, such as {{"batch": 1}}, found {shown(sizes)}')
    try:
        made = {str(name): operator.index(size) for name, size in found.items()}
    except TypeError as error:
        raise InputError(f"sizes must be integers, found {shown(sizes)}") from error
    if wrong := [name for name, size in made.items() if not 1 <= size <= MAX_EXTENT]:
        raise InputError(f"the size of {shown(wrong[0])} must be 1 to {MAX_EXTENT}, found {made[wrong[0]]}")
    return made
