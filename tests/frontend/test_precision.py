"""As many bits as a value needs: which values are widened, what that gives, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.runtime.device import Device
from testbed.noise import decibels
from testbed.yardstick import yardstick
from tests.precision_networks import ENOUGH, NETWORKS, WITHIN, quantized, sink
from tests.quantizing import Plain, conv, data, ops


@pytest.mark.parametrize("name", NETWORKS)
def test_no_network_is_below_the_yardstick(name: str, vulkan: Device) -> None:
    """By int8 alone each is; the device computes what the reference does, floats within their tolerance."""
    build, given = NETWORKS[name]
    torch.manual_seed(0)
    module, batches, x = build().eval(), [given(s) for s in range(1, 9)], given(9)
    wanted = module(x).detach().numpy()
    least = min(decibels(wanted, yardstick(module, batches)(x).numpy()) or ENOUGH, ENOUGH)
    models = {choice: q8.compile(quantized(module, batches, choice)) for choice in ("int8", "auto")}
    found = {choice: q8.Session(model, "reference")(x.numpy()) for choice, model in models.items()}
    ratios = {choice: decibels(wanted, y) or 120.0 for choice, y in found.items()}
    assert ratios["int8"] < least - WITHIN < ratios["auto"], (least, ratios)
    with q8.Session(models["auto"], vulkan) as session:
        y = session(x.numpy())
    if models["auto"].report().exact:
        np.testing.assert_array_equal(y, found["auto"])
    else:
        ratio = decibels(found["auto"], y)
        assert ratio is None or ratio > least


def test_a_table_of_16_bits_is_an_embedding_of_its_own(tmp_path: Path, vulkan: Device) -> None:
    """Rows of an odd number of elements, from a file; a linear that has the table as its weight reads it in int8."""
    torch.manual_seed(0)
    table = nn.Embedding(31, 17)
    module = Plain(lambda m, x: F.linear(m.table(x) * m.table(x + 1), m.table.weight), table=table).eval()
    ids = torch.arange(0, 30, 3).reshape(1, -1)
    model = q8.compile(quantized(module, [ids, ids + 1], "int16"))
    assert any("weight: is stored in int16" in note for note in model.report().notes)
    dtypes = {str(model.graph.types[node.inputs[0]].dtype) for node in model.graph.nodes if node.op == "embedding"}
    assert dtypes == {"int16"}
    model.save(tmp_path / "table.q8ta")
    with q8.Session(q8.load(tmp_path / "table.q8ta"), vulkan) as session:
        found = session(ids.numpy())
    np.testing.assert_array_equal(found, q8.Session(model, "reference")(ids.numpy()))
    wanted = module(ids).detach().numpy()
    int8 = q8.Session(q8.compile(quantized(module, [ids, ids + 1], "int8")), "reference")(ids.numpy())
    assert (decibels(wanted, found) or 0.0) > (decibels(wanted, int8) or 0.0) + 2


def test_what_needs_nothing_is_as_in_int8() -> None:
    layers = (conv(3, 8), nn.ReLU(), conv(8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    torch.manual_seed(0)
    module, batches = nn.Sequential(*layers).eval(), [data(1, 3, 16, 16, seed=s) for s in range(4)]
    graphs = [str(q8.compile(quantized(module, batches, choice)).graph) for choice in ("int8", "auto")]
    assert graphs[0] == graphs[1]


def test_16_bits_have_room_for_what_calibration_did_not_reach() -> None:
    """Of means of squares, too, which are in 16 bits whatever the precision."""
    module = Plain(lambda m, x: m.head(x / x.pow(2).mean((2, 3), keepdim=True)), head=conv(3, 4))
    torch.manual_seed(0)
    batches, x = [data(2, 3, 8, 8, seed=s).clamp(-1, 1) for s in range(2)], data(2, 3, 8, 8, seed=2).sign()
    model = q8.compile(quantized(module.eval(), batches, "int8"))
    with torch.no_grad():
        wanted = module(x).numpy()
    assert (decibels(wanted, q8.Session(model, "reference")(x.numpy())) or 120.0) > 30


def test_a_poor_yardstick_is_no_excuse_where_16_bits_reach_20_decibels(vulkan: Device) -> None:
    """A few large powers before a recurrent layer, whose steps in 8 bits all others are below."""

    class Powers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.lstm(x.exp())[0])
            return found

    torch.manual_seed(0)
    module, batches = Powers().eval(), [2.5 * data(4, 12, 8, seed=s) for s in range(6)]
    with torch.no_grad():
        wanted = module(batches[0]).numpy()
    model = q8.compile(quantized(module, batches))
    found = q8.Session(model, "reference")(batches[0].numpy())
    poor, ours = (decibels(wanted, y) for y in (yardstick(module, batches)(batches[0]).numpy(), found))
    assert poor is not None
    assert ours is not None
    assert poor < 15 < 20 < ours, (poor, ours)
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(batches[0].numpy()), found)


def _tones(count: int) -> list[Tensor]:
    """Spectra of tones that come and go: few numbers are large."""
    random, time = torch.Generator().manual_seed(1001), torch.arange(512)
    found = []
    for _ in range(count):
        pitch, middle = 3 * torch.rand(1, generator=random), torch.rand(1, generator=random)
        envelope = torch.exp(-(((time / 512 - middle) / 0.1) ** 2)) * torch.exp(0.7 * torch.randn(1, generator=random))
        x = (time * pitch).sin() * envelope + 0.01 * torch.randn(512, generator=random)
        spectrum = torch.stft(x[None], 32, 8, window=torch.hann_window(32), return_complex=True)
        found.append(torch.view_as_real(spectrum).permute(0, 3, 1, 2).contiguous())
    return found


def test_a_value_is_rounded_for_one_reader_and_not_for_another() -> None:
    """The norm reads int16, the linear beside it int8."""
    build, given = NETWORKS["a table's columns"]
    torch.manual_seed(0)
    graph = q8.compile(quantized(build().eval(), [given(s) for s in range(8)])).graph
    dtypes = {node.op: graph.types[node.inputs[0]].dtype for node in graph.nodes}
    assert dtypes["q8ta_layer_norm"] == INT16X4
    assert dtypes["q8ta_linear"] == INT8X4


def test_what_follows_from_whole_numbers_is_not_rounded() -> None:
    build, given = NETWORKS["buckets"]
    torch.manual_seed(0)
    model = q8.compile(quantized(build().eval(), [given(s) for s in range(4)]))
    assert "gt" in ops(model)
    assert any("since whole numbers follow from it" in note for note in model.report().notes)


@pytest.mark.parametrize("curve", [torch.tanh, torch.exp])
def test_noise_is_not_allowed_since_a_rare_input_is_clipped(curve: Callable[[Tensor], Tensor]) -> None:
    """One row of the first item, which is simulated, is beyond all others, whose ranges the yardstick has."""
    torch.manual_seed(0)
    heads = {"head": nn.Linear(16, 8), "gate": nn.Linear(16, 8)}
    module = Plain(lambda m, x: curve(m.head(x)) * curve(m.gate(x)), **heads).eval()
    batches, others = ([data(8, 16, seed=s).clamp(-1, 1) for s in range(20 * n, 20 * n + 20)] for n in range(2))
    batches[0][0] *= 1.3
    assert _beside_the_yardstick(module, batches, others) > -WITHIN


def _beside_the_yardstick(module: nn.Module, batches: list[Tensor], others: list[Tensor]) -> float:
    """By how many dB the noise of other inputs is less than the yardstick's."""
    simulated, session = yardstick(module, batches), q8.Session(q8.compile(quantized(module, batches)), "reference")
    wanted = torch.cat([module(x) for x in others]).detach().numpy()
    least = decibels(wanted, torch.cat([simulated(x) for x in others]).numpy()) or 120.0
    return (decibels(wanted, np.concatenate([session(x.numpy()) for x in others])) or 120.0) - least


