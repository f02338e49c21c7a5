"""How our quantizer rounds each kind of value, as torchao's specs: dtype, granularity of scales, and observer."""

from __future__ import annotations

from typing import Any

import torch

from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.observer import (
    PerChannelWeightObserver,
    RangeObserver,
    RoomyObserver,
    ShareObserver,
    WholeObserver,
)
from q8ta_wgpu.frontend.calibrate.pt2e import (
    FakeQuantize,
    FixedQParamsQuantizationSpec,
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    QuantizationSpec,
)
from q8ta_wgpu.ir.arithmetic import LARGEST_OF_4_BITS
from q8ta_wgpu.ir.graph import SMALLEST_SCALE, QParams
from q8ta_wgpu.quantization.ranges import LARGEST_WEIGHT, Spread

_INT8 = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127}
_INT16 = {
    "dtype": torch.int16,
    "quant_min": -(2**15),
    "quant_max": 2**15 - 1,
    "qscheme": torch.per_tensor_symmetric,
}

_EPS_IN_TRAINING = 2.0**-100
"""The smallest scale in training, whose fake quantization knows no other one for zeros."""


def _spec(observer: Any, **options: Any) -> QuantizationSpec:
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, **options)


def _met_in_training() -> Any:
    """Rounds in training, over a moving average of the ranges of batches."""
    options = {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.05, "eps": _EPS_IN_TRAINING}
    return FusedMovingAvgObsFakeQuantize.with_args(**options)


def activation(
    qat: bool, scheme: torch.qscheme = torch.per_tensor_affine, observer: type[RangeObserver] = RangeObserver
) -> QuantizationSpec:
    """int8 with one scale for a tensor. Its range is found by an observer of this class, or in training with `qat`."""
    return _spec(_met_in_training() if qat else observer.with_args(eps=SMALLEST_SCALE), **_INT8, qscheme=scheme)


def whole(qat: bool) -> QuantizationSpec:
    """int8 for values that may be whole numbers. If all are, they are stored exactly."""
    return activation(qat, observer=WholeObserver)


def fixed(q: QParams) -> FixedQParamsQuantizationSpec:
    """int8 with a scale and zero point that no data changes."""
    return FixedQParamsQuantizationSpec(scale=q.scale, zero_point=q.zero, qscheme=torch.per_tensor_affine, **_INT8)


def share(q: QParams) -> QuantizationSpec:
    """int8 for shares, such as a softmax gives, with a scale of at most `q`'s: shares of many keys are small."""
    observer = ShareObserver.with_args(largest=q.scale, eps=2.0**-16)
    return _spec(observer, **_INT8, qscheme=torch.per_tensor_affine)


def residual(qat: bool) -> QuantizationSpec:
    """int16 for a residual stream, with room beyond the range that calibration met."""
    return _spec(_met_in_training() if qat else RoomyObserver.with_args(eps=SMALLEST_SCALE), **_INT16)


def wide(low: torch.Tensor, high: torch.Tensor, spread: Spread | None = None) -> RoomyObserver:
    """An observer that stores values of this range in int16. Without their spread the room beyond it is ROOM."""
    observer = RoomyObserver(**_INT16, eps=SMALLEST_SCALE)
    observer.min_val, observer.max_val = low.detach(), high.detach()
    observer.spread = spread or observer.spread
    return observer


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


def wide_rows(weight: torch.Tensor) -> PerChannelWeightObserver:
    """An observer that stores this table in int16, with a scale for each row."""
    ends = {"quant_min": -(2**15 - 1), "quant_max": 2**15 - 1}
    observer = PerChannelWeightObserver(
        dtype=torch.int16, **ends, qscheme=torch.per_channel_symmetric, ch_axis=0, eps=SMALLEST_SCALE
    )
    observer(weight)
    return observer


def groups(group: int, channels: int) -> QuantizationSpec:
    """4 bits, with a scale for each output along `channels` and a factor for each group of its inputs."""
    observer = PerChannelGroupObserver.with_args(group=group, eps=SMALLEST_SCALE)
    ends = {"quant_min": -LARGEST_OF_4_BITS, "quant_max": LARGEST_OF_4_BITS}
    return _spec(observer, dtype=torch.int16, **ends, qscheme=torch.per_channel_symmetric, ch_axis=channels)
