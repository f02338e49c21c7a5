"""from_onnx: an ONNX file to a Model."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from q8ta_wgpu import hub
from q8ta_wgpu.errors import GraphError, InputError, UnsupportedError, shown, warn
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.ir.size import MOST, Dynamic, Size, Terms, traced_points
from q8ta_wgpu.model.dynamic import joined
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import OF_STATIC_FILES, PASSES, Pass, run_passes
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.session.inputs import as_array

File = str | os.PathLike[str] | bytes | bytearray
"""A path of a file, or its bytes."""

FILES = (str, os.PathLike, bytes, bytearray)
"""The classes of these."""


def from_onnx(
    source: File,
    sizes: Mapping[str, int | tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    revision: str | None = None,
) -> Model:
    """Reads a quantized ONNX network: QDQ, QOperator, or dynamic (DynamicQuantizeLinear). Needs no torch.

    Examples:
        >>> model = q8.from_onnx("net.onnx", sizes={"batch": 1})
        >>> session = q8.Session(model)

    Args:
        source: the path of an .onnx file, its bytes, or its address on the Hugging Face Hub,
            `hf://owner/name/net.onnx`. External data is read only from the file's own folder.
        sizes: the size of each dimension that the file leaves open, by its name. One without a name is called by its
            input and its position, "input.0"; so may be one of several that have one name. A pair (smallest, largest),
            or with a step (smallest, largest, step), makes a model for all sizes in that range. At most three sizes may
            be ranges.
        constants: arrays or numbers by the names of inputs that are always the same, `{"sr": 16000}`. The model has no
            such inputs; branches of the file that depend on them are chosen.
        revision: of a file on the Hub, the branch, tag or commit; None for the main branch.

    Returns:
        A Model, as from `compile`. Several outputs are returned as a dict by their names.

    Warns (UserWarning) of a file that stores its weights as integers and computes in float32.

    Raises:
        UnsupportedError: the package onnx is missing, `source` is no ONNX file, or contains nodes that cannot be
            imported (all are named), or that do not allow ranges of sizes.
        InputError: `source` is neither a path nor bytes, there is no such file, it cannot be had from the Hub, or
            `sizes` or `constants` are invalid.
    """
    found = Sizes(local(source, revision), sizes, constants)
    for program in found.programs:
        if not any(node.op in ("quantize", "dequantize") for node in program.graph.nodes):
            program.graph.notes.append("the file holds no quantized values: quantize it first")
    passes = OF_STATIC_FILES if found.is_static else PASSES
    model = found.joined([program.graph for program in found.programs], passes)
    if found.stores_integers:
        int8, total = model.report().macs
        warn(
            f"{100 * int8 / max(total, 1):.0f} % of the multiply-adds run in int8: the file stores its weights as "
            "integers, and computes in float32. q8.quantize(file, calibration=...) makes it int8"
        )
    return model


def local(source: File, revision: str | None = None) -> File:
    """A file; of one on the Hub the path in its cache, with its external data beside it. Raises as `from_onnx` does."""
    found: File = hub.local(source, revision, beside=_external)
    return found


def _external(path: Path) -> list[str]:
    """The files, relative to that of an ONNX file, in which its constants lie."""
    try:
        import onnx
    except ModuleNotFoundError:
        return []  # reading the file says so
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception:  # of protobuf, for a damaged file, which reading names
        return []
    entries = (entry for tensor in graph.initializer for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})


class Sizes:
    """A file, imported at the sizes of its inputs; at several sizes if some are ranges.

    Attributes:
        programs: the imported program at each point, the largest sizes first.
        points: a value for each size that is a range; with a step its index in the range, from 1 on.
        ranges: the smallest and the largest of these values.
        constants: arrays in place of inputs.
        is_static: whether activations are quantized with scales that the file holds.
        stores_integers: whether weights are integers that the file makes float before it computes with them.
    """

    def __init__(self, source: File, sizes: object, constants: object = None) -> None:
        """Raises as `from_onnx` does."""
        try:
            from q8ta_wgpu.onnx_import.onnx_importer import import_program
            from q8ta_wgpu.onnx_import.read import read
        except ModuleNotFoundError as error:
            raise UnsupportedError(f'an ONNX file needs onnx: pip install "q8ta-wgpu[onnx]" ({error})') from error
        values, data = _checked(sizes), read(source)
        self.constants = _arrays(constants)
        operators = {node.op_type for node in data.graph.node}
        self.is_static = not operators.isdisjoint(_STATIC) and operators.isdisjoint(_DYNAMIC)
        whole = {name for name, array in data.constants.items() if array.dtype.kind in "iu" and array.size >= _LARGE}
        reads = (n for n in data.graph.node if n.op_type in ("Cast", "DequantizeLinear") and n.input)
        computes = operators.isdisjoint((*_STATIC, *_DYNAMIC))
        self.stores_integers = computes and any(node.input[0] in whole for node in reads)
        largest = {name: numbers[-1] for name, numbers in values.items()}
        first = import_program(data, largest, self.constants)
        named = set(first.open.values())
        if unknown := sorted(values.keys() - named):
            there = f"these open: {', '.join(sorted(named))}" if named else "none open: leave them out"
            raise InputError(f"sizes name {', '.join(map(shown, unknown))}, but the file leaves {there}")
        steps = {name: found for name, found in values.items() if len(found) > 1 and name in named}
        self.ranges = {
            name: (1, len(found)) if found.step > 1 else (found[0], found[-1]) for name, found in steps.items()
        }
        self.points = traced_points({name: high for name, (_, high) in self.ranges.items()}, self.ranges)
        terms: dict[str, Terms] = {
            name: {(name,): found.step, (): found[0] - found.step} if found.step > 1 else {(name,): 1}
            for name, found in steps.items()
        }
        others = [
            import_program(data, {**largest, **{name: int(Size(terms[name], point)) for name in terms}}, self.constants)
            for point in self.points[1:]
        ]
        self.programs: list[FloatProgram] = [each.program for each in (first, *others)]
        self._structure = first.structure
        self._inputs = {place: Size(terms[name], self.points[0]) for place, name in first.open.items() if name in terms}

    def joined(self, graphs: Sequence[Graph], passes: Sequence[Pass] = PASSES) -> Model:
        """The model for all sizes, from a graph for each program."""
        runnable = [run_passes(graph, passes) for graph in graphs]
        if not self.ranges:
            return Model(runnable[0], self._structure)
        try:
            return Model(joined(runnable, self.points, Dynamic(dict(self.ranges), self._inputs)), self._structure)
        except GraphError as error:
            raise UnsupportedError(
                f"the file does not follow the sizes that are ranges: {error}; give it sizes in steps, or numbers"
            ) from None


_LARGE = 1024
"""From how many elements on a constant of integers is taken for a weight, not for sizes or indices."""

_STATIC = ("QuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm")
_DYNAMIC = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")


def _checked(sizes: object) -> dict[str, range]:
    """The possible values of each size. Raises InputError."""
    found = {} if sizes is None else sizes
    if not isinstance(found, Mapping):
        raise InputError(f'sizes must be numbers by name, such as {{"batch": 1}}, found {shown(sizes)}')
    try:
        ranges_by_name = {str(name): _range(size) for name, size in found.items()}
    except (TypeError, ValueError) as error:
        raise InputError(
            f"sizes must be integers, or the least, the largest and a step between them, found {shown(sizes)}"
        ) from error
    for name, numbers in ranges_by_name.items():
        if not numbers or not 1 <= numbers[0] <= numbers[-1] <= MAX_EXTENT:
            raise InputError(
                f"the size of {shown(name)} must be 1 to {MAX_EXTENT}, of a range the least first, found "
                f"{shown(found[name])}"
            )
    if len(ranges := [name for name, numbers in ranges_by_name.items() if len(numbers) > 1]) > MOST:
        raise InputError(f"at most {MOST} sizes may be ranges, found {len(ranges)}: {shown(', '.join(ranges))}")
    return ranges_by_name


def _arrays(constants: object) -> dict[str, Array]:
    """Arrays by name. Raises InputError."""
    found = {} if constants is None else constants
    if not isinstance(found, Mapping):
        raise InputError(f'constants must be arrays by name, such as {{"sr": 16000}}, found {shown(constants)}')
    return {str(name): as_array(str(name), value, "constant") for name, value in found.items()}


def _range(size: Any) -> range:
    """A number, a pair or a triple as a range. Raises TypeError or ValueError for anything else."""
    low, high, step = (*size, 1)[:3] if isinstance(size, (tuple, list)) and len(size) < 4 else (size, size, 1)
    return range(operator.index(low), operator.index(high) + 1, max(operator.index(step), 1))
