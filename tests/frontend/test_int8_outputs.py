"""Results given as the integers a network ends with: the float32 ones are theirs, by the scale and zero point told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device

SHAPE = (2, 3, 13, 18)


class Net(nn.Module):
    """Ends with what is int8 anyway, moved; with the same value again; and with a sum that nobody rounds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.head = nn.Conv2d(3, 12, 3), nn.Conv2d(12, 5, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pooled = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return nn.functional.pixel_shuffle(pooled, 2), pooled, self.head(pooled)


@pytest.fixture(scope="module")
def models() -> tuple[q8.Model, q8.Model, Any]:
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))
    quantizer = q8.Quantizer(precision="int8")
    program = q8.quantize(Net().eval(), (x,), calibration=[(x,)], quantizer=quantizer, progress=False)
    return q8.compile(program), q8.compile(program, int8_outputs=True), x.numpy()


def test_integers_of_the_same_results(models: tuple[q8.Model, q8.Model, Any], device: Device, tmp_path: Path) -> None:
    floats, integers, x = models
    integers.save(tmp_path / "net.q8ta")
    integers = q8.load(tmp_path / "net.q8ta")
    assert [t.dtype for t in integers.outputs] == ["int8x4", "int8x4", "float32"]
    with q8.Session(floats, device) as first, q8.Session(integers, device) as second:
        expected, found = first(x), second(x)
    for t, whole, given in zip(integers.outputs, expected, found, strict=True):
        assert whole.shape == given.shape
        if t.q is not None:
            assert given.dtype == np.int8
            given = (given.astype(np.int32) - t.q.zero).astype(np.float32) * np.float32(t.q.scale)
        np.testing.assert_array_equal(given, whole)
    with q8.Session(integers, "reference") as session:
        for given, again in zip(found, session(x), strict=True):
            np.testing.assert_array_equal(given, again)
