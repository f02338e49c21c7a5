"""Batch norms in every place a network puts them: folded or kept, int8 computes what the module does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.export.norms import fold_norms
from tests import simulation
from tests.quantizing import INT8, Plain, conv, data


def norm(channels: int, seed: int = 0, of: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    """A batch norm far from identity, with factors of both signs."""
    torch.manual_seed(seed)
    made = of(channels)
    for name, tensor in made.state_dict().items():
        if tensor.dtype == torch.float32:
            tensor.copy_(torch.rand(channels) * 0.8 + 0.4 if name == "running_var" else torch.randn(channels))
    return made


def compiled(module: nn.Module, x: Tensor) -> list[str]:
    """Operators of the int8 model, whose reference is checked against the float module and torch's simulation."""
    module.eval()
    program = q8.quantize(module, (x,), [x, x * 0.8], quantizer=INT8, progress=False)
    model = q8.compile(program)
    assert model.report().islands == ()
    with torch.no_grad():
        expected = module(x).numpy()
    found = q8.Session(model, "reference")(x.numpy())
    assert ((found - expected) ** 2).mean() < 1e-3 * (expected**2).mean()
    for comparison in simulation.compare(program, model, {model.graph.inputs[0]: x.numpy()}):
        assert comparison.holds, comparison
    return [node.op for node in model.graph.nodes]


def test_a_convolution_that_feeds_more_than_its_batch_norm() -> None:
    module = Plain(lambda s, x: s.bn(y := s.a(x)) + torch.relu(y), a=conv(3, 5), bn=norm(5))
    assert "q8ta_batch_norm" in compiled(module, data(2, 3, 7, 5))


def test_one_convolution_applied_twice() -> None:
    """Each application has a folded weight of its own, whether its batch norm is the same or another."""
    twice = {"a": conv(4, 4), "one": norm(4), "two": norm(4, seed=1)}
    for second in ("one", "two"):
        module = Plain(lambda s, x, second=second: getattr(s, second)(s.a(torch.relu(s.one(s.a(x))))), **twice)
        assert "q8ta_batch_norm" not in compiled(module, data(2, 4, 5, 5))
    module = Plain(lambda s, x: s.one(s.a(s.a(x))), **twice)
    assert "q8ta_batch_norm" not in compiled(module, data(2, 4, 5, 5))


def test_two_batch_norms_of_one_convolution() -> None:
    module = Plain(lambda s, x: s.one(y := s.a(x)) - s.two(y), a=conv(4, 4), one=norm(4), two=norm(4, seed=1))
    assert compiled(module, data(2, 4, 5, 5)).count("q8ta_batch_norm") == 2


def test_behind_a_linear() -> None:
    """Of a matrix its channels are the linear's outputs; of more dimensions they are others."""
    folded = nn.Sequential(nn.Linear(7, 6, bias=False), norm(6, of=nn.BatchNorm1d), nn.ReLU())
    assert "q8ta_batch_norm" not in compiled(folded, data(9, 7))
    kept = nn.Sequential(nn.Linear(7, 5), norm(6, of=nn.BatchNorm1d), nn.ReLU())
    assert "q8ta_batch_norm" in compiled(kept, data(4, 6, 7))


def test_behind_a_linear_whose_outputs_are_moved_to_the_channels() -> None:
    """By views and by turns, but not where the channels become others."""
    parts = {"layer": nn.Linear(7, 6), "norm": norm(6, of=nn.BatchNorm1d)}
    for forward in (
        lambda m, x: m.norm(m.layer(x).flatten(0, 1)).unflatten(0, (4, 3)),
        lambda m, x: m.norm(m.layer(x).transpose(1, 2)),
    ):
        assert "q8ta_batch_norm" not in compiled(Plain(forward, **parts), data(4, 3, 7))
    mixed = Plain(lambda m, x: m.norm(m.layer(x).reshape(6, -1).t()), **parts)
    assert "q8ta_batch_norm" in compiled(mixed, data(4, 3, 7))


def test_behind_a_transposed_convolution_with_groups() -> None:
    for groups in (1, 2):
        module = nn.Sequential(nn.ConvTranspose2d(4, 6, 2, groups=groups), norm(6), nn.ReLU(inplace=True))
        assert "q8ta_batch_norm" not in compiled(module, data(2, 4, 5, 5))


def test_behind_a_batch_norm_and_by_itself() -> None:
    module = nn.Sequential(conv(3, 5), norm(5), norm(5, seed=1), nn.MaxPool2d(2), norm(5, seed=2), nn.ReLU())
    assert compiled(module, data(2, 3, 8, 8)).count("q8ta_batch_norm") == 1


def test_folding_is_exact_to_float32() -> None:
    """The float program computes the same before and after."""
    module = nn.Sequential(conv(4, 6), norm(6), nn.ConvTranspose2d(6, 4, 3, 2, groups=2, bias=False), norm(4)).eval()
    x = data(2, 4, 5, 5)
    graph = torch.export.export(module, (x,)).run_decompositions({}).module(check_guards=False)
    fold_norms(graph)
    graph.recompile()
    assert not any("batch_norm" in str(node.target) for node in graph.graph.nodes)
    with torch.no_grad():
        torch.testing.assert_close(graph(x), module(x), rtol=1e-5, atol=1e-5)


def test_numbers_behind_a_sum_are_rounded_with_it() -> None:
    """Whatever the layer, and with no bias, but where something else reads the sum as well."""
    layers = (conv(4, 6), nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False), nn.Conv2d(4, 6, 1, bias=False))
    for layer in layers:
        module = Plain(lambda m, x: torch.relu((3 - -40 * m.layer(x)) / 7 - 0.5), layer=layer)
        assert len(compiled(module, data(2, 4, 5, 5))) == 2  # with quantize
    shared = Plain(lambda m, x: torch.cat([y := m.layer(x), 2 * y], 1), layer=nn.Linear(4, 6))
    assert "q8ta_table" in compiled(shared, data(2, 4))


class Frozen(nn.Module):
    """A batch norm as detection networks write it, behind a layer without a bias."""

    def __init__(self, layer: nn.Module, channels: int, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        shape = (channels,) if last else (1, channels, 1, 1)
        self.layer, self.reversed = layer, last
        self.factor = nn.Parameter(torch.randn(shape))
        self.term = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return self.term + self.factor * y if self.reversed else y * self.factor - self.term


def test_numbers_of_each_output_are_rounded_with_it() -> None:
    """Frozen batch norms and scales of layers, on either side of the sign."""
    layers = (nn.Conv2d(4, 6, 3, bias=False), nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False))
    for layer in layers:
        assert compiled(Frozen(layer, 6), data(2, 4, 5, 5))[1:] in (["q8ta_conv2d"], ["q8ta_conv_transpose2d"])
    assert compiled(Frozen(nn.Linear(4, 6), 6, last=True), data(2, 3, 4))[1:] == ["q8ta_linear"]


def test_numbers_of_each_pixel_stay() -> None:
    """As many as there are channels, along another dimension."""
    module = Plain(lambda m, x: m.layer(x) * torch.arange(1.0, 4.0), layer=nn.Conv2d(4, 3, 3))
    assert "q8ta_mul" in compiled(module, data(2, 4, 5, 5))
