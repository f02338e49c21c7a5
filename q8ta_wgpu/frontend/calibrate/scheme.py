"""How our quantizer rounds: the ranges and observers of activations, shares, residual streams and weights."""

from __future__ import annotations

from typing import Any

import torch

from q8ta_wgpu.calibrate.ranges import EPS
from q8ta_wgpu.frontend.calibrate.groups import PerChannelGroupObserver
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
from q8ta_wgpu.ir.graph import QParams

_INT8 = {"dtype": torch.int8, "quant_min": -128, "quant_max": 127}
_INT16 = {
    "dtype": torch.int16,
    "quant_min": -(2**15),
    "quant_max": 2**15 - 1,
    "qscheme": torch.per_tensor_symmetric,
}


def _spec(observer: Any, **options: Any) -> QuantizationSpec:
    return QuantizationSpec(observer_or_fake_quant_ctr=observer, **options)


def _met_in_training() -> Any:
    """The range that training meets, as it moves."""
    options = {"observer": MovingAverageMinMaxObserver, "averaging_constant": 0.05, "eps": EPS}
    return FusedMovingAvgObsFakeQuantize.with_args(**options)


def activation(
    qat: bool, scheme: torch.qscheme = torch.per_tensor_affine, observer: type[RangeObserver] = RangeObserver
) -> QuantizationSpec:
    """int8 for a whole tensor, over the range that calibration, by an observer of this class, or training meets."""
    return _spec(_met_in_training() if qat else observer.with_args(eps=EPS), **_INT8, qscheme=scheme)


def whole(qat: bool) -> QuantizationSpec:
    """int8 of what may be whole numbers, which then stay what they are."""
    return activation(qat, observer=WholeObserver)


def fixed(q: QParams) -> FixedQParamsQuantizationSpec:
    """int8 with a scale and zero point that no data changes."""
    return FixedQParamsQuantizationSpec(scale=q.scale, zero_point=q.zero, qscheme=torch.per_tensor_affine, **_INT8)


def share(q: QParams) -> QuantizationSpec:
    """Shares of a whole, whose steps are those of `q` at most: among many keys each has little."""
    observer = ShareObserver.with_args(largest=q.scale, eps=2.0**-16)
    return _spec(observer, **_INT8, qscheme=torch.per_tensor_affine)


def residual(qat: bool) -> QuantizationSpec:
    """int16: fine enough for twice the range that is met."""
    return _spec(_met_in_training() if qat else RoomyObserver.with_args(eps=EPS), **_INT16)


def wide(low: torch.Tensor, high: torch.Tensor) -> RoomyObserver:
    """An observer for int16 that met this range."""
    observer = RoomyObserver(**_INT16, eps=EPS)
    observer.min_val, observer.max_val = low.detach(), high.detach()
    return observer


def weight(qat: bool, channels: int) -> QuantizationSpec:
    """int8 with a scale for each output channel, which are along `channels`."""
    if qat:
        # The fused one knows axis 0 alone; torchao drops a spec's axis unless the class is called PerChannel something.
        fake = FakeQuantize if channels else FusedMovingAvgObsFakeQuantize
        observer = fake.with_args(
            observer=MovingAveragePerChannelMinMaxObserver, averaging_constant=1.0, eps=EPS, ch_axis=channels
        )
    else:
        observer = PerChannelWeightObserver.with_args(eps=EPS)
    ends = {"quant_min": -127, "quant_max": 127}
    return _spec(observer, dtype=torch.int8, **ends, qscheme=torch.per_channel_symmetric, ch_axis=channels)


def wide_rows(weight: torch.Tensor) -> PerChannelWeightObserver:
    """An observer for int16 of a table, with a scale for each of its rows, that met it."""
    ends = {"quant_min": -(2**15 - 1), "quant_max": 2**15 - 1}
    observer = PerChannelWeightObserver(
        dtype=torch.int16, **ends, qscheme=torch.per_channel_symmetric, ch_axis=0, eps=torch.finfo(torch.float32).tiny
    )
    observer(weight)
    return observer


def groups(group: int, channels: int) -> QuantizationSpec:
    """4 bits with a scale for each output, which are along `channels`, and a factor for each group of inputs."""
    observer = PerChannelGroupObserver.with_args(group=group, eps=EPS)
    ends = {"quant_min": -LARGEST_OF_4_BITS, "quant_max": LARGEST_OF_4_BITS}
    return _spec(observer, dtype=torch.int16, **ends, qscheme=torch.per_channel_symmetric, ch_axis=channels)
