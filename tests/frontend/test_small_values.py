"""A scale is any normal float32: values of 1e-8 and of 1e-30 keep as much as others, or the module is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.passes.plan.storage import INT8, INT16
from q8ta_wgpu.quantization.ranges import LEAST_SPAN, OF_ZEROS, Range
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import INT8 as NOTHING_WIDENED
from tests.quantizing import Plain, check_on, conv, data

SMALL: dict[str, tuple[float, Callable[[Any, Tensor], Tensor]]] = {
    "inputs": (1e-8, lambda s, x: s.b(F.relu(F.conv2d(x, s.a.weight, padding=1)) * 1e8)),
    "between layers": (1.0, lambda s, x: F.conv2d(F.relu(s.a(x) * 1e-20), s.b.weight)),
    "far below": (1.0, lambda s, x: F.conv2d(F.relu(s.a(x) * 1e-30), s.b.weight)),
    "outputs": (1.0, lambda s, x: s.b(F.relu(s.a(x))).sigmoid() * 1e-20),
    "sums": (1.0, lambda s, x: s.b(F.relu(s.a(x))) * 1e-20 + s.a(x) * 1e-20),
    "averages": (1.0, lambda s, x: F.avg_pool2d(s.a(x) * 1e-15, 2) * 3.0),
    "shares": (1.0, lambda s, x: s.b(F.relu(s.a(x))).softmax(1) * 1e-12),
    "weights": (1.0, lambda s, x: F.conv2d(F.relu(s.a(x)), s.b.weight * 1e-20)),
}


def _noise(found: Any, wanted: Any) -> float:
    exact = np.asarray(wanted, np.float64)
    return float(10 * np.log10((exact**2).sum() / max(((found - exact) ** 2).sum(), 1e-300)))


@pytest.mark.parametrize("name", SMALL)
def test_small_values_keep_as_much_as_others(name: str, vulkan: Device) -> None:
    torch.manual_seed(0)
    size, forward = SMALL[name]
    module = Plain(forward, a=conv(3, 8), b=conv(8, 8)).eval()
    items = [data(1, 3, 12, 12, seed=seed) * size for seed in range(8)]
    model = q8.compile(q8.quantize(module, (items[0],), items, NOTHING_WIDENED, progress=False))
    assert not model.report().float32
    with torch.no_grad():
        assert _noise(q8.Session(model, "reference")(items[3].numpy()), module(items[3])) > 33
    check_on(vulkan, model, (items[3],))


def test_values_without_a_scale_are_refused() -> None:
    module = Plain(lambda s, x: s.b(F.relu(s.a(x) * 1e-38)), a=conv(3, 8), b=conv(8, 8)).eval()
    said = r"the value of relu \(.*\) is at most .* no scale for values below 3.1e-33"
    with pytest.raises(q8.InputError, match=said):
        q8.quantize(module, (data(1, 3, 8, 8),), [data(1, 3, 8, 8)], progress=False)


def test_values_that_reach_further_than_float32_are_refused() -> None:
    module = Plain(lambda s, x: s.b(x.clamp(-1, 1) * 3.3e38), b=conv(3, 8)).eval()
    said = r"the value of mul \(.*\) goes from -3.3e\+38 to 3.3e\+38 in the calibration, a wider range than float32"
    with pytest.raises(q8.InputError, match=said):
        q8.quantize(module, (data(1, 3, 8, 8),), [data(1, 3, 8, 8)], progress=False)


def test_a_channel_of_zeros_leaves_its_layer_in_int8() -> None:
    torch.manual_seed(0)
    first, last = conv(3, 8), conv(8, 4)
    module = nn.Sequential(first, nn.ReLU(), last).eval()
    with torch.no_grad():
        first.weight[1] = 0.0
        last.weight[1] = 1e-40
    items = [data(1, 3, 12, 12, seed=seed) for seed in range(8)]
    model = q8.compile(q8.quantize(module, (items[0],), items, progress=False))
    assert not model.report().float32
    found, wanted = q8.Session(model, "reference")(items[0].numpy()), module(items[0]).detach().numpy()
    assert _noise(found, wanted) > 35
    assert _noise(found[:, 1], wanted[:, 1]) > 60  # its bias


def test_ranges_of_the_smallest_and_of_zeros() -> None:
    for storage in (INT8, INT16):
        met = Range("int8")
        met.meet(np.linspace(-1, 1, 999, dtype=np.float32) * np.float32(2 * LEAST_SPAN))
        assert 0 < met.stored(storage).scale < 1e-33
        zeros = Range("int8")
        zeros.meet(np.zeros(9, np.float32))
        assert zeros.stored(storage).scale == OF_ZEROS
