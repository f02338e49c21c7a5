"""q8.compare finds the layer that hurts, and Quantizer(skip=[...]) leaves it in float."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves as leaves

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.precision import Precision
from q8ta_wgpu.frontend.comparison import Comparison, Layer
from tests import states
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


def quantized(module: nn.Module, quantizer: q8.Quantizer = INT8, scale: float = 1.0) -> torch.export.ExportedProgram:
    x = data(2, 3, 8, 8)
    return q8.quantize(module, (x,), [x * scale], quantizer, progress=False)


def test_the_layer_that_hurts_comes_first_and_can_be_skipped(tmp_path: Path) -> None:
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
    found.plot(tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 1000
    for wrong in ("none/layers.png", "layers.docx"):
        with pytest.raises(q8.InputError, match="cannot write"):
            found.plot(tmp_path / wrong)


@pytest.mark.parametrize(
    ("snr", "yardstick", "said"), [(29.5, 30.0, 0), (25.0, 30.0, 1), (12.0, 12.0, 1), (29.5, None, 1)]
)
def test_more_bits_are_advised_where_the_outputs_gain_by_them(snr: float, yardstick: float | None, said: int) -> None:
    """Not where they are near the yardstick. A yardstick below 20 dB is no aim: floats are better."""
    lossy = Layer("mul", "gate", "", 40.0, 40.0, 8.0, 0.0, 0)
    layers = (lossy, Layer("linear", "head", "", snr, snr, 0.0, 0.0, 1, output=True))
    assert len(Comparison(layers, predicted=snr, yardstick=yardstick).advice) == said


def test_clipping_is_told_from_coarse_steps() -> None:
    module, x = network(), data(2, 3, 8, 8)
    found = q8.compare(module, quantized(module, scale=0.2), (x,))
    assert any(layer.clipped > 0.05 for layer in found.layers)
    assert any("Calibrate with inputs" in line for line in found.advice)


def causes(module: nn.Module, calibration: Tensor, x: Tensor, **how: Any) -> tuple[dict[str, Layer], tuple[str, ...]]:
    """The rows by their names, and the advice."""
    program = q8.quantize(module.eval(), (x,), [calibration], q8.Quantizer(precision="int8", **how), progress=False)
    found = q8.compare(module, program, (x,))
    return {layer.name: layer for layer in found.layers}, found.advice


def test_a_rare_outlier_is_clipping() -> None:
    """One element of 1,024 lies far beyond the calibration. What follows inherits the noise."""
    torch.manual_seed(0)
    x = data(16, 64)
    outlier = x.clone()
    outlier[0, 0] = 60.0
    rows, advice = causes(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), x, outlier)
    assert 0 < rows["input_1"].clipped < 0.01
    assert rows["input_1"].cause == "clipping"
    assert rows["input_1"].lost > 20
    assert rows["relu"].snr < 10
    assert rows["relu"].cause == "before"
    assert advice == (
        "input_1: clipped. Calibrate with inputs that reach so far. If the calibration had such inputs, "
        'Quantizer(precision="int16") has a range for them',
    )


def test_an_outlier_within_the_range_makes_steps_coarse() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), Outlier(), nn.ReLU(), nn.Linear(32, 8))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["relu"].clipped == 0
    assert rows["relu"].cause == "rounding"
    assert rows["relu"].lost > 10
    assert advice == (
        'relu: 8 bits are too few. Quantizer(precision="int16") stores in 16 bits whatever can be. '
        "Quantizer(skip=['2', ...]) leaves modules in float; name those that read the value, too"
    )


@pytest.mark.parametrize(
    ("weights", "cause", "advice"),
    [
        ("int4", "weights", ["relu: its rounded weights make most of the noise. Quantizer(skip=['0', ...])"]),
        ("int8", "before", []),
    ],
)
def test_weights_of_4_bits_are_a_cause(weights: str, cause: str, advice: list[str]) -> None:
    """The module that is named is that of the weights."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32))
    rows, found = causes(module, data(16, 64), data(16, 64), weights=weights, fit_weights=False)
    assert rows["relu"].cause == cause
    assert [line[: len(said)] for line, said in zip(found, advice, strict=True)] == advice


