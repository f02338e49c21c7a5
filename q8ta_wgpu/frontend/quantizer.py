"""A torchao PT2E quantizer that annotates from the operator table, and `quantize`: module to int8 program."""

from __future__ import annotations

import logging
import operator
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

# Both warn on import about their own internals.
logging.getLogger("torchao").setLevel(logging.ERROR)
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e import (
        FakeQuantize,
        FusedMovingAvgObsFakeQuantize,
        HistogramObserver,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import (
        QuantizationAnnotation,
        QuantizationSpec,
        SharedQuantizationSpec,
    )
    from torchao.quantization.pt2e.quantizer import Quantizer as TorchaoQuantizer

from q8ta_wgpu.errors import InputError, UnsupportedError  # noqa: E402
from q8ta_wgpu.ir.int8 import (  # noqa: E402
    Arithmetic,
    Elementwise,
    Int8,
    Monotonic,
    Moves,
    Normalization,
    WeightedSum,
)
from q8ta_wgpu.kernels import ATEN  # noqa: E402

_EPS = 2.0**-20
"""Smallest activation scale; torchao's default of 2^-12 is coarse for small activations."""

_ANNOTATION = "quantization_annotation"


def _activation(qat: bool) -> QuantizationSpec:
    if qat:
        observer = FusedMovingAvgObsFakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, averaging_constant=0.05, eps=_EPS
        )
    else:
        observer = HistogramObserver.with_args(eps=_EPS)
    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_tensor_affine,
        observer_or_fake_quant_ctr=observer,
    )


def _weight(qat: bool, channels: int) -> QuantizationSpec:
    if qat:
        # The fused one knows axis 0 alone; torchao drops a spec's axis unless the class is called PerChannel something.
        fake = FakeQuantize if channels else FusedMovingAvgObsFakeQuantize
        observer = fake.with_args(
            observer=MovingAveragePerChannelMinMaxObserver, averaging_constant=1.0, eps=2.0**-30, ch_axis=channels
        )
    else:
        observer = PerChannelMinMaxObserver.with_args(eps=2.0**-30)
    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-127,
        quant_max=127,
        qscheme=torch.per_channel_symmetric,
        ch_axis=channels,
        observer_or_fake_quant_ctr=observer,
    )


class Quantizer(TorchaoQuantizer):  # type: ignore[misc]
    """Static int8 for everything the operator table has in int8.

    Activations: int8, per tensor, affine. Weights: int8, per output channel, symmetric. Operators that only move
    bytes share one scale and zero point between inputs and output; clamps fold into the operator before them.

    Args:
        qat: fake quantization with moving averages, for `prepare_qat_pt2e`.
    """

    def __init__(self, qat: bool = False) -> None:
        super().__init__()
        self._activation = _activation(qat)
        self._weight = _weight(qat, channels=0)
        self._columns = _weight(qat, channels=1)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes the annotation of every node the table knows."""
        for node in model.graph.nodes:
            name = str(node.target)
            if node.op != "call_function" or name not in ATEN or not _is_float(node) or _ANNOTATION in node.meta:
                continue
            match _kind(node):
                case WeightedSum():
                    self._weighted(node)
                case Arithmetic() | Elementwise():
                    self._put(node, {n: self._activation for n in node.all_input_nodes if _is_float(n)})
                case Moves() | Monotonic():
                    self._shared(node)
                case Normalization() if not _is_weighted(node.args[0]):
                    self._put(node, {node.all_input_nodes[0]: self._activation})
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing to check: what is not annotated stays in float and is reported by `compile`."""

    def _weighted(self, node: Node) -> None:
        arguments = _named_arguments(node)
        x = arguments.get("input", arguments.get("mat1", arguments.get("self")))
        weight = arguments.get("weight")
        matrix = arguments.get("mat2", arguments.get("other"))  # of x @ matrix: its columns are the channels
        if not isinstance(x, Node):
            return
        if isinstance(weight, Node) and _is_constant(weight):
            columns = _is_transposed(node) and not _is_depthwise(weight, arguments)
            self._put(node, {x: self._activation, weight: self._columns if columns else self._weight})
        elif isinstance(matrix, Node) and _is_constant(matrix) and matrix.meta["val"].dim() == 2:
            self._put(node, {x: self._activation, matrix: self._columns})

    def _shared(self, node: Node) -> None:
        inputs = [n for n in node.all_input_nodes if _is_float(n)]
        if not inputs:
            return
        share = SharedQuantizationSpec((inputs[0], node))
        specs: dict[Node, Any] = {inputs[0]: self._activation} | {n: share for n in inputs[1:]}
        if isinstance(node.meta.get("val"), (list, tuple)):
            node.meta[_ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
            for item in node.users:
                item.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=share, _annotated=True)
            return
        node.meta[_ANNOTATION] = QuantizationAnnotation(input_qspec_map=specs, output_qspec=share, _annotated=True)

    def _put(self, node: Node, inputs: dict[Node, Any]) -> None:
        """Inputs on the node, the output's spec on the end of its chain of batch norm and clamps."""
        end = node
        between: list[Node] = []
        norms = _is_weighted(node) or _normalizes(node)
        while len(end.users) == 1:
            user = next(iter(end.users))
            if not (_clamps(user) or (norms and _normalizes(user))):
                break
            end = user
            between.append(end)
        if end is not node:
            node.meta[_ANNOTATION] = QuantizationAnnotation(input_qspec_map=inputs, _annotated=True)
            for clamp in (n for n in between if _clamps(n)):
                clamp.meta.setdefault(_ANNOTATION, QuantizationAnnotation(_annotated=True))
            end.meta[_ANNOTATION] = QuantizationAnnotation(output_qspec=self._activation, _annotated=True)
            return
        node.meta[_ANNOTATION] = QuantizationAnnotation(
            input_qspec_map=inputs, output_qspec=self._activation, _annotated=True
        )