class _NearlyItself(nn.Module):
    """A norm of its input and a little of a linear: the yardstick has 93 dB, int16 everywhere 79."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x + 0.005 * self.linear(x))
        return found


def test_float32_is_not_taken_where_int16_leaves_next_to_no_noise() -> None:
    torch.manual_seed(0)
    module, x = _NearlyItself().eval(), torch.randn(16, 32)
    model = q8.compile(q8.quantize(module, (x,), calibration=[(x,)], progress=False))
    assert model.report().exact and not model.report().float32
    assert (decibels(module(x).detach().numpy(), q8.Session(model, "reference")(x)) or 100) > 60


def test_results_of_few_values_have_room() -> None:
    """One number for each input: of some dozens of inputs calibration knows neither the least nor the largest. A result
    of many values is int8, where nothing else is needed."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    module = Plain(lambda m, x: m.body(x).sum(1), body=body).eval()
    batches, given = [data(1, 5, 16, seed=s) for s in range(1, 33)], data(256, 5, 16, seed=99)
    with torch.no_grad():
        wanted = module(given).numpy()
    model = q8.compile(q8.quantize(module, (batches[0],), batches, progress=False))
    rows = np.concatenate([q8.Session(model, "reference")(x[None].numpy()) for x in given])
    assert (decibels(wanted, rows) or 0.0) > 33
    assert "than the few values that calibration met" in str(model.report())
    many = [data(64, 5, 16, seed=s) for s in range(1, 33)]
    assert "few values" not in str(q8.compile(q8.quantize(module, (many[0],), many, progress=False)).report())