def test_what_no_module_has_is_not_to_be_skipped() -> None:
    """A function of the whole network has no path."""
    torch.manual_seed(0)
    module = Plain(lambda _, x: nn.functional.gelu(x * torch.tensor([1000.0] + [1.0] * 63)))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["gelu"].lost > 20  # of all values together little is lost
    assert "skip=" not in advice
    assert 'Quantizer(precision="int16") stores in 16 bits whatever can be' in advice
    assert "To skip gelu, which no module has, call it in a module of its own" in advice


def test_what_has_16_bits_is_not_said_to_have_8() -> None:
    """Nor is it advised to store it in 16. One channel is a million times as large as the others."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), Outlier(), Outlier(), nn.ReLU(), nn.Linear(32, 8)).eval()
    x = data(16, 64)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(precision="int16"), progress=False)
    found = q8.compare(module, program, (x,))
    (relu,) = (layer for layer in found.layers if layer.name == "relu")
    assert (relu.stored, relu.cause) == ("int16", "rounding")
    (advice,) = (line for line in found.advice if line.startswith("relu"))
    assert advice.startswith("relu: 16 bits are too few. Quantizer(skip=['3', ...])")
    assert "int16" not in advice


def test_no_layer_is_named_that_has_little_noise_beside_clipping() -> None:
    """Beside one clipped input that takes nearly all of the signal."""
    clipped = Layer("x", "", "", 2.0, 2.0, 38.0, 0.001, 0, cause="clipping")
    lossy = Layer("mul", "gate", "", 37.0, 37.0, 3.5, 0.0, 1)
    output = Layer("linear", "head", "", 5.0, 5.0, 0.0, 0.0, 2, output=True, cause="before")
    assert [line.partition(":")[0] for line in Comparison((clipped, lossy, output), 40.0, 40.0).advice] == ["x"]


def test_a_zero_has_no_sign() -> None:
    """Nor has what is rounded to it."""
    output = Layer("linear", "", "", -0.0, -0.04, -0.04, 0.0, 0, output=True)
    found = Comparison((output,), predicted=-0.04, yardstick=-0.04)
    said = f"{Comparison((output,), -0.04, -0.04, (found,))}{Precision((), (), '', -0.04, 0.0, -0.04).warning}"
    assert "0.0 dB" in said
    assert "-0.0" not in said


def test_a_difference_inherits_its_noise() -> None:
    """Of values that are nearly equal."""
    module = Plain(lambda _, x: torch.sigmoid(x) - torch.sigmoid(x * 1.01))
    rows, (advice,) = causes(module, data(16, 64), data(16, 64))
    assert rows["sub"].cause == "before"
    assert advice.startswith("sub: noise of what it reads grows here")


class Outlier(nn.Module):
    """One channel is a thousand times as large as the others."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 32) → the same."""
        return x * torch.tensor([1000.0] + [1.0] * 31)


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
    (relu,) = (layer for layer in q8.compare(module, program, (x,)).layers if layer.name.startswith("relu"))
    assert 11 < relu.snr < 13  # 12 dB: a sixteenth


def test_another_module_is_refused() -> None:
    module, x = network(), data(2, 3, 8, 8)
    with pytest.raises(q8.InputError, match="was not made from this module"):
        q8.compare(nn.Sequential(conv(3, 4), nn.ReLU()).eval(), quantized(module), (x,))


def test_skip_names_a_module() -> None:
    """One of the user's module; another name is told the nearest paths, or the first ones where none is like it."""
    with pytest.raises(
        q8.InputError, match=r"skip names '1\.1\.depthwise_conv'.*nearest to it: '1\.1\.depthwise' .*norm"
    ):
        quantized(network(), q8.Quantizer(skip=["0", "1.1.depthwise_conv"]))
    with pytest.raises(q8.InputError, match=r"skip names 'head'.*nearest to it: '0', '1', '1\.0', '1\.1'"):
        quantized(network(), q8.Quantizer(skip=["head"]))
    with pytest.raises(q8.InputError, match=r"skip names 'head'.*: no module has a path"):
        quantized(conv(3, 4).eval(), q8.Quantizer(skip=["head"]))
    with pytest.raises(q8.InputError, match=r"skip=\['head'\]"):
        q8.Quantizer(skip="head")


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
    assert set(ends) == {"linear", "relu"}
    exact = module(x)[0].detach()
    given = torch.from_numpy(q8.Session(q8.compile(program), "reference")(x.numpy())[0])
    ratio = (exact - given).square().sum() / exact.square().sum()  # two values a class say little of it
    assert ends["linear"].snr == pytest.approx(-10 * float(ratio.log10()), abs=0.01)
    assert "linear head" in str(found)
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


