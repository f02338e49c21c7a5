"""Sines and cosines of inputs times constants: embeddings of timesteps and positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from bench.noise import decibels
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, check, conv, data, ops

FREQUENCIES = torch.exp(-torch.arange(8.0))


def _embedded(m: nn.Module, time: Tensor) -> Tensor:
    angles = time[:, None] * FREQUENCIES
    return torch.cat([angles.sin(), angles.cos()], 1)


def test_a_timestep_is_embedded_in_float32(device: Device) -> None:
    """In 256 steps of 3.8 radians it was lost, -2 dB; what another reader reads of it is int8."""
    linear = nn.Linear(16, 4)
    module = Plain(lambda m, time: (m.linear(_embedded(m, time)), torch.relu(time)), linear=linear)
    time = torch.tensor([967.0])
    model = check(module, (time,), device)
    found, _ = q8.Session(model, "reference")(time.numpy())
    ratio = decibels(module(time)[0].detach().numpy(), found)
    assert ratio is not None
    assert ratio > 20
    assert {"sin", "cos", "mul"} <= set(model.report().float32)


def test_angles_of_few_turns_and_of_layers_are_int8(device: Device) -> None:
    module = Plain(lambda m, x: torch.sin(3 * x) + torch.cos(20 * m.conv(x)), conv=conv(3, 3))
    model = check(module, (data(1, 3, 8, 8),), device)
    assert ops(model).count("q8ta_table") == 2
    assert not model.report().float32