def _kind(node: Any) -> Int8 | None:
    """What the operator a node calls is in int8."""
    name = str(node.target) if isinstance(node, Node) else ""
    return ATEN[name][0].int8 if name in ATEN else None


def _normalizes(node: Node) -> bool:
    """Whether a node is a batch norm, or the result taken from one."""
    if node.target is operator.getitem:
        return _normalizes(node.all_input_nodes[0])
    return isinstance(_kind(node), Normalization)


def _clamps(node: Node) -> bool:
    kind = _kind(node)
    return isinstance(kind, Elementwise) and kind.clamp is not None


def _is_weighted(node: Any) -> bool:
    """Whether a node is a convolution or linear, whose batch norm torchao folds itself."""
    return isinstance(_kind(node), WeightedSum)


def _named_arguments(node: Node) -> dict[str, Any]:
    """The arguments a call gives, by the names of its schema."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def _is_transposed(node: Node) -> bool:
    """Whether a call is a transposed convolution, whose weight is (inputs, outputs / groups, ...)."""
    names = {argument.name for argument in node.target._schema.arguments}  # type: ignore[union-attr]
    return bool(_named_arguments(node)["transposed"] if "transposed" in names else "output_padding" in names)


def _is_depthwise(weight: Node, arguments: Mapping[str, Any]) -> bool:
    """Whether each input of a transposed convolution makes one output alone, so that axis 0 holds the outputs too."""
    inputs, outputs = weight.meta["val"].shape[:2]
    return bool(outputs == 1 and arguments.get("groups", 1) == inputs)


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and first.is_floating_point()


def _is_constant(node: Node) -> bool:
    return node.op == "get_attr"


def quantize(
    module: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    calibration: Iterable[torch.Tensor | Sequence[torch.Tensor]],
    quantizer: TorchaoQuantizer | None = None,
    progress: bool = True,
) -> ExportedProgram:
    """Statically quantizes a float module with PT2E.

    Args:
        module: in eval mode.
        example_inputs: positional arguments, float32 tensors; they fix the shapes.
        calibration: representative inputs; each item is a tensor or a tuple of arguments.
        quantizer: any torchao PT2E quantizer; ours by default.
        progress: show a progress bar over the calibration items, on stderr if that is a terminal.

    Raises:
        InputError: the module is in training mode, an argument is no sequence of tensors, the calibration is empty or
            holds NaN or infinities.
        UnsupportedError: the module changes its own buffers, or torchao would fold a batch norm wrongly.
    """
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"expected a torch.nn.Module, found {type(module).__name__}")
    example = () if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if isinstance(example_inputs, torch.Tensor) or not all(isinstance(x, torch.Tensor) for x in example):
        found = type(example_inputs).__name__ if not example else [type(x).__name__ for x in example]
        raise InputError(f"example_inputs must be a tuple of torch tensors, found {found}: write (x,)")
    if not isinstance(calibration, Iterable):
        raise InputError(f"calibration must be an iterable of inputs, found {type(calibration).__name__}")
    if module.training:
        raise InputError(
            "the module is in training mode: call module.eval() first (see Quantizer(qat=True) for training)"
        )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, example).run_decompositions({})
        mutated = list(program.graph_signature.buffers_to_mutate.values())
        if mutated:
            raise UnsupportedError(
                f"the module changes its buffers {', '.join(mutated)}: int8 inference keeps no state"
            )
        float_graph = program.module(check_guards=False)
        _check_grouped_norms(float_graph)
        prepared = prepare_pt2e(float_graph, quantizer or Quantizer())
        _check_folding(module, prepared, example)
        count = 0
        items = list(calibration)
        hidden = not (progress and sys.stderr.isatty())
        console = Console(stderr=True)
        for item in track(items, "calibrating", disable=hidden, console=console, transient=True):
            prepared(*_calibration_item(item, count, example))
            count += 1
        if not count:
            raise InputError("the calibration is empty: give an iterable of representative inputs")
        converted = convert_pt2e(prepared)
        return torch.export.export(converted, example)


def _calibration_item(
    item: torch.Tensor | Sequence[torch.Tensor], index: int, example: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The arguments of one calibration item, checked against the example: number, shapes, finite values."""
    arguments = (item,) if isinstance(item, torch.Tensor) else tuple(item)
    if len(arguments) != len(example):
        raise InputError(f"calibration item {index} has {len(arguments)} arguments, the module takes {len(example)}")
    for argument, wanted in zip(arguments, example, strict=True):
        if not isinstance(argument, torch.Tensor) or argument.shape != wanted.shape or argument.dtype != wanted.dtype:
            found = type(argument).__name__
            if isinstance(argument, torch.Tensor):
                found = f"{argument.dtype} {tuple(argument.shape)}"
            raise InputError(
                f"calibration item {index} is {found}, the example input is {wanted.dtype} {tuple(wanted.shape)}: "
                "give torch tensors shaped as example_inputs (model.reshape changes the sizes of a compiled model)"
            )
        if not torch.isfinite(argument).all():
            raise InputError(f"calibration item {index} holds NaN or infinity: clean the calibration data")
    return arguments