def test_slices_of_a_sum_are_not_widened_since_that_costs_little() -> None:
    """One in 16 bits beside one in 8 made the convolution's sums float32, which differ from device to device."""

    def forward(m: Any, x: Tensor) -> Tensor:
        part = F.glu(m.first(0.01 * x[:, :4].transpose(1, 2)), 1).mean(2)
        found: Tensor = m.head(F.layer_norm(x, (12,)).flatten(1)) + 1e-3 * m.whole(x).mean(1) + 1e-3 * m.last(part)
        return found

    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(384, 512), nn.ReLU(), nn.Linear(512, 8))
    layers = {"first": nn.Conv1d(12, 8, 1), "last": nn.Linear(4, 8), "whole": nn.Linear(12, 8), "head": head}
    module = Plain(forward, **layers).eval()
    report = q8.compile(quantized(module, [290 + data(4, 32, 12, seed=s) for s in range(100, 108)])).report()
    assert "costs next to nothing" in str(report)
    assert not report.float32, report


def test_an_exponential_reads_what_is_larger_than_in_calibration() -> None:
    """Of boxes as detectors decode them: the slice with the logarithms of sizes was clipped in int8, and lost 24 dB."""

    def boxes(m: Any, x: Tensor) -> Tensor:
        y = m.layers(x).view(-1, 3, 5, 8, 8).permute(0, 1, 3, 4, 2)
        centers, sizes = y[..., :2].sigmoid(), y[..., 2:4].exp() * 20
        return torch.cat([centers - sizes / 2, centers + sizes / 2, y[..., 4:].sigmoid()], -1)

    torch.manual_seed(3)
    weighted = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 32, 1), nn.Conv2d(32, 15, 1)
    layers = nn.Sequential(weighted[0], nn.SiLU(), weighted[1], nn.SiLU(), weighted[2]).requires_grad_(False)
    for layer in weighted:
        layer.weight.normal_(0, 1.4 / layer.weight[0].numel() ** 0.5)
    module, every = Plain(boxes, layers=layers).eval(), [data(4, 3, 32, 32, seed=s) for s in range(16)]
    assert _beside_the_yardstick(module, every[:8], every[8:]) > 0


