"""quantize: a float module to an int8 program, with PT2E."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import InputError, UnsupportedError
from q8ta_wgpu.frontend.constants import fold
from q8ta_wgpu.frontend.decompose import decomposed
from q8ta_wgpu.frontend.importer import import_decomposed, is_plain
from q8ta_wgpu.frontend.norms import Shown, fold_norms, hide_norms
from q8ta_wgpu.frontend.quantizer import Quantizer
from q8ta_wgpu.progress import bar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torchao's own, on import
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import Quantizer as TorchaoQuantizer

Tensors = tuple[torch.Tensor, ...]


def quantize(
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    calibration: Iterable[torch.Tensor | Sequence[torch.Tensor]],
    quantizer: TorchaoQuantizer | None = None,
    progress: bool = True,
) -> ExportedProgram:
    """Statically quantizes a float module with PT2E. Neither the module nor any tensor given is changed.

    Args:
        module: in eval mode.
        example_inputs: positional arguments, float32 or uint8 tensors; they fix the shapes.
        calibration: representative inputs; each item is a tensor or a tuple of arguments. It is gone through once, and
            one item is held at a time.
        quantizer: any torchao PT2E quantizer; ours by default.
        progress: show a progress bar over the calibration items, on stderr if that is a terminal.

    Raises:
        InputError: the module is in training mode or cannot run on the example, an argument is no sequence of tensors,
            the calibration is empty, or an item is unlike the example or holds NaN or infinities.
        UnsupportedError: the module cannot be exported, holds operators that `compile` would refuse, or changes its own
            buffers or its inputs.
    """
    _check_module(module)
    example = _example(example_inputs)
    if isinstance(calibration, torch.Tensor) or not isinstance(calibration, Iterable):
        raise InputError(
            f"calibration must be an iterable of inputs, found {type(calibration).__name__}: write [x] for a single one"
        )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module(*(x.clone() for x in example))
        except Exception as error:
            raise InputError(f"the module does not run on example_inputs, {_described(example)}: {error}") from error
        float_graph = _exported(module, example)
        fold_norms(float_graph)
        hide_norms(float_graph)
        prepared = prepare_pt2e(float_graph, Shown(quantizer or Quantizer()))
        index, total = -1, operator.length_hint(calibration, 0)
        with bar("calibrating", shown=progress) as update:
            for index, item in enumerate(calibration):
                update(index, total, "")
                prepared(*_calibration_item(item, index, example))
        if index < 0:
            raise InputError("the calibration is empty: give an iterable of representative inputs")
        hide_norms(prepared)
        return torch.export.export(convert_pt2e(prepared), example)


def _check_module(module: Any) -> None:
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, found {type(module).__name__}")
    if training := next((name for name, part in module.named_modules() if part.training), None):
        raise InputError(
            f"the module's part {training} is in training mode: call module.eval() first (see Quantizer(qat=True) for "
            "training)"
        )
    if module.training:
        raise InputError(
            "the module is in training mode: call module.eval() first (see Quantizer(qat=True) for training)"
        )


def _example(example_inputs: Any) -> Tensors:
    if not isinstance(example_inputs, (tuple, list)) or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        listed = isinstance(example_inputs, (tuple, list))
        found = [type(x).__name__ for x in example_inputs] if listed else type(example_inputs).__name__
        raise InputError(f"example_inputs must be a tuple of torch tensors, found {found}: write (x,)")
    for position, x in enumerate(example_inputs):
        if x.dtype not in (torch.float32, torch.uint8):
            raise InputError(f"example input {position} must be float32 or uint8, found {x.dtype}: write x.float()")
    return tuple(example_inputs)


def _described(tensors: Iterable[torch.Tensor]) -> str:
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors)


def _exported(module: torch.nn.Module, example: Tensors) -> GraphModule:
    """The module's graph without in-place operators, with what depends on no input computed."""
    try:
        program = torch.export.export(module, example)
        if not all(is_plain(node) for node in program.graph.nodes):
            program = decomposed(program)
    except Exception as error:
        raise UnsupportedError(
            f"torch.export cannot trace the module: {error}. Its control flow must not depend on the data"
        ) from error
    signature = program.graph_signature
    for what, mutated in (("buffers", signature.buffers_to_mutate), ("inputs", signature.user_inputs_to_mutate)):
        if mutated:
            raise UnsupportedError(
                f"the module changes its {what} {', '.join(mutated.values())}: int8 inference keeps no state, so "
                "compute new tensors instead (no inplace=True on an input)"
            )
    import_decomposed(program)  # before any calibration, it names all that is not supported
    graph: GraphModule = program.module(check_guards=False)
    fold(graph)
    return graph


def _calibration_item(item: Any, index: int, example: Tensors) -> Tensors:
    """The arguments of one calibration item, checked against the example: number, shapes, finite values."""
    if not isinstance(item, (torch.Tensor, tuple, list)):
        raise InputError(f"calibration item {index} is {type(item).__name__}: give a torch tensor or a tuple of them")
    arguments = (item,) if isinstance(item, torch.Tensor) else tuple(item)
    if len(arguments) != len(example):
        raise InputError(f"calibration item {index} has {len(arguments)} arguments, the module takes {len(example)}")
    for argument, wanted in zip(arguments, example, strict=True):
        if not isinstance(argument, torch.Tensor) or argument.shape != wanted.shape or argument.dtype != wanted.dtype:
            found = _described([argument]) if isinstance(argument, torch.Tensor) else type(argument).__name__
            raise InputError(
                f"calibration item {index} is {found}, the example input is {_described([wanted])}: "
                "give torch tensors shaped as example_inputs (model.reshape changes the sizes of a compiled model)"
            )
        if not torch.isfinite(argument).all():
            raise InputError(f"calibration item {index} holds NaN or infinity: clean the calibration data")
    return arguments
