"""Observers that torchao's prepare takes from our quantizer: ranges and scales are those of q8ta_wgpu/quantization."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from q8ta_wgpu.frontend.pt2e.torchao import PerChannelMinMaxObserver, UniformQuantizationObserverBase
from q8ta_wgpu.passes.plan.storage import INT8, Storage
from q8ta_wgpu.quantization.ranges import Range, scales_of_weights


class RangeObserver(UniformQuantizationObserverBase):  # type: ignore[misc]
    """The range of an activation, with the least squared error.

    Args:
        storage: how it is stored.
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


class PerChannelWeightObserver(PerChannelMinMaxObserver):  # type: ignore[misc]
    """The scales of a weight. The name must begin with PerChannel, or torchao drops the axis."""

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale of each output, and zeros."""
        scale, zero = super().calculate_qparams()
        largest = torch.maximum(-self.min_val, self.max_val).double().numpy()
        return torch.from_numpy(scales_of_weights(largest, self.quant_max)).reshape(scale.shape), zero