@pytest.mark.parametrize("seed", range(3))
def test_the_shares_of_an_attention_are_as_fine_as_outputs_need(seed: int) -> None:
    """The first of 197 elements has four fifths of the weight, so that weights of 8 bits leave nothing of the others:
    8 to 20 dB below the yardstick, which no run showed."""
    layers = (layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU()))
    torch.manual_seed(seed)
    module = Plain(sink, qkv=nn.Linear(32, 96), head=nn.Sequential(*layers, nn.Linear(32, 32))).eval()
    x = data(1, 197, 32, seed=seed)
    assert _beside_the_yardstick(module, [x], [x]) > -0.5


def _joined_twice(m: Any, x: Tensor) -> Tensor:
    first, second = m.side(x).relu().chunk(2, -1)
    hidden = m.one(torch.cat([4 * x, first], -1)).relu()
    found: Tensor = m.two(torch.cat([0.5 * hidden, second], -1))
    return found


def test_the_yardstick_has_a_scale_for_each_value_that_a_layer_reads() -> None:
    """Slices of one value in two cats give all that is joined one scale in 8 bits. The yardstick had it too, so that
    nothing was widened: 11 dB below what other quantizers keep."""
    torch.manual_seed(0)
    layers = {"side": nn.Linear(16, 32), "one": nn.Linear(32, 16), "two": nn.Linear(32, 8)}
    batches = [data(8, 16, seed=s) for s in range(4)]
    assert _beside_the_yardstick(Plain(_joined_twice, **layers).eval(), batches, batches) > -0.5


EXPONENTIALS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "of a recurrent layer": lambda m, x: m.head(m.layer(x)[0].exp() - 1),
    "of a slice beside a product": lambda m, x: (
        m.other(x).chunk(2, -1)[0].exp().sum(-1, keepdim=True)
        + m.other(x).chunk(2, -1)[1] @ m.other(x).chunk(2, -1)[1].mT
    ),
    "that a layer reads": lambda m, x: m.head(m.other(x).exp()[..., :16]),
}


@pytest.mark.parametrize("name", EXPONENTIALS)
def test_what_an_exponential_reads_makes_nothing_float(name: str) -> None:
    torch.manual_seed(0)
    layers = {"layer": nn.GRU(16, 16, batch_first=True), "head": nn.Linear(16, 4), "other": nn.Linear(16, 32)}
    module = Plain(EXPONENTIALS[name], **layers).eval().requires_grad_(False)
    report = q8.compile(quantized(module, [data(4, 12, 16, seed=s) for s in range(8)])).report()
    assert not report.float32, report
    assert ("exponential" in str(report)) == (name == "of a slice beside a product")


def test_what_moves_in_less_time_than_a_dispatch_takes_is_stored_in_16_bits() -> None:
    """Int8 was fine enough for the simulated inputs. On others it left 4 dB less."""

    def forward(m: Any, x: Tensor) -> Tensor:
        distances = (m.first(x)[:, None] - m.centers.weight).square().sum(-1)
        found: Tensor = m.head((-distances).exp())
        return found

    torch.manual_seed(8)
    centers = nn.Linear(4, 24)
    first, head = nn.Linear(4, 4), nn.Linear(24, 3)
    module = Plain(forward, first=first, centers=centers, head=head).eval().requires_grad_(False)
    centers.weight.normal_()
    first.weight.normal_(0.0, 0.7)
    every = [data(16, 4, seed=s) for s in range(16)]
    assert _beside_the_yardstick(module, every[:8], every[8:]) > 2


def test_what_int16_holds_may_reach_three_times_as_far_as_in_calibration() -> None:
    """Squares of inputs that are 1.7 times as large: with room for twice the range they were clipped, to 26 dB."""
    torch.manual_seed(0)
    module = Plain(lambda m, x: m.head(x) ** 2, head=nn.Linear(16, 8)).eval()
    batches = [data(32, 16, seed=s) for s in range(9)]
    session = q8.Session(q8.compile(quantized(module, batches, "int16")), "reference")
    others = [1.7 * x for x in batches]
    with torch.no_grad():
        wanted = torch.cat([module(x) for x in others]).numpy()
    assert (decibels(wanted, np.concatenate([session(x.numpy()) for x in others])) or 0.0) > 40
