"""torchao's prepare and convert, without their errors and slow steps.

torchao folds every batch norm behind a convolution, in place. That is wrong if the convolution's result has other
readers, if one convolution is applied twice, and for transposed convolutions with groups. `convert_pt2e` also searches
a model with batch norms for 48 patterns of quantization-aware training, each of which it traces again, which takes half
a minute. So batch norms are hidden from both, and shown only to quantizers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph import CodeGen, PythonCode

from q8ta_wgpu.frontend.calibrate.equalize import equalize
from q8ta_wgpu.frontend.calibrate.masked_rows import give_zeros
from q8ta_wgpu.frontend.calibrate.pt2e import Quantizer, convert_pt2e, prepare_pt2e
from q8ta_wgpu.frontend.export.modes import OwnNumbers
from q8ta_wgpu.frontend.nodes import normalizes


def prepared(
    model: GraphModule,
    quantizer: Quantizer,
    equal_for: Sequence[tuple[torch.Tensor, ...]] = (),
    seen: Callable[[GraphModule], None] | None = None,
) -> GraphModule:
    """A model with the observers that a quantizer asks for. It can run after `recompile`. Its channels are equalized by
    the inputs `equal_for`. `seen` is called with the model as the quantizer annotates it."""
    _hide_norms(model)
    return _without_code(model, lambda whole: prepare_pt2e(whole, _Shown(quantizer, equal_for, seen)))


def transformed(model: GraphModule, quantizer: Quantizer) -> GraphModule:
    """A model as a quantizer transforms it before annotation. Rows that are masked as a whole give zeros."""
    found: GraphModule = quantizer.transform_for_annotation(Unrun(model, model.graph))
    give_zeros(found)
    return found


def converted(model: GraphModule) -> GraphModule:
    """A calibrated model with quantize and dequantize nodes in place of observers. Weights are not quantized yet. It
    can run after `recompile`."""
    _hide_norms(model)
    quantized = _without_code(model, lambda whole: convert_pt2e(whole, fold_quantize=False))
    _show_norms(quantized)
    return quantized


def _hide_norms(model: GraphModule) -> None:
    """Replaces batch norms by their overload packets, which compute the same and export to the same."""
    for node in model.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload) and normalizes(node):
            node.target = node.target.overloadpacket


def _show_norms(model: GraphModule) -> None:
    """Reverses `_hide_norms`."""
    for node in model.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverloadPacket):
            node.target = node.target.default


def _without_code(model: GraphModule, step: Callable[[GraphModule], GraphModule]) -> GraphModule:
    """The result of one of torchao's functions, which make modules of a graph and recompile them after each of their
    steps. That takes most of their time, and they run none of these modules: no Python code is written for them."""
    written = model.graph._codegen
    model.graph.set_codegen(_NoCode())
    with OwnNumbers():
        found = step(model)
    found.graph.set_codegen(written)
    return found


class _NoCode(CodeGen):
    """Writes a function of no nodes, whatever the graph. A version of torch that lacks the method writes them all."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> PythonCode:
        return super()._gen_python_code(Graph().nodes, *args, **kwargs)


class Unrun(GraphModule):
    """A graph that quantizers annotate and torchao inserts observers into, before it becomes a module.

    It never runs, so it is not compiled. Modules are plain attributes: for the name of each observer torchao looks up
    those of all before it, which takes nn.Module ten times as long.
    """

    def recompile(self) -> Any:
        """Does nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, torch.nn.Module):
            self.__dict__[name] = value


class _Shown(Quantizer):  # type: ignore[misc]
    """A quantizer to which hidden batch norms are shown again."""

    def __init__(
        self,
        quantizer: Quantizer,
        equal_for: Sequence[tuple[torch.Tensor, ...]],
        seen: Callable[[GraphModule], None] | None,
    ) -> None:
        super().__init__()
        self._quantizer = quantizer
        self._equal_for = equal_for
        self._seen = seen

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Shows the batch norms, applies the quantizer's own transform, and equalizes channels."""
        _show_norms(model)
        found = transformed(model, self._quantizer)
        if self._seen is not None:
            self._seen(found)
        if self._equal_for:
            equalize(found, self._equal_for)
            self._equal_for = ()
        return found

    def annotate(self, model: GraphModule) -> GraphModule:
        """As the quantizer does."""
        annotated: GraphModule = self._quantizer.annotate(model)
        return annotated

    def validate(self, model: GraphModule) -> None:
        """As the quantizer does."""
        self._quantizer.validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, observers: Any) -> None:
        """As the quantizer does."""
        self._quantizer.prepare_obs_or_fq_callback(model, observers)
