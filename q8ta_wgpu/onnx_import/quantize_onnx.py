"""Quantizes a float ONNX file to an int8 Model, without torch."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from q8ta_wgpu.errors import InputError, UnsupportedError, check_switch, shown
from q8ta_wgpu.ir.graph import BOOL
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.onnx_import.computed import Computed
from q8ta_wgpu.onnx_import.from_onnx import FILES, File, Sizes
from q8ta_wgpu.progress import bar
from q8ta_wgpu.quantization.insert import Calibration
from q8ta_wgpu.quantization.prepare import prepare
from q8ta_wgpu.session.inputs import arguments, arrays


def quantize(
    file: File,
    example_inputs: None = None,
    calibration: Iterable[Any] = (),
    *,
    sizes: Mapping[str, int | tuple[int, ...]] | None = None,
    residual: str = "int16",
    fit_weights: bool = True,
    progress: bool = True,
) -> Model:
    """Quantizes a float ONNX file statically. Needs no torch. ONNX Runtime runs the calibration if it is installed,
    else the numpy reference does.

    Values are rounded at the same places as in a torch module, and stored as with `Quantizer(precision="int8")`: only
    PyTorch has the gradients by which other precisions choose values that need 16 bits.

    Examples:
        >>> model = q8.quantize("net.onnx", calibration=[x, 2 * x])    # some dozens of real inputs, in practice

    Args:
        file: the path of an .onnx file, or its bytes.
        example_inputs: must be None, since the file describes its inputs.
        calibration: representative inputs, iterated once. Each item is an array, a tuple of arrays in the order of the
            file's inputs, or a dict by their names. Sizes that are ranges must be at their largest.
        sizes: as for `from_onnx`.
        residual: dtype of residual streams, "int16" or "int8", as for `Quantizer`.
        fit_weights: whether weights are rounded to suit the inputs of their layers, and biases corrected accordingly.
        progress: whether to show a progress bar on stderr, if that is a terminal.

    Returns:
        A Model, as from `compile`.

    Warns (UserWarning) if all calibration inputs are zeros.

    Raises:
        InputError: an argument is invalid, there is no such file, the calibration is empty, or an item does not match
            the inputs or leads to NaN or infinities.
        UnsupportedError: as `from_onnx`; or the file is quantized already.
    """
    if not isinstance(file, FILES):
        raise UnsupportedError('quantize of what is no ONNX file needs torch: pip install "q8ta-wgpu[compile]"')
    if example_inputs is not None:
        raise InputError("example_inputs are those of a module; a file says what its inputs are: leave them out")
    if residual not in ("int16", "int8"):
        raise InputError(f"residual must be 'int16' or 'int8', found {shown(residual)}")
    check_switch("fit_weights", fit_weights)
    check_switch("progress", progress)
    found = Sizes(file, sizes)
    program = found.programs[0]
    graph = program.graph
    if any(node.op == "dequantize_weight" or ((t := graph.types[node.output].q) and t != BOOL) for node in graph.nodes):
        raise UnsupportedError("the file is quantized already, at least in part: read it by q8.from_onnx")
    for each in found.programs:
        prepare(each.graph)
    calibrated = Calibration(program, residual == "int16", fit_weights)
    items, zeros = 0, True
    with bar("quantizing", shown=progress) as update:
        computed = Computed(file, {name: program.names[name] for name in calibrated.wanted & set(program.names)})
        count = operator.length_hint(calibration, 0)
        for item in calibration:
            update(items, count, "calibrating")
            inputs = arrays(graph, *arguments(item))
            zeros = zeros and not any(x.any() for x in inputs.values())
            calibrated.meet(inputs, items, computed(inputs))
            items += 1
        if not items:
            raise InputError("the calibration is empty: give an iterable of representative inputs")
        update(items, items, "choosing scales and quantizing weights")
        model = found.joined([calibrated.quantized(), *map(calibrated.quantized_like, found.programs[1:])])
    if zeros:
        warnings.warn("the calibration is zeros alone: give inputs as the network will meet them", stacklevel=2)
    return model
