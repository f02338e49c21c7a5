"""q8.compare finds the layer that hurts: the noise of every value and output, row by row."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves as leaves

import q8ta_wgpu as q8
from q8ta_wgpu.quantization.comparison import Comparison, Layer
from q8ta_wgpu.quantization.precision import Precision
from testbed import states
from tests.quantizing import INT8, Plain, conv, data


class Outliers(nn.Module):
    """One channel is a thousand times as large as the others, so that one scale for all fits none."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, h, w) → the same."""
        return x.relu() * torch.tensor([1000.0, 1, 1, 1]).reshape(1, 4, 1, 1)


class Damped(nn.Module):
    """Undoes Outliers after a convolution of each channel by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, h, w) → the same."""
        y: Tensor = self.depthwise(x) * torch.tensor([0.001, 1, 1, 1]).reshape(1, 4, 1, 1)
        return y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(conv(3, 4), nn.Sequential(Outliers(), Damped()), nn.ReLU(), conv(4, 3), nn.SiLU()).eval()


def quantized(module: nn.Module, quantizer: q8.Quantizer = INT8) -> torch.export.ExportedProgram:
    x = data(2, 3, 8, 8)
    return q8.quantize(module, (x,), [x], quantizer, progress=False)


def test_the_layer_that_hurts_comes_first_and_can_be_skipped() -> None:
    module, x = network(), data(2, 3, 8, 8, seed=5)
    found = q8.compare(module, quantized(module), (x.clone().requires_grad_(),))
    worst = found.layers[0]
    assert worst.lost > 10
    assert worst.module.startswith("1.")
    assert f"Quantizer(skip=[{worst.module!r}" in str(found)
    assert "→" not in str(found)
    assert all(abs(layer.snr - layer.simulated) < 1 for layer in found.layers)
    program = quantized(module, q8.Quantizer(skip=["1"], precision="int8"))
    better = q8.compare(module, program, (x,))
    assert max(layer.lost for layer in better.layers) < worst.lost - 10
    assert {"mul", "conv2d"} <= set(q8.compile(program).report().float32)


def test_a_zero_has_no_sign() -> None:
    """Nor has what is rounded to it."""
    output = Layer("linear", "", "", -0.0, -0.04, -0.04, 0.0, 0, output=True)
    found = Comparison((output,), predicted=-0.04, yardstick=-0.04)
    said = f"{Comparison((output,), -0.04, -0.04, (found,))}{Precision((), '', -0.04, 0.0, -0.04).warning('')}"
    assert "0.0 dB" in said
    assert "-0.0" not in said


def test_a_channel_that_is_lost_counts_once() -> None:
    """One of 16 channels is 0 but for one of 64 elements, and noise makes it 0.1 in all: it is lost, the others are
    not."""
    conv = nn.Conv2d(1, 16, 1)
    with torch.no_grad():
        conv.weight.fill_(1.0)[0] = 100.0
        conv.bias.fill_(0.0)[0] = -99.9  # type: ignore[union-attr]
    x = torch.full((1, 1, 8, 8), 0.9985)
    x[..., 0, :2] = torch.tensor([1.0, 0.0])
    module = nn.Sequential(conv, nn.ReLU(), nn.Conv2d(16, 4, 1)).eval()
    program = q8.quantize(module, (x,), calibration=[(x,)], quantizer=q8.Quantizer(precision="int8"), progress=False)
    (relu,) = (layer for layer in q8.compare(module, program, (x,)).layers if layer.name == "1.relu")
    assert 11 < relu.snr < 13  # 12 dB: a sixteenth


def test_another_module_is_refused() -> None:
    module, x = network(), data(2, 3, 8, 8)
    with pytest.raises(q8.InputError, match="was not made from this module"):
        q8.compare(nn.Sequential(conv(3, 4), nn.ReLU()).eval(), quantized(module), (x,))


class Head(nn.Module):
    """Gives a float head and, before it, what is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = conv(3, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, 3, h, w) → (n, 5), (n, 4, h, w)."""
        y = torch.relu(self.stem(x))
        return self.head(y.mean((2, 3))), y


def test_outputs_have_rows() -> None:
    """Of what is stored the same row, of a head in float one of its own, whose ratio is that of what is given out."""
    torch.manual_seed(0)
    module, x = Head().eval(), data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], progress=False)
    found = q8.compare(module, program, (x,))
    ends = {layer.name: layer for layer in found.layers if layer.output}
    assert set(ends) == {"head", "relu"}
    exact = module(x)[0].detach()
    given = torch.from_numpy(q8.Session(q8.compile(program), "reference")(x.numpy())[0])
    ratio = (exact - given).square().sum() / exact.square().sum()  # two values a class say little of it
    assert ends["head"].snr == pytest.approx(-10 * float(ratio.log10()), abs=0.01)
    assert "head (test_compare.py" in str(found)
    assert str(found).count("(output)") == 2


