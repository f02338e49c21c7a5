"""Rounding of weights to 4 bits, with a factor for each group of inputs of each output (q8ta_wgpu/ir/bits.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.observer import PerChannelWeightObserver
from q8ta_wgpu.frontend.export.editor import new_constant
from q8ta_wgpu.frontend.nodes import constant
from q8ta_wgpu.ir.arithmetic import LARGEST_OF_4_BITS, STEPS
from q8ta_wgpu.ir.bits import largest_factor
from q8ta_wgpu.quantization.ranges import scales_of_weights

_ENDS = (1.1, 1.05, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""The largest numbers of a group that are tried, as fractions of its true one. Clipping it may reduce the error of the
others."""

_AT_ONCE = 1 << 20
"""The number of weights that are rounded at a time. They fit a cache in float64, in which a table of tokens would take
gigabytes."""


class PerChannelGroupObserver(PerChannelWeightObserver):
    """The scale of every output, and for each of its groups of inputs an integer factor of the scale.

    Args:
        group: inputs that share a factor.
    """

    def __init__(self, group: int, **options: Any) -> None:
        super().__init__(**options)
        self.group = group
        self.scales = torch.ones(1)
        self.factors = torch.ones(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Chooses scales and factors for a weight; returns it."""
        before = self._seen
        super().forward(x)
        if self._seen is not before:
            largest = np.array([0.0, float(x.detach().abs().max())])
            self.eps.fill_(float(scales_of_weights(largest, LARGEST_OF_4_BITS)[0]))
            found = itertools.starmap(self._chosen, _parts(x.detach().movedim(self.ch_axis, 0)))
            self.scales, self.factors = map(torch.cat, zip(*found, strict=True))
        return x

    def _chosen(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Scales (outputs) and factors (outputs, groups) of a weight (outputs, inputs). Each group has the factor with
        the least squared error. Its sign makes the group's largest number -8 steps, since +8 is not representable."""
        rows = rows.double()
        split = torch.nn.functional.pad(rows, (0, -rows.shape[1] % self.group)).reshape(len(rows), -1, self.group)
        end = split.gather(2, split.abs().argmax(2, keepdim=True)) / STEPS[0]
        most = largest_factor(rows.shape[1])
        scales = (end.abs().amax((1, 2)) / most).clamp(min=self.eps).float()
        scale = scales.double()[:, None, None]
        least = torch.full_like(end, torch.inf)
        factors = torch.ones_like(end)
        for fraction in _ENDS:
            tried = torch.where(end < 0, -1.0, 1.0) * (end.abs() * fraction / scale).round().clamp(1, most)
            step = tried * scale
            error = (((split / step).round().clamp(*STEPS) * step - split) ** 2).sum(2, keepdim=True)
            factors = torch.where(error < least, tried, factors)
            least = torch.minimum(error, least)
        return scales, factors[..., 0]

    def calculate_qparams(self) -> tuple[Tensor, Tensor]:
        """The scale of each output, and zeros."""
        return self.scales, torch.zeros_like(self.scales, dtype=torch.int32)

    def grid(self, weight: Tensor) -> tuple[Tensor, int, int]:
        """The step of each weight, in float64, and the smallest and largest number of steps."""
        factors = self.factors.repeat_interleave(self.group, 1)[:, : weight.shape[1 - self.ch_axis]]
        return (factors * self.scales.double()[:, None]).movedim(0, self.ch_axis), *STEPS

    def rounded(self, weight: Tensor) -> Tensor:
        """A weight rounded to its nearest steps, in float32 as torch dequantizes it."""
        scale = self.scales.reshape([-1 if axis == self.ch_axis else 1 for axis in range(2)])
        return self._values(weight).float() * scale

    def convert(self, model: GraphModule, observer_node: Node) -> None:
        """Replaces the call of this observer by the quantized weight and a dequantize."""
        (weight,) = observer_node.all_input_nodes
        name = f"_bits_of_{observer_node.name}"
        values = self._values(constant(model, weight).detach()).to(torch.int16)
        scale, zero = self.calculate_qparams()
        tensors = (("", values), ("_scale", scale), ("_zero", zero))
        made = [new_constant(model, observer_node, name + part, value) for part, value in tensors]
        with model.graph.inserting_before(observer_node):
            arguments = (*made, self.ch_axis, -LARGEST_OF_4_BITS, LARGEST_OF_4_BITS, torch.int16)
            real = model.graph.call_function(torch.ops.quantized_decomposed.dequantize_per_channel.default, arguments)
        real.meta = dict(observer_node.meta)
        observer_node.replace_all_uses_with(real)
        model.graph.erase_node(observer_node)

    def _values(self, weight: Tensor) -> Tensor:
        """Steps times factors of a weight, integers in float32."""
        made = itertools.starmap(self._steps, _parts(weight.movedim(self.ch_axis, 0), self.scales, self.factors))
        return torch.cat(list(made)).movedim(0, self.ch_axis)

    def _steps(self, rows: Tensor, scales: Tensor, factors: Tensor) -> Tensor:
        """`_values` of some outputs, outputs first."""
        each = factors.repeat_interleave(self.group, 1)[:, : rows.shape[1]]
        steps = (rows.double() / (each * scales.double()[:, None])).round().clamp(*STEPS)
        return (steps * each).float()


def _parts(rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Slices of weights (outputs, inputs) and of other numbers of each output, with as many outputs as are rounded at a
    time."""
    count = max(1, _AT_ONCE // max(1, rows.shape[1]))
    return zip(*(torch.split(x, count) for x in (rows, *others)), strict=True)
