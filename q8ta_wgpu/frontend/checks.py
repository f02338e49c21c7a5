"""Checks the arguments of `quantize` before any long computation: module, example, calibration, quantizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import InputError, counted, shown
from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.nodes import INPUTS

Tensors = tuple[torch.Tensor, ...]


def check_module(module: Any) -> None:
    """Raises InputError unless `module` is a module in eval mode, in float32 and with finite parameters."""
    exported = isinstance(module, GraphModule) and module.training  # such a module has no eval()
    if isinstance(module, ExportedProgram) or exported:
        raise InputError(
            f"expected a torch.nn.Module as it was written, found {type(module).__name__}: give the module it was "
            "exported from, in eval mode (a program that is quantized already is what q8ta_wgpu.compile takes)"
        )
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, found {type(module).__name__}")
    for name, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise InputError(
                f"expected a torch.nn.Module in Python, found a {type(child).__name__}{name and f' at {name}'}, which "
                "torch.export cannot trace: give the module it was scripted or traced from"
            )
    training = next((name for name, child in module.named_modules() if child.training), None)
    if training is not None:
        found = f"the module's part {training}" if training else "the module"
        raise InputError(
            f"{found} is in training mode: call module.eval() first (see Quantizer(qat=True) for training)"
        )
    for name, tensor in module.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"the module's {name} has no shape yet: run the module once on example_inputs")
        if tensor.is_meta:
            raise InputError(f"the module's {name} is on the meta device: load its values first")
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        if tensor.dtype != torch.float32:
            raise InputError(f"the module's {name} is {tensor.dtype}: int8 is made from float32, call module.float()")
        if not torch.isfinite(torch.stack(torch.aminmax(tensor.detach()))).all():
            raise InputError(f"the module's {name} holds NaN or infinity: train again, or load other values")
    for name, buffer in module.named_buffers():  # infinities are allowed, as in masks
        if not buffer.is_meta and buffer.is_floating_point() and buffer.isnan().any():
            raise InputError(f"the module's buffer {name} holds NaN: train again, or load other values")


def is_whole(unsupported: Any) -> bool:
    """Whether unsupported operators are an error, from the argument `unsupported`. Raises InputError if it is neither
    'error' nor 'torch'."""
    if not isinstance(unsupported, str) or unsupported not in ("error", "torch"):
        raise InputError(f"unsupported must be 'error' or 'torch', found {shown(unsupported)}")
    return bool(unsupported == "error")


def example(example_inputs: Any, whole: bool = True) -> Tensors:
    """Copies of the arguments that determine the shapes. (torch.export makes one input of a tensor that is passed
    twice, and treats the size of a view as dynamic.)

    Raises:
        InputError: they are not tensors with values, or, with `whole`, not of a dtype that runs on the GPU: float32,
            bools or integers that a network computes with.
    """
    if not isinstance(example_inputs, (tuple, list)) or not all(isinstance(x, torch.Tensor) for x in example_inputs):
        listed = isinstance(example_inputs, (tuple, list))
        found = [type(x).__name__ for x in example_inputs] if listed else type(example_inputs).__name__
        way = "write (torch.from_numpy(x),)" if "ndarray" in found else "write (x,)"
        if listed and "ndarray" not in found:
            way = "wrap the module in one whose forward takes tensors alone, and holds or makes the others"
        raise InputError(f"example_inputs must be a tuple of torch tensors, found {found}: {way}")
    for position, x in enumerate(example_inputs):
        if whole and x.dtype not in INPUTS:
            wanted = "float32, bool, or int64, int32, int16, int8 or uint8"
            raise InputError(f"example input {position} must be {wanted}, found {x.dtype}: {_way_out(x)}")
        if kind := without_values(x):
            raise InputError(f"example input {position} is {kind}: give a dense tensor with values")
    with torch.inference_mode(False):
        return tuple(x.detach().clone() for x in example_inputs)


def _way_out(x: torch.Tensor) -> str:
    """A remedy for an input of a dtype that does not run on the GPU."""
    if x.is_floating_point():
        return "write x.float()"
    if x.is_complex():
        return "write torch.view_as_real(x)"
    return "write x.long() (token numbers), x.bool() (masks), or x.float() (quantities)"


def without_values(x: torch.Tensor) -> str:
    """Why a tensor is not a dense one with values; empty if it is."""
    if x.is_nested:  # its sizes are not numbers
        return "nested"
    if x.is_meta:
        return "on the meta device"
    return "empty" if not x.numel() else str(x.layout) if x.layout != torch.strided else ""


def calibration_item(item: Any, index: int, wanted: Tensors, sizes: Dimensions | None = None) -> Tensors:
    """The arguments of one calibration item, after checking number, shapes and finite values against the example.
    `sizes`: those that inputs may have. Raises InputError."""
    if not isinstance(item, (torch.Tensor, tuple, list)):
        raise InputError(f"calibration item {index} is {type(item).__name__}: give a torch tensor or a tuple of them")
    arguments = (item,) if isinstance(item, torch.Tensor) else tuple(item)
    if len(arguments) != len(wanted):
        raise InputError(
            f"calibration item {index} has {counted(len(arguments), 'argument')}, the module takes {len(wanted)}: give "
            "each item as a tuple of what the module takes (of images with labels: [image for image, _ in loader])"
        )
    free = {(number, dim) for number, dim, _ in sizes.sizes} if sizes is not None else set()
    for number, (argument, one) in enumerate(zip(arguments, wanted, strict=True)):
        if isinstance(argument, torch.Tensor) and (kind := without_values(argument)):
            raise InputError(f"calibration item {index} is {kind}: give a dense tensor with values")
        extents = [None if (number, dim) in free else size for dim, size in enumerate(one.shape)]
        if not is_like(argument, one.dtype, extents):
            found = described([argument]) if isinstance(argument, torch.Tensor) else type(argument).__name__
            way = "dynamic_shapes names dimensions of any size; model.reshape changes those of a compiled model"
            if isinstance(argument, torch.Tensor) and one.dim() and argument.shape[1:] == one.shape[1:]:
                way = f"of larger batches: [x for batch in batches for x in batch.split({one.shape[0]})]"
            if isinstance(argument, torch.Tensor) and argument.dtype != one.dtype:
                way = f"write x.to({one.dtype})"
            raise InputError(
                f"calibration item {index} is {found}, the example input is {described([one])}: "
                f"give torch tensors shaped as example_inputs ({way})"
            )
        if not torch.isfinite(argument).all():
            raise InputError(f"calibration item {index} holds NaN or infinity: clean the calibration data")
    if sizes is not None:
        check_sizes(arguments, index, sizes)
    return tuple(x.clone() if x.is_inference() else x for x in arguments)


def check_sizes(arguments: Tensors, index: int, sizes: Dimensions) -> None:
    """Raises InputError unless a calibration item has sizes that `dynamic_shapes` allows."""
    if isinstance(found := sizes.point([x.shape for x in arguments]), str):
        raise InputError(f"calibration item {index} has other sizes than dynamic_shapes names: {found}")


def is_like(value: Any, dtype: torch.dtype, sizes: Sequence[int | None]) -> bool:
    """Whether a value is a tensor of a dtype and of these sizes; None stands for any size."""
    if not isinstance(value, torch.Tensor) or (value.dtype, value.dim()) != (dtype, len(sizes)):
        return False
    return all(size in (None, found) for size, found in zip(sizes, value.shape, strict=True))


def check_arguments(values: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Raises InputError unless arguments have the dtypes and sizes with which a program was exported. Numbers must have
    the same value."""
    for position, (value, like) in enumerate(zip(values, wanted, strict=True)):
        if not isinstance(like, torch.Tensor):
            if getattr(value, "shape", ()) or value != like:  # comparing an array gives no single bool
                raise InputError(f"argument {position} must be {shown(like)}, found {shown(value)}")
            continue
        if not is_like(value, like.dtype, like.shape):
            found = described([value]) if isinstance(value, torch.Tensor) else shown(value)
            if isinstance(value, np.ndarray):
                found = f"a numpy array {described([value])}: write torch.from_numpy(x)"
            raise InputError(f"argument {position} must be {described([like])}, found {found}")


def described(tensors: Iterable[torch.Tensor | NDArray[Any]]) -> str:
    """Dtypes and shapes as text."""
    return ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in tensors) or "of which there are none"
