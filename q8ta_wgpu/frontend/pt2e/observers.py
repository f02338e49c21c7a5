"""Observers: modules that see values and say in which range they are stored, as torchao's prepare takes them.

An observer's `calculate_qparams` returns scale and zero point, as torchao expects. Ranges are those of
q8ta_wgpu/quantization/ranges.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.export.states import states_of
from q8ta_wgpu.frontend.pt2e.torchao import PerChannelMinMaxObserver, UniformQuantizationObserverBase
from q8ta_wgpu.passes.plan.storage import INT8, Storage
from q8ta_wgpu.quantization.ranges import Range, scales_of_weights


def observer_of(model: GraphModule, node: Any) -> Any:
    """The observer that a node of a prepared module calls. None for nodes that call something else."""
    found = model.get_submodule(str(node.target)) if isinstance(node, Node) and node.op == "call_module" else None
    return found if hasattr(found, "calculate_qparams") else None


class RangeObserver(UniformQuantizationObserverBase):  # type: ignore[misc]
    """The range of an activation.

    Args:
        storage: how it is stored.

    Attributes:
        met: what was met.
    """

    def __init__(self, storage: Storage = INT8, **options: Any) -> None:
        super().__init__(**options)
        self.storage, self.met = storage, Range(storage)

    def forward(self, x: Tensor) -> Tensor:
        """Counts a batch; returns it. Raises RuntimeError, as torchao's observers do, at NaN and infinities."""
        if not torch.isfinite(x).all():
            raise RuntimeError("a value that is not finite has no range")
        self.met.meet(x.detach().cpu().numpy())
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """Scale and zero point."""
        q = self.met.stored(self.storage)
        return torch.tensor([q.scale]), torch.tensor([q.zero], dtype=torch.int32)

    @property
    def min_val(self) -> Tensor:
        """The smallest value that was met."""
        return torch.tensor(self.met.low)

    @property
    def max_val(self) -> Tensor:
        """The largest value that was met."""
        return torch.tensor(self.met.high)


class PerChannelWeightObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
    """torchao's observer of weights, which reads an unchanged weight once, though each call of a network brings it.

    The name must begin with PerChannel, or torchao drops the axis.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._seen: tuple[Tensor, int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Widens the range of each channel so that it holds this weight; returns the weight."""
        if self._seen is None or self._seen[0] is not x or self._seen[1] != x._version:
            super().forward(x)
            self._seen = x, x._version
        return x

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale of each output, and zeros."""
        scale, zero = super().calculate_qparams()
        largest = torch.maximum(-self.min_val, self.max_val).double().numpy()
        return torch.from_numpy(scales_of_weights(largest, self.quant_max)).reshape(scale.shape), zero


def share_states(observed: GraphModule) -> None:
    """Lets one observer watch the old and the new value of a state if both have the same width, so that both are stored
    at one scale."""
    for state, result in states_of(observed):
        written = observer_of(observed, result)
        for user in list(state.users):
            read = observer_of(observed, user)
            if read is None or written is None or read is written or read.quant_max != written.quant_max:
                continue
            for call in observed.graph.find_nodes(op="call_module"):
                if observer_of(observed, call) is read:
                    setattr(observed, str(call.target), written)
