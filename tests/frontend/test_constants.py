"""What depends on no input is computed before anything else looks at a program; what is left over is refused early."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend import float_program
from q8ta_wgpu.frontend.export import plain
from q8ta_wgpu.frontend.nodes import source_of
from q8ta_wgpu.runtime.device import Device
from testbed.standins import failing
from tests.importing import Wrapped, flat, imported
from tests.quantizing import INT8, Plain, check_on, check_on_host, conv, data


class Standardized(nn.Conv2d):
    """A convolution whose weight is computed from a parameter by a batch norm without statistics."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(rows, None, None, training=True, momentum=0.0).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, padding=1)


class Positions(nn.Module):
    """Attention biases and masks as vision transformers make them, and a window mask as Swin makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: Tensor) -> Tensor:
        place = torch.arange(x.shape[-1])
        apart = (place[:, None] - place[None]).clamp(-4, 4) + 4
        bias = self.table[apart.view(-1)].view(x.shape[-1], x.shape[-1], 4).permute(2, 0, 1)
        window = x.new_zeros(x.shape[-1])
        window[2:4] = 1
        window = window.index_fill(0, torch.tensor([0]), 2.0)
        mask = (window[:, None] - window[None]).masked_fill(window[:, None] != window[None], -3.0)
        return x * (bias + mask).mean((0, 1)) + torch.where(place >= 2, 0.5, place * 0.25)


def test_what_depends_on_no_input_is_computed_by_torch(vulkan: Device) -> None:
    x = data(1, 4, 3, 6)
    module = Positions()
    model = imported(module, x)
    assert [node.op for node in model.graph.nodes] == ["mul", "add"]
    for device in ("reference", vulkan):
        with q8.Session(model, device) as session:
            np.testing.assert_allclose(session(x), flat(module(x))[0], rtol=1e-5, atol=1e-6)


def test_computed_weights_are_quantized() -> None:
    """Before annotation, so that the convolution's weight is a weight and everything is int8."""
    module = nn.Sequential(Standardized(3, 8, 3), nn.ReLU(), Positions(), conv(8, 4)).eval()
    x = data(1, 3, 6, 6)
    report = q8.compile(q8.quantize(module, (x,), calibration=[x], quantizer=INT8, progress=False)).report()
    assert report.float32 == {}
    assert report.exact


class Queries(nn.Module):
    """A decoder whose queries attend to each other before they meet an input, as DETR's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.queries = nn.Parameter(torch.randn(1, 2, 4, 8))
        self.dropout, self.out = nn.Dropout(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        found = F.scaled_dot_product_attention(self.queries, self.queries, self.queries)
        y: Tensor = self.out(x + self.dropout(found))
        return y


def test_attention_of_constants_is_a_constant() -> None:
    """torch counts attention and dropout as random, and would keep both: then int8 rounds what no input changes."""
    module, x = Queries().eval(), data(1, 2, 4, 8)
    exported = q8.quantize(module, (x,), [x], INT8, progress=False)
    assert min(layer.snr for layer in q8.compare(module, exported, (x,)).layers) > 30
    assert [node.op for node in q8.compile(exported).graph.nodes] == ["quantize", "q8ta_add", "q8ta_linear"]


def test_calibration_waits_for_an_answer() -> None:
    """What compile would refuse is refused before the first item is asked for; a cause is one line."""

    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = x.logcumsumexp(-1) + x.logcumsumexp(-2)
            return y.logcumsumexp(-1)

    def items() -> Iterator[Tensor]:
        raise AssertionError("calibrated")
        yield

    with pytest.raises(q8.UnsupportedError) as caught:
        q8.quantize(
            nn.Sequential(conv(3, 4), Sorted()).eval(), (data(1, 3, 6, 6),), quantizer=INT8, calibration=items()
        )
    (line,) = [line for line in str(caught.value).splitlines() if "aten." in line]
    assert "aten.logcumsumexp.default at 1 (test_constants.py:" in line
    assert "and 2 more calls: this operator is not supported" in line


def test_a_problem_that_follows_from_another_is_not_listed() -> None:
    """A softplus of what cannot be imported is no second problem; an operator nobody knows is."""
    with pytest.raises(q8.UnsupportedError) as caught:
        imported(lambda x: F.dropout(x.logcumsumexp(-1), 0.5, True).logcumsumexp(-2), data(1, 3, 6, 6))
    assert "aten.logcumsumexp.default" in str(caught.value)
    assert "dropout" not in str(caught.value)


def test_a_line_of_a_package_whose_name_begins_with_torch() -> None:
    node = torch.fx.Graph().placeholder("x")
    place = Path(torch.__file__).parent
    frames = [place.with_name("torchvision") / "resnet.py", place / "nn" / "module.py"]
    node.meta["stack_trace"] = "".join(f'  File "{name}", line {i}, in forward\n' for i, name in enumerate(frames, 7))
    assert source_of(node) == "resnet.py:7"


def test_constants_and_assertions_need_no_second_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """arange is in no table, and torch asserts the dtypes of a conversion: neither asks for decompositions."""
    for place in (float_program, plain):
        failing(monkeypatch, place, "decomposed", AssertionError("traced again"))
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
    module = Plain(
        lambda s, x: s.linear(x).to(torch.float32) + torch.arange(4).to(torch.float32), linear=nn.Linear(4, 4)
    )
    exported = torch.export.export(module.eval(), (x,))
    assert any("_assert_tensor_metadata" in str(node.target) for node in exported.graph.nodes)
    program = q8.quantize(module, (x,), [x], quantizer=INT8, progress=False)
    assert q8.compile(program).report().float32 == {}


@functools.cache
def written_later() -> q8.Model:
    def turned(m: Any, x: Tensor) -> object:
        y = m.conv(x)
        made = torch.empty_like(y), y.new_empty(y.shape), torch.empty(y.shape)
        for z in made:
            z[..., ::2], z[..., 1::2] = -y[..., 1::2], y[..., ::2]
        return made[0] * made[1] + made[2]

    torch.use_deterministic_algorithms(True)  # which fills it with NaN
    try:
        return check_on_host(Plain(turned, conv=conv(3, 4)), (data(1, 3, 8, 8),))
    finally:
        torch.use_deterministic_algorithms(False)


def test_memory_that_is_written_later_is_not_calibrated(device: Device) -> None:
    """Wan's rotary embeddings write into torch.empty_like: what happened to be there had infinite scales."""
    check_on(device, written_later(), (data(1, 3, 8, 8),))


