"""How our quantizer rounds: the ranges and observers of activations, shares, residual streams and weights."""

from __future__ import annotations

from dataclasses import replace

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


def activation(qat: bool, scheme: torch.qscheme = torch.per_tensor_affine) -> QuantizationSpec:
    """int8 for a whole tensor, over the range that calibration or training meets."""
    if qat:
        observer = FusedMovingAvgObsFakeQuantize.with_args(
            observer=MovingAverageMinMaxObserver, averaging_constant=0.05, eps=EPS
        )
    else:
        observer = RangeObserver.with_args(eps=EPS)
    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-128,
        quant_max=127,
        qscheme=scheme,
        observer_or_fake_quant_ctr=observer,
    )


def whole(qat: bool) -> QuantizationSpec:
    """int8 of what may be whole numbers, which then stay what they are."""
    return (
        activation(True)
        if qat
        else replace(activation(False), observer_or_fake_quant_ctr=WholeObserver.with_args(eps=EPS))
    )


def fixed(q: QParams) -> FixedQParamsQuantizationSpec:
    """int8 with a scale and zero point that no data changes."""
    return FixedQParamsQuantizationSpec(
        dtype=torch.int8,
        scale=q.scale,
        zero_point=q.zero,
        quant_min=-128,
        quant_max=127,
        qscheme=torch.per_tensor_affine,
    )


def share(q: QParams) -> QuantizationSpec:
    """Shares of a whole, whose steps are those of `q` at most: among many keys each has little."""
    observer = ShareObserver.with_args(largest=q.scale, eps=2.0**-16)
    return replace(activation(False), observer_or_fake_quant_ctr=observer)


def residual(qat: bool) -> QuantizationSpec:
    """int16: fine enough for twice the range that is met."""
    observer = (
        FusedMovingAvgObsFakeQuantize.with_args(observer=MovingAverageMinMaxObserver, averaging_constant=0.05, eps=EPS)
        if qat
        else RoomyObserver.with_args(eps=EPS)
    )
    return QuantizationSpec(
        dtype=torch.int16,
        quant_min=-(2**15),
        quant_max=2**15 - 1,
        qscheme=torch.per_tensor_symmetric,
        observer_or_fake_quant_ctr=observer,
    )


def wide(low: torch.Tensor, high: torch.Tensor) -> RoomyObserver:
    """An observer for int16 that met this range."""
    observer = RoomyObserver(
        dtype=torch.int16,
        qscheme=torch.per_tensor_symmetric,
        quant_min=-(2**15),
        quant_max=2**15 - 1,
        eps=EPS,
    )
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
    return QuantizationSpec(
        dtype=torch.int8,
        quant_min=-127,
        quant_max=127,
        qscheme=torch.per_channel_symmetric,
        ch_axis=channels,
        observer_or_fake_quant_ctr=observer,
    )


def groups(group: int, channels: int) -> QuantizationSpec:
    """4 bits with a scale for each output, which are along `channels`, and a factor for each group of inputs."""
    return QuantizationSpec(
        dtype=torch.int16,
        quant_min=-LARGEST_OF_4_BITS,
        quant_max=LARGEST_OF_4_BITS,
        qscheme=torch.per_channel_symmetric,
        ch_axis=channels,
        observer_or_fake_quant_ctr=PerChannelGroupObserver.with_args(group=group, eps=EPS),
    )