def _check_grouped_norms(model: GraphModule) -> None:
    """torchao folds a batch norm into a transposed convolution as if it had one group: it fails, or gets it wrong."""
    for node in model.graph.nodes:
        if node.op != "call_function" or not _is_weighted(node) or not _is_transposed(node):
            continue
        groups = _named_arguments(node).get("groups", 1)
        if groups > 1 and any(_normalizes(user) for user in node.users):
            raise UnsupportedError(
                f"{node.name} is a transposed convolution of {groups} groups before a batch norm, which torchao cannot "
                "fold: multiply its weight and bias by the batch norm's factors before quantizing"
            )


def _check_folding(module: torch.nn.Module, prepared: GraphModule, example: tuple[torch.Tensor, ...]) -> None:
    """Before calibration the prepared module computes in float, so it must agree with the module itself.

    torchao folds a batch norm into its convolution in place: wrong where the convolution's output also feeds
    something else, or where one convolution is followed by two batch norms.
    """
    expected = _tensors(module(*example))
    found = _tensors(_without_observation(prepared, example))
    for e, f in zip(expected, found, strict=True):
        if not e.numel():
            continue
        error, size = (e.double() - f.double()).abs().max().item(), e.abs().max().item()
        if error > 1e-3 * max(size, 1e-6):
            raise UnsupportedError(
                f"torchao's preparation changes the module (largest difference {error:.3g} of {size:.3g}): it folds "
                "batch norms wrongly where a convolution's output feeds more than its batch norm, or one convolution "
                "is applied twice. Give each use its own convolution, or fold the batch norms before quantizing"
            )


def _without_observation(prepared: GraphModule, example: tuple[torch.Tensor, ...]) -> Any:
    """Runs the prepared graph with its observers passed through, so that the example does not calibrate it."""
    observers = {n for n, m in prepared.named_modules() if hasattr(m, "calculate_qparams")}

    class Skip(torch.fx.Interpreter):
        def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
            return args[0] if target in observers else super().call_module(target, args, kwargs)

    flat, _ = torch.utils._pytree.tree_flatten((example, {}))
    return Skip(prepared).run(*flat)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_flatten(outputs)[0] if isinstance(t, torch.Tensor)]
