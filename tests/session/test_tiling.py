"""Tiles with a halo: the seams are byte-equal to the untiled result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
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
    "softmax over channels": nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Softmax(1), nn.Conv2d(8, 4, 3, padding=1)),
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


def max_pooled(structure: Any) -> q8.Model:
    """int8 in, int8 out."""
    q8.Quantizer()  # loads what registers the operators
    qd = torch.ops.quantized_decomposed
    q = (0.1, 3, -128, 127)

    class Pool(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            real = qd.dequantize_per_tensor(qd.quantize_per_tensor(x, *q, torch.int8), *q, torch.int8)
            return structure(qd.quantize_per_tensor(nn.functional.max_pool2d(real, 3, 1, 1), *q, torch.int8))

    return q8.compile(torch.export.export(Pool(), (torch.randn(1, 2, 16, 16),)))


@pytest.mark.parametrize("structure", [lambda y: y, lambda y: {"none": None, "y": [(y,)]}], ids=["tensor", "nested"])
def test_outputs_are_what_a_session_gives(structure: Any, vulkan: Device) -> None:
    model = max_pooled(structure)
    x = np.random.default_rng(3).normal(size=(2, 2, 40, 24)).astype(np.float32)
    with q8.Session(model.reshape(x.shape), vulkan) as session:
        whole = session(x)
    with q8.TiledSession(model, x.shape, vulkan, max_bytes=8000) as tiled:
        assert tiled.windows > 1
        found = tiled(x)
    ((a, spec), (b, expected)) = (pytree.tree_flatten(outputs) for outputs in (found, whole))
    assert spec == expected
    a, b = (next(leaf for leaf in leaves if leaf is not None) for leaves in (a, b))
    assert a.dtype == b.dtype == np.int8
    assert np.array_equal(a, b)


def test_an_image_larger_than_any_graph() -> None:
    """The whole padded image would have more than 2^31 elements; every window fits."""
    model = compiled(nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), nn.Conv2d(64, 1, 3, padding=1)), (1, 1, 24, 24))
    with pytest.raises(q8.InputError, match="elements"):
        model.reshape((1, 1, 5800, 5800))
    with q8.TiledSession(model, (1, 1, 5800, 5800), "reference", max_bytes=128 << 20) as tiled:
        assert tiled.windows > 16
        assert max(tiled.window) < 1500


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 1, 0, 4), (1, 2, 30, 30), (1, 1, 2, 30)])
def test_shapes_that_no_session_takes(shape: tuple[int, ...]) -> None:
    model = compiled(nn.Conv2d(1, 4, 3), (1, 1, 24, 24))
    with pytest.raises(q8.InputError, match=r"\("):
        q8.TiledSession(model, shape, "reference")
    with pytest.raises(q8.InputError, match="max_bytes"):
        q8.TiledSession(model, (1, 1, 30, 30), "reference", max_bytes=0)
    with pytest.raises(q8.InputError, match=r"shape \(n, c, h, w\) of the whole image, found None"):
        q8.TiledSession(model)


def test_what_is_no_image_model() -> None:
    model = compiled(nn.Linear(4, 4), (2, 4))
    with pytest.raises(q8.InputError, match="4-D"):
        q8.TiledSession(model, (2, 4), "reference")
    with pytest.raises(q8.InputError, match="takes a Model"):
        q8.TiledSession("net.q8ta", (1, 1, 8, 8))  # type: ignore[arg-type]


def test_a_closed_session() -> None:
    model = compiled(nn.Conv2d(1, 4, 3), (1, 1, 24, 24))
    tiled = q8.TiledSession(model, (1, 1, 24, 24), "reference")
    tiled.close()
    tiled.close()
    with pytest.raises(q8.InputError, match="closed"):
        tiled(np.zeros((1, 1, 24, 24), np.float32))
    with pytest.raises(q8.InputError, match="closed"), tiled:
        pass


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


def test_windows_can_be_timed_and_tuned(vulkan: Device, caches: Path) -> None:
    """Times are those of one window. A tuned session gives the same bytes."""
    model = compiled(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), (1, 1, 24, 24))
    x = np.random.default_rng(5).normal(size=(1, 1, 40, 40)).astype(np.float32)
    with q8.TiledSession(model, x.shape, vulkan, max_bytes=4000, tune=True) as tiled:
        assert tiled.session.tuning is not None and tiled.windows > 1
        timing = tiled.time(x, repeats=2, warmup=0)
        assert timing.runs.shape == (2,) and timing.program is tiled.session.program
        np.testing.assert_array_equal(tiled(x), q8.Session(model.reshape(x.shape), "reference")(x))
        with pytest.raises(InputError, match=r"must have shape \(1, 1, 40, 40\), found \(1, 1, 24, 24\)"):
            tiled.time(x[:, :, :24, :24])


def test_a_model_with_states_is_refused() -> None:
    """Every window would change them."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3, padding=1)
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1.0)
            y: torch.Tensor = self.conv(x)
            return y

    with pytest.raises(InputError, match="the model keeps seen from call to call, which every window would change"):
        q8.TiledSession(compiled(Counts(), (1, 1, 24, 24)), (1, 1, 48, 48), "reference")