def test_an_output_that_was_only_moved_has_a_row() -> None:
    """It is stored as what it was moved from: by the last operator alone nothing is rounded."""
    torch.manual_seed(0)
    module, x = Moved().eval(), data(1, 4, 16)
    found = q8.compare(module, q8.quantize(module, (x,), [x], progress=False), [(x,), (x,)])
    assert [layer.name for layer in found.layers if layer.output] == ["select"]
    assert "outputs of 2 calls" in str(found)


class Moved(nn.Module):
    """The first of what a linear gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """(1, n, 16) → (n, 16)."""
        found: Tensor = self.linear(x)
        return found[0]


@torch.no_grad()
def test_calls_are_compared_with_the_states_of_those_before() -> None:
    """Of the module, of the simulation and of the integers, each from the same ones on; none of them is changed."""
    module, program = states.module("counted"), states.quantized("counted")
    calls, kept = list(states.calls("counted", 0, 4)), {**program.state_dict, **dict(module.named_buffers())}
    before = {key: value.clone() for key, value in kept.items()}
    found = q8.compare(module, program, calls)
    assert all(torch.equal(before[key], value) for key, value in kept.items())
    session, stepped = q8.Session(q8.compile(program), "reference"), copy.deepcopy(module)
    for call, each in zip(calls, found.calls, strict=True):
        exact, given = (leaves(step(*call))[0] for step in (stepped, session))
        noise = (torch.as_tensor(given) - torch.as_tensor(exact)).square()
        ratio = -10 * float((noise.sum() / torch.as_tensor(exact).square().sum()).log10())
        output = next(layer for layer in each.layers if layer.output and layer.name == "where")
        assert output.snr == pytest.approx(ratio, abs=1.5)  # a channel counts as much as another there
        assert output.simulated == pytest.approx(output.snr, abs=1)
    assert "outputs of 4 calls" in str(found)
    assert q8.compare(module, program, calls[0]).layers == found.calls[0].layers


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ((data(3, 3, 8, 8),), r"input 0 is torch.float32 \(3, 3, 8, 8\), .* for torch.float32 \(2, 3, 8, 8\)"),
        ((data(2, 8, 8),), r"input 0 is torch.float32 \(2, 8, 8\)"),
        ((torch.zeros(2, 3, 8, 8, dtype=torch.uint8),), "input 0 is torch.uint8"),
        ((data(2, 3, 8, 8), data(1)), "expected 1 input, found 2"),
    ],
)
def test_other_inputs_are_refused(wrong: tuple[Tensor, ...], found: str) -> None:
    module = conv(3, 4).eval()
    x = data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], progress=False)
    with pytest.raises(q8.InputError, match=found):
        q8.compare(module, program, wrong)


def test_a_batch_of_any_size() -> None:
    """Programs with a dynamic batch are compared on the batch that is given, be it one."""
    module, x = Windows().eval(), data(1, 4, 4, 4)
    program = q8.quantize(module, (x,), [x], progress=False, dynamic_batch=True)
    for batch in (1, 3):
        found = q8.compare(module, program, (data(batch, 4, 4, 4),))
        assert {layer.name for layer in found.layers} >= {"x", "relu"}
        assert min(layer.snr for layer in found.layers) > 15


def test_sizes_that_dynamic_shapes_names() -> None:
    """A table is then read in part."""
    module = Plain(
        lambda self, x: self.b(self.a(x).relu() + torch.arange(x.shape[2])), a=conv(4, 8), b=conv(8, 4)
    ).eval()
    length, x = torch.export.Dim("T", max=8), data(1, 4, 8, 8)
    program = q8.quantize(module, (x,), [x], progress=False, dynamic_shapes=[{2: length, 3: length}])
    found = q8.compare(module, program, (data(1, 4, 5, 5),))
    assert {layer.name for layer in found.layers} >= {"relu", "add"}
    assert min(layer.snr for layer in found.layers) > 15
    with pytest.raises(q8.InputError, match="dimension 2 of input 0 is T with T from 1 to 8, found 9"):
        q8.compare(module, program, (data(1, 4, 9, 9),))


class Windows(nn.Module):
    """Windows of rows, whose number follows from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 4, 4, 4) → the same."""
        n = x.shape[0]
        y: Tensor = self.linear(x.reshape(n * 2, 4, 8)).relu().reshape(n, 4, 4, 4)
        return y


def test_a_stream_that_is_read_in_int8_as_well() -> None:
    """Residual sums are stored in int16, and rounded again for what reads them in int8."""

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.norm = nn.Linear(6, 8), nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            """(n, 6) → (n, 8)."""
            x = self.first(x)
            x = x + self.second(self.norm(x))
            x = x + self.second(self.norm(x))
            return torch.relu(x)

    torch.manual_seed(0)
    module, x = Stream().eval(), data(4, 6)
    program = q8.quantize(module, (x,), [x], progress=False)
    found = q8.compare(module, program, (x,))
    assert min(layer.snr for layer in found.layers) > 20


@torch.no_grad()
def test_rows_of_padding_are_computed_and_compared() -> None:
    """torch's encoder with nested tensors writes zeros there. An input that is stored twice has no loss of its own."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1)
    module = Plain(lambda s, x, padding: s.encoder(x, src_key_padding_mask=padding), encoder=encoder).eval()
    padding = torch.arange(12) >= torch.tensor([[9], [12]])
    items = [(data(2, 12, 32, seed=s), padding) for s in range(4)]
    program = q8.quantize(module, items[0], items, progress=False)
    found = torch.from_numpy(q8.Session(q8.compile(program), "reference")(*(x.numpy() for x in items[0])))
    exact = module(*items[0])
    assert not exact[padding].any() and found[padding].abs().min(1).values.all()
    assert (found - exact)[~padding].square().mean() < 1e-3 * exact[~padding].square().mean()
    layers = q8.compare(module, program, items[0]).layers
    assert min(layer.snr for layer in layers if layer.output) > 30
    assert {layer.stored for layer in layers if layer.place < 2} == {"int8", "int16"}
    assert max(layer.lost for layer in layers if layer.place < 2) < 0.1


