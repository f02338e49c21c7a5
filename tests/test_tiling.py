"""Tiles with a halo: the seams are byte-equal to the untiled result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.tiled import largest_value, needed


def compiled(module: nn.Module, shape: tuple[int, ...]) -> q8.Model:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    x = torch.randn(shape)
    return q8.compile(q8.quantize(module.eval(), (x,), calibration=[x], progress=False))


NETWORKS: dict[str, nn.Module] = {
    "sub-pixel": nn.Sequential(
        nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 9, 3, padding=1), nn.PixelShuffle(3)
    ),
    "strided": nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.Hardswish(), nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 3, 1, 2, 2)
    ),
    "down and up": nn.Sequential(
        nn.Conv2d(1, 6, 4, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(6, 3, 3, padding=1)
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("size", [(40, 52), (66, 38)])
def test_tiles_equal_the_whole(name: str, size: tuple[int, int], vulkan: Device) -> None:
    model = compiled(NETWORKS[name], (1, 1, 24, 24))
    x = np.random.default_rng(3).normal(size=(1, 1, *size)).astype(np.float32)
    with q8.Session(model.reshape(x.shape), vulkan) as session:
        whole = session(x)
    limit = largest_value(model.reshape(x.shape).graph) // 2
    with q8.TiledSession(model, x.shape, vulkan, max_bytes=limit) as tiled:
        assert tiled.windows > 1
        found = tiled(x)
    assert int((found.view(np.uint32) != whole.view(np.uint32)).sum()) == 0


def test_an_image_that_fits_is_one_window(vulkan: Device) -> None:
    model = compiled(NETWORKS["sub-pixel"], (1, 1, 24, 24))
    x = np.zeros((1, 1, 7, 5), np.float32)
    with q8.TiledSession(model, x.shape, vulkan) as tiled:
        assert tiled.windows == 1
        assert tiled(x).shape == (1, 1, 21, 15)
        assert np.array_equal(tiled(torch.from_numpy(x).requires_grad_()), tiled(x))


def test_halo_of_the_sub_pixel_net() -> None:
    graph = compiled(NETWORKS["sub-pixel"], (1, 1, 24, 24)).graph
    assert needed(graph, 2, 30, 32) == (7, 13)
    assert needed(graph, 2, 0, 0) == (0, 3)


def test_global_operators_are_refused(vulkan: Device) -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1))
    model = compiled(module, (1, 1, 24, 24))
    with pytest.raises(q8.InputError, match="cannot run in tiles"):
        q8.TiledSession(model, (1, 1, 64, 64), vulkan, max_bytes=8000)


def test_a_limit_below_the_halo_is_refused(vulkan: Device) -> None:
    model = compiled(NETWORKS["sub-pixel"], (1, 1, 24, 24))
    with pytest.raises(q8.InputError, match="max_bytes"):
        q8.TiledSession(model, (1, 1, 64, 64), vulkan, max_bytes=200)
