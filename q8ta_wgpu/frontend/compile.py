"""compile: an exported PT2E program to a Model."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

from q8ta_wgpu.errors import InputError, UnsupportedError, check_switch
from q8ta_wgpu.importing.user_names import call_by, user_names
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.progress import bar

if TYPE_CHECKING:
    from q8ta_wgpu.frontend.hybrid.hybrid import Hybrid

with suppress(ModuleNotFoundError):  # of torch: `compile` says so
    # Registers the operators of quantized programs before the argument of q8.compile(torch.export.load(file)) is read.
    import torch.ao.quantization.fx._decomposed  # noqa: F401

    import q8ta_wgpu.frontend.row_scales  # noqa: F401


@overload
def compile(program: Any, int8_outputs: bool = False, unsupported: Literal["error"] = "error") -> Model: ...


@overload
def compile(program: Any, *, unsupported: Literal["torch"], device: Any = None) -> Hybrid: ...


def compile(program: Any, int8_outputs: bool = False, unsupported: str = "error", device: Any = None) -> Model | Hybrid:
    """Compiles a quantized program to an int8 model.

    Examples:
        >>> model = q8.compile(q8.quantize(module, example_inputs, calibration=batches))
        >>> print(model.report())

    Args:
        program: an ExportedProgram of a PT2E-converted module (static int8 or uint8 activations, int8 weights), from
            `quantize` or any other PT2E quantizer; or the converted module itself.
        int8_outputs: whether results are the network's last int8 (or int16) values, instead of the float32 numbers
            (value - zero) * scale. They have a fourth of the bytes. `Model.outputs` has scale and zero. A result that
            was never rounded stays float32.
        unsupported: what to do with operators that cannot be imported: 'error', or 'torch' for a torch module that runs
            these in PyTorch and the rest on the GPU.
        device: with unsupported='torch', the device of its sessions, as for `Session`.

    Returns:
        A Model; with unsupported='torch' a torch module, whose `report()` says what runs where.

    Raises:
        UnsupportedError: torch is missing, or the program has operators that cannot be imported (all are named); with
            unsupported='torch', nothing would run on the GPU.
        InputError: `unsupported` is neither 'error' nor 'torch', `int8_outputs` is not a bool, or an option needs
            another value of `unsupported`.
        DeviceError: with unsupported='torch', as `Session`.
    """
    check_switch("int8_outputs", int8_outputs)
    try:
        from q8ta_wgpu.frontend import checks
        from q8ta_wgpu.frontend.export.modes import computing
        from q8ta_wgpu.frontend.importer.importer import at_all_sizes, import_program
    except ModuleNotFoundError as error:
        raise UnsupportedError(f'compile needs torch: pip install "q8ta-wgpu[compile]" ({error})') from error
    if not checks.is_whole(unsupported):
        from q8ta_wgpu.frontend.hybrid.hybrid import hybrid

        if int8_outputs:
            raise InputError("int8_outputs is for a Model: what unsupported='torch' makes gives torch's own results")
        with computing():
            return hybrid(program, device)
    if device is not None:
        raise InputError("a Model is opened on a device by Session(model, device)")
    with computing(), bar("compiling") as update:
        update(0, 2, "reading the program")
        graph, structure = import_program(program)
        if not any(node.op in ("quantize", "dequantize") for node in graph.nodes):
            graph.notes.append(_without_int8(program))
        update(1, 2, "fusing its operators")
        return Model(at_all_sizes(program, graph, lambda each: _runnable(each, int8_outputs)), structure)


def _without_int8(program: Any) -> str:
    """Why a program has no quantize or dequantize, for the report."""
    from q8ta_wgpu.frontend.notes import ASKED, noted

    if noted(getattr(program, "graph_module", program), ASKED):
        return "nothing of this network is rounded: it only moves elements, or all of it was left in float32"
    return "the program holds no quantize or dequantize: quantize it first (q8ta_wgpu.quantize)"


def _runnable(graph: Graph, int8_outputs: bool) -> Graph:
    """Prepares an imported graph to run."""
    names = user_names(graph)
    if int8_outputs:
        _end_with_integers(graph)
    graph = run_passes(graph)
    call_by(graph, names)
    return graph


def _end_with_integers(graph: Graph) -> None:
    """Removes the dequantizes at the end of a graph."""
    made = {node.output: node for node in graph.nodes}
    ends = (made.get(name) for name in graph.outputs)
    graph.outputs = [
        node.inputs[0]
        if node is not None and node.op == "dequantize" and graph.values[node.inputs[0]].given != "bool"
        else name
        for name, node in zip(graph.outputs, ends, strict=True)
    ]