@pytest.mark.parametrize("between", [nn.MaxPool2d(2), nn.ZeroPad2d(1), nn.Upsample(scale_factor=2)])
def test_what_is_only_moved_loses_nothing_and_hides_nothing(between: nn.Module) -> None:
    """Behind it `lost` is the distance to what the layer before it has."""
    torch.manual_seed(0)
    layers = conv(3, 8), nn.ReLU(), between, conv(8, 8), nn.ReLU()
    items = [data(2, 3, 8, 8, seed=s) for s in range(4)]
    module = nn.Sequential(*layers).eval()
    compared = q8.compare(module, q8.quantize(module, (items[0],), items, progress=False), (items[0],))
    rows = {layer.name: layer for layer in compared.layers}
    assert rows["4.relu"].lost == max(0.0, rows["1.relu"].snr - rows["4.relu"].snr)


def test_inputs_of_a_comparison_are_numbers() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4)).eval(), data(2, 8)
    program = q8.quantize(module, (x,), [x], progress=False)
    with pytest.raises(q8.InputError, match="input 0 holds NaN"):
        q8.compare(module, program, (x / 0 * 0,))


def test_an_output_is_judged_by_its_parts() -> None:
    """Channels that share a scale with much larger ones, and a joined part that makes any noise larger."""
    torch.manual_seed(0)
    parts = {"boxes": conv(3, 4), "scores": conv(3, 4)}
    small = Plain(
        lambda s, x: torch.cat([s.boxes(x) * 40, s.scores(x).sigmoid() / 9], 1).abs().flatten(2).mT, **parts
    ).eval()
    chaotic = Plain(lambda s, x: torch.cat([s.boxes(x) * 40, torch.sin(900 * s.scores(x))], 1), **parts).eval()
    items = [data(1, 3, 12, 12, seed=seed) for seed in range(4)]
    for module, name in ((small, "channels along dimension 2 of size 0.0"), (chaotic, "sin")):
        program = q8.quantize(module, (items[0],), items, INT8, progress=False)
        found = q8.compare(module, program, (items[0],))
        (output,) = (layer for layer in found.layers if layer.output)
        assert output.part.startswith(name), output
        assert output.snr < 15
        assert f"({output.part} of the output)" in str(found)


class Diamonds(nn.Module):
    """Each function reads the one before it twice."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(40):
            x = x * 0.5 + x.sin() * 0.5
        return x


def test_many_ways_through_a_part_in_float_are_one() -> None:
    """compare walked each of 2^40 ways from a value back to what was stored before."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), Diamonds(), nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    exported = q8.quantize(module, (x,), calibration=[x], quantizer=q8.Quantizer(skip=["1"]), progress=False)
    assert len(q8.compare(module, exported, (x,)).layers) >= 3
