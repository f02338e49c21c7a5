"""How our quantizer rounds each kind of value, as specs of torchao: dtype, granularity of scales, and observer."""

from __future__ import annotations

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
_INT16 = {"dtype": torch.int16, "quant_min": -(2**15), "quant_max": 2**15 - 1}

_EPS_IN_TRAINING = 2.0**-100
"""The smallest scale in training, whose fake quantization knows no other one for zeros."""


def activation(qat: bool, storage: Storage) -> QuantizationSpec:
    """How a storage is rounded. Its range is found by an observer, or in training with `qat` by a moving average."""
    kind = torch.per_tensor_symmetric if storage in (INT16, SLICE) else torch.per_tensor_affine
    options = {**(_INT16 if storage == INT16 else _INT8), "qscheme": kind}
    if qat and isinstance(storage, QParams):  # no data changes it
        return FixedQParamsQuantizationSpec(scale=storage.scale, zero_point=storage.zero, **options)
    observer = RangeObserver.with_args(storage=storage, eps=SMALLEST_SCALE)
    if qat:
        average = {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.05, "eps": _EPS_IN_TRAINING}
        observer = FusedMovingAvgObsFakeQuantize.with_args(**average)
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, **options)


def weight(qat: bool, channels: int) -> QuantizationSpec:
    """int8 with a scale for each output channel. `channels` is their dimension."""
    observer = PerChannelWeightObserver.with_args(eps=SMALLEST_SCALE)
    if qat:
        # FusedMovingAvgObsFakeQuantize takes axis 0 alone; torchao drops the axis unless a name begins with PerChannel.
        fake = FakeQuantize if channels else FusedMovingAvgObsFakeQuantize
        observer = fake.with_args(
            observer=MovingAveragePerChannelMinMaxObserver,
            averaging_constant=1.0,
            eps=_EPS_IN_TRAINING,
            ch_axis=channels,
        )
    ends = {"quant_min": -LARGEST_WEIGHT, "quant_max": LARGEST_WEIGHT}
    options = {"dtype": torch.int8, **ends, "qscheme": torch.per_channel_symmetric, "ch_axis": channels}
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, **options)
