"""from_onnx: an ONNX file to a Model."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

from q8ta_wgpu.calibrate.insert import FloatProgram
from q8ta_wgpu.errors import GraphError, InputError, UnsupportedError, shown
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.ir.size import MOST, Dynamic, Size, Terms, traced_points
from q8ta_wgpu.model.dynamic import joined
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import run_passes

File = str | os.PathLike[str] | bytes | bytearray
"""A path of a file, or its bytes."""

FILES = (str, os.PathLike, bytes, bytearray)
"""The classes of these."""


def from_onnx(source: File, sizes: Mapping[str, int | tuple[int, ...]] | None = None) -> Model:
    """Reads a quantized ONNX network: QDQ, QOperator, or dynamic (DynamicQuantizeLinear). Needs no torch.

    Examples:
        >>> model = q8.from_onnx("net.onnx", sizes={"batch": 1})
        >>> session = q8.Session(model)

    Args:
        source: the path of an .onnx file, or its bytes; external data is read from the file's own folder.
        sizes: the size of each dimension that the file leaves open, by its name; of one without a name by that of the
            input and its position, "input.0". A pair is the least and the largest, with a third number in steps of
            that: a session then takes the sizes that arrive. At most three sizes may be so.

    Returns:
        A Model, as `compile` makes. Of several outputs it gives a dict by their names.

    Raises:
        UnsupportedError: the package onnx is missing, the file is none, or it holds nodes that cannot be imported (all
            are named), or does not follow such sizes.
        InputError: `source` is neither a path nor bytes, there is no such file, or `sizes` are no sizes.
    """
    found = Sizes(source, sizes)
    for program in found.programs:
        if not any(node.op in ("quantize", "dequantize") for node in program.graph.nodes):
            program.graph.notes.append("the file holds no quantized values: quantize it first")
    return found.joined([program.graph for program in found.programs])


class Sizes:
    """A file at the sizes of its inputs, at several where they may be any.

    Attributes:
        programs: the file at each point, the largest sizes first.
        points: of each size that is a range its number, or of one with a step which number of the range, from 1 on.
        ranges: their least and largest values.
    """

    def __init__(self, source: File, sizes: object) -> None:
        """Raises as `from_onnx` does."""
        try:
            from q8ta_wgpu.onnx_import.importer import import_program
            from q8ta_wgpu.onnx_import.read import read
        except ModuleNotFoundError as error:
            raise UnsupportedError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error
        given, data = _checked(sizes), read(source)
        largest = {name: numbers[-1] for name, numbers in given.items()}
        first = import_program(data, largest)
        named = set(first.open.values())
        steps = {name: found for name, found in given.items() if len(found) > 1 and name in named}
        self.ranges = {
            name: (1, len(found)) if found.step > 1 else (found[0], found[-1]) for name, found in steps.items()
        }
        self.points = traced_points({name: high for name, (_, high) in self.ranges.items()}, self.ranges)
        terms: dict[str, Terms] = {
            name: {(name,): found.step, (): found[0] - found.step} if found.step > 1 else {(name,): 1}
            for name, found in steps.items()
        }
        others = [
            import_program(data, {**largest, **{name: int(Size(terms[name], point)) for name in terms}})
            for point in self.points[1:]
        ]
        self.programs: list[FloatProgram] = [each.program for each in (first, *others)]
        self._structure = first.structure
        self._inputs = {place: Size(terms[name], self.points[0]) for place, name in first.open.items() if name in terms}

    def joined(self, graphs: Sequence[Graph]) -> Model:
        """The model of the graphs that the programs became."""
        runnable = [run_passes(graph) for graph in graphs]
        if not self.ranges:
            return Model(runnable[0], self._structure)
        try:
            return Model(joined(runnable, self.points, Dynamic(dict(self.ranges), self._inputs)), self._structure)
        except GraphError as error:
            raise UnsupportedError(
                f"the file does not follow the sizes that are ranges: {error}; give it sizes in steps, or numbers"
            ) from None


def _checked(sizes: object) -> dict[str, range]:
    """The numbers that each size may be."""
    found = {} if sizes is None else sizes
    if not isinstance(found, Mapping):
        raise InputError(f'sizes must be numbers by name, such as {{"batch": 1}}, found {shown(sizes)}')
    try:
        made = {str(name): _range(size) for name, size in found.items()}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"sizes must be integers, or the least, the largest and a step between them, found {shown(sizes)}"
        ) from error
    for name, numbers in made.items():
        if not numbers or not 1 <= numbers[0] <= numbers[-1] <= MAX_EXTENT:
            raise InputError(
                f"the size of {shown(name)} must be 1 to {MAX_EXTENT}, of a range the least first, found "
                f"{shown(found[name])}"
            )
    if len(ranges := [name for name, numbers in made.items() if len(numbers) > 1]) > MOST:
        raise InputError(f"at most {MOST} sizes may be ranges, found {len(ranges)}: {shown(', '.join(ranges))}")
    return made


def _range(size: Any) -> range:
    """Raises TypeError or ValueError for what is neither a number, nor a pair, nor a pair and a step."""
    low, high, step = (*size, 1)[:3] if isinstance(size, (tuple, list)) and len(size) < 4 else (size, size, 1)
    return range(operator.index(low), operator.index(high) + 1, max(operator.index(step), 1))
