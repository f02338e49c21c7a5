"""Tracing of a module by torch: one thread at a time, with shortcuts for what torch cannot trace, or only slowly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

_aten = torch.ops.aten
_LIBRARY = torch.library.Library("q8ta_wgpu", "DEF")  # type: ignore[no-untyped-call]


def torch_lock() -> AbstractContextManager[Any]:
    """The lock under which torch.compile traces. Tracing stores its state in global variables, so that only one thread
    may do it at a time."""
    from torch._dynamo.convert_frame import compile_lock  # takes a second to import; torch.export imports it, too

    lock: AbstractContextManager[Any] = compile_lock
    return lock


def traced(trace: Callable[[], ExportedProgram]) -> ExportedProgram:
    """The program that a call of torch returns, traced with the shortcuts of this file."""
    with torch_lock(), _Answered():
        program = trace()
    for node in program.graph.nodes:
        node.target = _TRACED.get(node.target, node.target)
    return program


class _Answered(TorchFunctionMode):
    """Answers, in this thread, calls that torch.export cannot trace or would trace slowly.

    nn.TransformerEncoder and its decoder test whether a mask is causal, to choose a kernel. The answer is no. For lstm
    and gru only the shapes of their results are computed: torch would compute every step, 8 ms each, and treat the
    batch of such a layer as a constant.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The answer to a call."""
        if func is Tensor.__bool__ and _asks_for_causal():
            return False
        if func in _LAYERS and isinstance(args[3], bool):  # the overload for packed sequences has a list there
            func = _LAYERS[func]
        return func(*args, **(kwargs or {}))


def _asks_for_causal() -> bool:
    """Whether the call comes from torch's test for causal masks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not transformer._detect_is_causal_mask.__code__:
        frame = frame.f_back
    return frame is not None


def shapes_of_layer(x: Tensor, hx: Tensor | Sequence[Tensor], *options: Any) -> tuple[Tensor, ...]:
    """Tensors of the shapes of a layer's results; `options` are the rest of aten's arguments."""
    states = [hx] if isinstance(hx, Tensor) else hx
    bidirectional = options[-2]
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    return x.new_empty((*x.shape[:2], width)), *(torch.empty_like(h) for h in states)


def _traced(layer: Any) -> Any:
    """An operator with the arguments of one of torch's, which computes shapes only."""
    name, overload = layer._schema.name.removeprefix("aten::"), layer._overloadname
    _LIBRARY.define(str(layer._schema).removeprefix("aten::"))  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"q8ta_wgpu::{name}.{overload}", shapes_of_layer, lib=_LIBRARY)
    return getattr(getattr(torch.ops.q8ta_wgpu, name), overload)


_TRACED: Mapping[Any, Any] = {_traced(layer): layer for layer in (_aten.lstm.input, _aten.gru.input)}
_LAYERS: Mapping[Any, Callable[..., Any]] = {
    call: made for made, layer in _TRACED.items() for call in (layer, getattr(torch, layer._schema.name[6:]))
}