def test_a_parameter_named_as_a_constant_that_is_added_keeps_its_values() -> None:
    """A bilinear's bias is called bias, as the zeros are that a linear without one adds."""
    torch.manual_seed(0)
    module, x = nn.Bilinear(4, 3, 5).eval(), (data(2, 4), data(2, 3))
    with torch.no_grad():
        module.bias.add_(3.0)
        expected = module(*x).numpy()
    model = q8.compile(q8.quantize(module, x, [x], progress=False))
    np.testing.assert_allclose(q8.Session(model, "reference")(*x), expected, atol=0.05)


def decibels(found: Any, exact: Tensor) -> float:
    wanted = exact.detach().numpy()
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((found - wanted) ** 2)))


NUMBER = torch.tensor(1.5)
OF_NUMBER: dict[str, Callable[[Tensor], Tensor]] = {
    "hypot": lambda x: torch.hypot(x, NUMBER),
    "hypot, the number first": lambda x: torch.hypot(NUMBER, x),
    "hypot with a list of one": lambda x: torch.hypot(x, NUMBER.reshape(1)),
    "atan2": lambda x: torch.atan2(x, NUMBER),
    "atan2, the number first": lambda x: torch.atan2(NUMBER, x),
    "a power of a number": lambda x: torch.pow(NUMBER, x),
}


@pytest.mark.parametrize("name", OF_NUMBER)
def test_a_function_of_a_tensor_and_a_number_is_a_table(name: str) -> None:
    """It was a float island, beside which values were stored in 16 bits for nothing."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), Wrapped(OF_NUMBER[name]), nn.Linear(8, 8)).eval()
    x = data(4, 8)
    model = q8.compile(q8.quantize(module, (x,), [x], progress=False))
    assert model.report().islands == ()
    assert decibels(q8.Session(model, "reference")(x), module(x)) > 30


def test_a_number_with_more_dimensions_than_the_tensor_is_no_table() -> None:
    """Its function has another shape than the tensor."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), Wrapped(lambda x: torch.hypot(x, NUMBER.reshape(1, 1, 1)))).eval()
    x = data(4, 8)
    found = q8.Session(q8.compile(q8.quantize(module, (x,), [x], progress=False)), "reference")(x)
    assert found.shape == (1, 4, 8)
    assert decibels(found, module(x)) > 30
