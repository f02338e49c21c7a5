"""Quantizes a float ONNX file to an int8 Model, without torch."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from q8ta_wgpu.errors import InputError, UnsupportedError, check_items, check_switch, shown, warn
from q8ta_wgpu.ir.graph import BOOL, Array
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.computed import Computed
from q8ta_wgpu.onnx_import.from_onnx import FILES, File, Sizes, local
from q8ta_wgpu.passes.fold_constants import fold_weights
from q8ta_wgpu.progress import bar
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.items import how_many, in_order
from q8ta_wgpu.quantization.precision import Precision, Precisions, least
from q8ta_wgpu.quantization.prepare import prepare
from q8ta_wgpu.quantization.record import write_record
from q8ta_wgpu.quantization.runner import ReferenceRunner
from q8ta_wgpu.session.inputs import arguments, arrays

_SKIPPED = "skip=[...] names it"
"""Why operators stay in float32 that a user names."""

_ZEROS = "the calibration is zeros alone: give inputs as the network will meet them"

OPTIONS = ("sizes", "constants", "residual", "fit_weights", "precision", "skip")
"""What can be asked for of a file, by name."""

_RESIZES = "sizes={...} says which size each item has, if the file leaves it open"
"""What a message about an item of a wrong size says."""


def quantize(
    file: File,
    example_inputs: None = None,
    calibration: Iterable[Any] = (),
    *,
    sizes: Mapping[str, int | tuple[int, ...]] | None = None,
    constants: Mapping[str, Any] | None = None,
    residual: str = "int16",
    skip: Sequence[str] = (),
    fit_weights: bool = True,
    precision: str = "auto",
    progress: bool = True,
) -> Model:
    """Quantizes a float ONNX file statically. Needs no torch. ONNX Runtime runs the calibration if it is installed,
    else the numpy reference does.

    Examples:
        >>> model = q8.quantize("net.onnx", calibration=[x, 2 * x])    # some dozens of real inputs, in practice
        >>> model = q8.quantize("net.onnx", calibration=arrays, skip=["/head"])    # what lies in /head stays in float32

    Args:
        file: the path of an .onnx file, its bytes, or its address on the Hub, as for `from_onnx`.
        example_inputs: must be None, since the file describes its inputs.
        calibration: representative inputs, iterated once. Each item is an array, a tuple of arrays in the order of the
            file's inputs, or a dict by their names. Sizes that are ranges must be at their largest.
        sizes, constants: as for `from_onnx`.
        residual: dtype of residual streams, "int16" or "int8", as for `Quantizer`.
        skip: operators that stay in float32, by their names in the file or those of what they give; or what names
            begin with, up to a "/" or ".".
        fit_weights: whether weights are rounded to suit the inputs of their layers, and biases corrected accordingly.
        precision: "auto" stores values in 16 bits, or leaves them in float32, where int8 costs more than half a decibel
            of the outputs; "int8" does not; "int16" stores in 16 bits all that may be.
        progress: whether to show a progress bar on stderr, if that is a terminal.

    Returns:
        A Model, as from `compile`. Its report says which values have more than 8 bits, why, and at what cost.

    Warns (UserWarning) if all calibration inputs are zeros, and of outputs whose predicted accuracy is low.

    Raises:
        InputError: an argument is invalid, `skip` names no operator, there is no such file, the calibration is empty,
            or an item does not match the inputs or leads to NaN or infinities.
        UnsupportedError: as `from_onnx`; or the file is quantized already.
    """
    if not isinstance(file, FILES):
        raise UnsupportedError('quantize of what is no ONNX file needs torch: pip install "q8ta-wgpu[compile]"')
    if example_inputs is not None:
        raise InputError("example_inputs are those of a module; a file says what its inputs are: leave them out")
    asked = _Asked(residual, skip, fit_weights, precision)
    check_switch("progress", progress)
    items = check_items(calibration)
    file = local(file)
    with bar("quantizing", shown=progress) as update:
        model, problem = _quantized(Sizes(file, sizes, constants), file, items, asked, update)
    if problem:
        warn(problem)
    return model


@dataclass(frozen=True)
class _Asked:
    """Options of `quantize`. Raises InputError for values that they do not have."""

    residual: str
    skip: Sequence[str]
    fit_weights: bool
    precision: str

    def __post_init__(self) -> None:
        if self.residual not in ("int16", "int8"):
            raise InputError(f"residual must be 'int16' or 'int8', found {shown(self.residual)}")
        if self.precision not in ("auto", "int8", "int16"):
            raise InputError(f"precision must be 'auto', 'int8' or 'int16', found {shown(self.precision)}")
        check_switch("fit_weights", self.fit_weights)
        if isinstance(self.skip, str):
            raise InputError(f"skip is a list of operators' names, found a string: write skip=[{self.skip!r}]")
        if not isinstance(self.skip, Iterable) or not all(isinstance(name, str) for name in self.skip):
            raise InputError(f"skip is a list of operators' names, such as '/conv1/Conv', found {shown(self.skip)}")


def _quantized(found: Sizes, file: File, calibration: Iterable[Any], asked: _Asked, update: Any) -> tuple[Model, str]:
    """The model, and a warning for the user; empty if there is none."""
    program = found.programs[0]
    graph = program.graph
    if any((t := graph.types[node.output].q) and t != BOOL for node in graph.nodes):
        raise UnsupportedError("the file is quantized already, at least in part: read it by q8.from_onnx")
    for each in found.programs:
        fold_weights(each.graph)  # weights alone may be stored as integers
        each.leave_in_float(asked.skip, _SKIPPED)
        prepare(each)
    calibrated = Calibration(program, asked.residual == "int16", asked.fit_weights)
    calibrated.check_weights()
    wanted = {name: program.names[name] for name in calibrated.wanted & set(program.names)}
    computed = Computed(file, wanted, found.constants)
    items, zeros, kept, count = 0, True, list[Mapping[str, Array]](), operator.length_hint(calibration, 0)

    def simulated(first: Mapping[str, Array]) -> Callable[[int], int]:
        return (lambda _: 0) if asked.precision == "int8" else how_many(graph, first)

    given = (arrays(graph, *arguments(item), _RESIZES) for item in calibration)
    for place, inputs, keep in in_order(given, simulated, _copied, calibrated.hold_out):
        update(items, count, "calibrating")
        zeros = zeros and not any(x.any() for x in inputs.values())
        calibrated.meet(inputs, place, computed(inputs))
        kept += [inputs] if keep else []
        items += 1
    if not items:
        raise InputError("the calibration is empty: give an iterable of representative inputs")
    calibrated.check_ranges()
    update(items, items, "choosing scales and quantizing weights")
    precision = _chosen(calibrated, kept, asked.precision)
    graphs = [calibrated.quantized(precision.chosen)]
    write_record(graphs[0], calibrated.values, precision, calibrated.values.readings)
    # Sums of floats in another order: scales of one may differ from those of the other in their last digits.
    graphs[0].notes.append(f"its ranges were measured by {computed.runner}")
    graphs += [calibrated.quantized_like(each, precision.chosen) for each in found.programs[1:]]
    return found.joined(graphs), _ZEROS if zeros else precision.warning(" by skip=[...]")


def _copied(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {name: x.copy() for name, x in inputs.items()}


def _chosen(calibrated: Calibration, items: Sequence[Mapping[str, Array]], precision: str) -> Precision:
    """The widths of values beyond those of the plan."""
    if precision == "int8":
        return least(calibrated)
    found = Precisions(calibrated, ReferenceRunner(calibrated.graph, items))
    return found.wide() if precision == "int16" else found.choose()