def norm(channels: int) -> nn.BatchNorm2d:
    """With statistics, as after training."""
    module = nn.BatchNorm2d(channels).eval()
    module.running_var = torch.linspace(0.5, 2, channels)
    return module


@pytest.mark.parametrize(
    ("middle", "kept"),
    [
        ([nn.GELU()], {"gelu"}),
        ([nn.ReLU(), norm(4)], {"relu", "batch_norm"}),
        ([nn.MaxPool2d(2), nn.Softmax(1)], {"max_pool2d", "softmax"}),
    ],
)
def test_any_module_can_be_skipped(middle: list[nn.Module], kept: set[str]) -> None:
    """Its operators stay in float, and what they read is not rounded for them."""
    module = nn.Sequential(conv(3, 4), *middle, conv(4, 3)).eval()
    x = data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=[str(len(middle))]), progress=False)
    report = q8.compile(program).report()
    assert set(report.float32) == kept
    assert report.int8 == {"q8ta_conv2d (scale)": 2}
    rows = sorted(q8.compare(module, program, (x,)).layers, key=lambda layer: layer.place)
    assert [layer.module for layer in rows if not layer.output] == ["", str(len(middle))]


def test_skip_goes_through_a_file(tmp_path: Path) -> None:
    module, x = nn.Sequential(conv(3, 4), nn.GELU(), conv(4, 3)).eval(), data(2, 3, 8, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=["1"]), progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    assert q8.compile(torch.export.load(tmp_path / "net.pt2")).report().float32 == {"gelu": 1}


@pytest.mark.parametrize("function", [nn.GELU, nn.ReLU])
def test_a_function_behind_a_view_can_be_skipped(function: Callable[[], nn.Module]) -> None:
    """Conv1d is a convolution and a view: an activation moves before the view, but not one in float."""
    module, x = nn.Sequential(nn.Conv1d(3, 4, 3), function(), nn.Conv1d(4, 3, 3)).eval(), data(1, 3, 8)
    program = q8.quantize(module, (x,), [x], q8.Quantizer(skip=["1"]), progress=False)
    assert function.__name__.lower() in q8.compile(program).report().float32


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
    with pytest.raises(q8.InputError, match="dimension 2 of input 0 is T with T from 2 to 8, found 9"):
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
    assert rows["relu_1"].lost == max(0.0, rows["relu"].snr - rows["relu_1"].snr)


def test_inputs_of_a_comparison_are_numbers() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4)).eval(), data(2, 8)
    program = q8.quantize(module, (x,), [x], progress=False)
    with pytest.raises(q8.InputError, match="input 0 holds NaN"):
        q8.compare(module, program, (x / 0 * 0,))


def test_what_is_exact_is_not_said_to_be_clipped() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4)).eval(), data(2, 8).round().clamp(-2, 2)
    compared = q8.compare(module, q8.quantize(module, (x,), [x], progress=False), (torch.zeros(2, 8),))
    assert {layer.cause for layer in compared.layers if layer.snr == 120} <= {"rounding"}


def test_modules_that_compute_nothing_are_told_apart() -> None:
    """They cannot be skipped. A network of nothing else was quantized, though nothing of it is rounded."""
    module, x = nn.Sequential(nn.Identity(), conv(3, 4)).eval(), data(1, 3, 5, 5)
    with pytest.raises(q8.InputError, match=r"nearest to it: '1' .*Identity and Dropout compute nothing"):
        q8.quantize(module, (x,), [x], q8.Quantizer(skip=["0"]), progress=False)
    program = q8.quantize(module[0], (x,), [x], progress=False)
    assert "nothing of this network is rounded" in str(q8.compile(program).report())
