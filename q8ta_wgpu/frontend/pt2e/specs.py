"""How our quantizer rounds each kind of value, as torchao's specs: dtype, granularity of scales, and observer."""

from __future__ import annotations

from typing import Any

import torch

from q8ta_wgpu.frontend.pt2e.observers import PerChannelWeightObserver, RangeObserver
from q8ta_wgpu.frontend.pt2e.torchao import (
    FakeQuantize,
    FixedQParamsQuantizationSpec,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    QuantizationSpec,
)
from q8ta_wgpu.ir.graph import SMALLEST_SCALE, QParams
from q8ta_wgpu.passes.plan.storage import INT16, SLICE, Storage
from q8ta_wgpu.quantization.ranges import LARGEST_WEIGHT

_INT8 = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127}
_INT16 = {
    "dtype": torch.int16,
    "quant_min": -(2**15),
    "quant_max": 2**15 - 1,
    "qscheme": torch.per_tensor_symmetric,
}

_SCHEMES: dict[Storage, torch.qscheme] = {SLICE: torch.per_tensor_symmetric}

_EPS_IN_TRAINING = 2.0**-100
"""The smallest scale in training, whose fake quantization knows no other one for zeros."""


def _spec(observer: Any, **options: Any) -> QuantizationSpec:
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, **options)


def _met_in_training() -> Any:
    """Rounds in training, over a moving average of the ranges of batches."""
    options = {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.05, "eps": _EPS_IN_TRAINING}
    return FusedMovingAvgObsFakeQuantize.with_args(**options)


def activation(qat: bool, storage: Storage) -> QuantizationSpec:
    """How a storage is rounded. Its range is found by an observer, or in training with `qat` by a moving average."""
    options = _INT16 if storage == INT16 else {**_INT8, "qscheme": _SCHEMES.get(storage, torch.per_tensor_affine)}
    if qat and isinstance(storage, QParams):  # no data changes it
        return FixedQParamsQuantizationSpec(scale=storage.scale, zero_point=storage.zero, **options)
    return _spec(_met_in_training() if qat else RangeObserver.with_args(storage=storage, eps=SMALLEST_SCALE), **options)


def weight(qat: bool, channels: int) -> QuantizationSpec:
    """int8 with a scale for each output channel. `channels` is their dimension."""
    if qat:
        # FusedMovingAvgObsFakeQuantize takes axis 0 alone; torchao drops the axis unless a name begins with PerChannel.
        fake = FakeQuantize if channels else FusedMovingAvgObsFakeQuantize
        observer = fake.with_args(
            observer=MovingAveragePerChannelMinMaxObserver,
            averaging_constant=1.0,
            eps=_EPS_IN_TRAINING,
            ch_axis=channels,
        )
    else:
        observer = PerChannelWeightObserver.with_args(eps=SMALLEST_SCALE)
    ends = {"quant_min": -LARGEST_WEIGHT, "quant_max": LARGEST_WEIGHT}
    return _spec(observer, dtype=torch.int8, **ends, qscheme=torch.per_channel_symmetric, ch_axis=channels)
