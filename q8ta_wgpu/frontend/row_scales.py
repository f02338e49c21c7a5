"""Rows that linears read in int8, each with a scale that the device computes. In torch's programs this is an int16
value followed by `torch.ops.q8ta_wgpu.round_rows`."""

from __future__ import annotations

import torch
from torch import Tensor

from q8ta_wgpu.frontend.nodes import OWN
from q8ta_wgpu.ir import arithmetic


@torch.library.custom_op(f"{OWN}::round_rows", mutates_args=())
def _round_rows(x: Tensor, unit: float) -> Tensor:
    """x (..., k), multiples of `unit` in float32, each row rounded to at most 127 steps of its own either way."""
    return torch.from_numpy(arithmetic.round_rows(x.detach().cpu().numpy(), unit)).to(x.device)


@_round_rows.register_fake
def _shape(x: Tensor, unit: float) -> Tensor:
    return torch.empty_like(x)


round_rows = torch.ops.q8ta_wgpu.round_rows.default
"""The operator."""
