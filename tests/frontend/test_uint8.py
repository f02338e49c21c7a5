"""Images given as uint8: imported, quantized, run and stored without a float image in between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import GraphError, InputError, UnsupportedError
from q8ta_wgpu.frontend.pt2e import torchao
from q8ta_wgpu.ir.graph import INT8X4, UINT8, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.runtime.device import Device
from testbed.harness import stages_of
from tests import simulation
from tests.importing import Wrapped, flat, imported
from tests.quantizing import INT8, Plain, data

SHAPE = (2, 3, 12, 14)


class Net(nn.Module):
    """A normalized image through two convolutions; `last` takes it as cameras give it, channels innermost."""

    def __init__(self, last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3), last

    def forward(self, x: Tensor) -> Tensor:
        if self.last:
            x = x.permute(0, 3, 1, 2)
        y: Tensor = self.second(torch.relu(self.first((x.float() / 255 - 0.45) / 0.22)))
        return y


def image(last: bool = False, seed: int = 0) -> Tensor:
    """Random bytes with both ends of their range."""
    shape = (SHAPE[0], *SHAPE[2:], SHAPE[1]) if last else SHAPE
    x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    x.view(-1)[:2] = torch.tensor([0, 255], dtype=torch.uint8)
    return x


@pytest.fixture(scope="module", params=[False, True], ids=["channels first", "channels last"])
def quantized(request: pytest.FixtureRequest) -> tuple[Any, q8.Model, Tensor]:
    x = image(request.param)
    exported = q8.quantize(Net(request.param).eval(), (x,), calibration=[(x,)])
    return exported, q8.compile(exported), x


def test_everything_runs_in_int8(quantized: tuple[Any, q8.Model, Tensor], device: Device) -> None:
    """The normalization is one table; the bytes are the reference's, on every device."""
    _, model, x = quantized
    ops = [node.op for node in model.graph.nodes if node.op != "permute"]
    assert ops == ["q8ta_table", "q8ta_conv2d", "q8ta_conv2d"]
    assert stages_of(model.graph.nodes[-1]) == "scale"
    assert model.report().exact
    with q8.Session(model, device) as session:
        for array in (image(x.shape[-1] == 3, seed) for seed in range(2)):
            np.testing.assert_array_equal(session(array), q8.Session(model, "reference")(array.numpy()))
        many = list(session.run_many([x, x]))
        np.testing.assert_array_equal(many[1], session(x))


def test_against_the_simulation(quantized: tuple[Any, q8.Model, Tensor]) -> None:
    exported, model, x = quantized
    (name,) = model.graph.inputs
    found = simulation.compare(exported, model, {name: x.numpy()})
    assert len(found) >= 2
    assert all(c.largest <= 1 and c.equal >= 0.999 for c in found), found


def test_float_models_take_uint8_as_well() -> None:
    """Without quantization, and the conversions that change nothing."""
    x = image()
    functions: tuple[Callable[[Tensor], Any], ...] = (
        lambda x: x.float() / 255,
        lambda x: x.to(torch.float32).float() * 2.0,
        lambda x: x.flip(2).float(),
        lambda x: x.float().to(torch.int32).float(),
        lambda x: x / 255,
        lambda x: (x.permute(0, 2, 3, 1) - torch.tensor([123.0, 117.0, 104.0])) * 0.017,
        lambda x: x.float().mean() + x,
        lambda x: x.sum(1) / 3.0,
        lambda x: (x > 100, x.long() * 1000, torch.where(x > 3, x, x.flip(1)) / 2),
        lambda x: (x.float() * 1.7).to(torch.uint8),
        lambda x: (x.flip(2), x.permute(0, 2, 3, 1)[:, 1:], x.float().flip(3)),
        lambda x: (x.float() * 0.703 + 3).round().clamp(10, 200).to(torch.uint8),
        lambda x: ((x.float() - 50).trunc().byte() / 255.0, (x.int() * 3).byte(), x.bool().byte().float()),
    )
    for function in functions:
        found, exact = q8.Session(imported(function, x), "reference")(x), function(x)
        for ours, theirs in zip(flat(found), flat(exact), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-5)


def test_what_a_network_stores_as_uint8() -> None:
    """Latents of a tiny autoencoder are bytes; a network that ends in an image gives them. Sums are int8 before and
    behind both."""
    torch.manual_seed(0)
    ends = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
    x = image().float() / 255

    def forward(s: Any, x: Tensor) -> Tensor:
        latents = s.first(x).clamp(-3, 3).div(6).add(0.5).mul(255).round().byte()
        decoded: Tensor = s.second(latents / 255.0)
        return decoded.sigmoid().mul(255).to(torch.uint8)

    module = Plain(forward, first=ends[0], second=ends[1]).eval()
    model = q8.compile(q8.quantize(module, (x,), [x], progress=False))
    found, exact = q8.Session(model, "reference")(x), module(x).numpy()
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - exact).max() <= 3
    int8, every = model.report().macs
    assert int8 == every


ENDS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "rounded, clamped": (lambda y: (y * 255).round().clamp(0, 255).to(torch.uint8), True),
    "clamped, rounded": (lambda y: y.mul(255).clamp(0, 255).round().byte(), True),
    "clamped to 1": (lambda y: (y.clamp(0, 1) * 255).round().to(torch.uint8), True),
    "sigmoid": (lambda y: (y.sigmoid() * 255).round().to(torch.uint8), True),
    "a narrower range": (lambda y: (y * 219 + 16).round().clamp(16, 235).to(torch.uint8), True),
    "channels last": (lambda y: (y * 255).round().clamp(0, 255).permute(0, 2, 3, 1).byte(), True),
    "channels last first": (lambda y: (y.permute(0, 2, 3, 1) * 255).round().clamp(0, 255).byte(), True),
    "a term that is no whole number": (lambda y: ((y.tanh() + 1) * 127.5).round().to(torch.uint8), False),
    "cut, not rounded": (lambda y: (y * 255).clamp(0, 255).to(torch.uint8), False),
}
"""How networks end in an image, and whether all of it is in int8."""


Compiled = tuple[q8.Model, Tensor, Any, Any]
"""A model, its input, and what it and torch compute of it, on the host."""


def compiled(module: nn.Module) -> Compiled:
    """A module of the image, in int8."""
    x = image()
    model = q8.compile(q8.quantize(module, (x,), [x], quantizer=INT8, progress=False))
    return model, x, q8.Session(model, "reference")(x), module(x).detach().numpy()


@functools.cache
def image_as_result(end: str, shuffled: bool) -> Compiled:
    torch.manual_seed(1)
    function, _ = ENDS[end]
    layers = [nn.Conv2d(3, 12 if shuffled else 3, 3, padding=1), *([nn.PixelShuffle(2)] if shuffled else [])]
    module = Plain(lambda s, x: function(s.net(x.float() / 255)), net=nn.Sequential(*layers)).eval()
    return compiled(module)


@pytest.mark.parametrize("shuffled", [False, True], ids=["a convolution", "a pixel_shuffle"])
@pytest.mark.parametrize("end", ENDS)
def test_an_image_as_result_is_rounded_once(end: str, shuffled: bool, device: Device) -> None:
    """A convolution gives bytes, which come back as they are. They differ from torch's by a step or two: what the
    convolution reads is rounded."""
    model, x, expected, wanted = image_as_result(end, shuffled)
    exact = ENDS[end][1]
    report = model.report()
    assert report.exact == exact
    stored = model.graph.types[model.graph.outputs[0]]
    assert stored.dtype == INT8X4
    assert sum(node.op == "q8ta_conv2d" for node in model.graph.nodes) == 1
    if exact:
        assert stages_of(model.graph.nodes[1]).split()[-1] == "requantize"
    with q8.Session(model, device) as session:
        found = session(x)
        assert session.program.outputs[0].size < 2 * found.size
    assert found.dtype == np.uint8
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found.astype(int) - wanted).max() <= 2
    assert len(np.unique(found)) > 50


LOGO = torch.arange(3 * 5 * 14).reshape(1, 3, 5, 14).to(torch.uint8)
BESIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda x, y: torch.cat([x, y], 3),
    "stack": lambda x, y: torch.stack([y, x], 1),
    "moved before": lambda x, y: torch.cat([x.flip(3), 255 - x, y], 1),
    "a constant": lambda x, y: torch.cat([x, LOGO.expand(2, -1, -1, -1)], 2),
    "zeros": lambda x, y: torch.cat([torch.zeros_like(x), x], 1),
    "written into": lambda x, y: x.slice_scatter(y[:, :, 2:5], 2, 0, 3),
    "rows written into": lambda x, y: x.index_copy(2, torch.tensor([1, 3]), y[:, :, :2]),
    "numbers of another dtype": lambda x, y: torch.cat([x.long(), x], 1),
}
"""What puts an input of uint8 beside a result, or beside a constant."""


@functools.cache
def image_beside(name: str, layer: bool) -> Compiled:
    torch.manual_seed(1)

    def forward(s: Any, x: Tensor) -> Any:
        both = BESIDE[name](x, (s.conv(x.float() / 255) * 255).round().clamp(0, 255).to(torch.uint8))
        return s.mean(both.flatten(0, -4).float() / 255) if layer else both

    module = Plain(forward, conv=nn.Conv2d(3, 3, 3, padding=1), mean=nn.AvgPool2d(2)).eval()
    return compiled(module)


@pytest.mark.parametrize("layer", [False, True], ids=["a result", "before a layer"])
@pytest.mark.parametrize("name", BESIDE)
def test_an_image_beside_other_bytes(name: str, layer: bool, device: Device) -> None:
    """Bytes that are given are exact in the result. They were not taken beside computed ones, nor beside constants."""
    model, x, expected, wanted = image_beside(name, layer)
    with q8.Session(model, device) as session:
        found = session(x)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == wanted.dtype
    assert np.abs(found.astype(float) - wanted).max() <= (0.02 if layer else 2)
    assert layer or not model.report().float32


def test_pieces_give_what_they_store_as_numbers() -> None:
    torch.manual_seed(0)
    x = data(1, 3, 32, 32)
    whole = Plain(lambda s, x: s.conv(x).sigmoid().mul(255).byte(), conv=nn.Conv2d(3, 16, 3)).eval()
    module = Plain(lambda s, x: s.whole(x) & 0xFF, whole=whole).eval()
    program = q8.quantize(module, (x,), [x], quantizer=INT8, progress=False, unsupported="torch")
    hybrid = q8.compile(program, unsupported="torch", device="reference")
    assert [text for text in hybrid.report().torch if "bitwise_and" in text]
    assert (hybrid(x).int() - module(x).int()).abs().max() <= 4


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.double().float(), r"converts torch\.uint8 to torch\.float64: numbers are float32"),
        (lambda x: x + x, "its result is uint8, which wraps past 255: compute in float32, x.float"),
        (lambda x: (x.float(), x), "output args_0 is an input, given as uint8: return it as float32"),
        (lambda x: (x.long() * 10**8).float().long().byte(), "made of floats of any size|may reach"),
    ],
)
def test_what_is_refused(function: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        q8.compile(torch.export.export(Wrapped(function), (image(),)))


def test_the_codes_of_a_quantized_tensor_are_not_converted() -> None:
    """Its int8 has a scale of its own, which a conversion of the bytes would not apply."""
    assert torchao  # what it imports registers the operators
    qd = torch.ops.quantized_decomposed

    def codes(x: Tensor) -> Tensor:
        y: Tensor = qd.quantize_per_tensor(x, 0.5, 128, 0, 255, torch.uint8).float()
        return y

    with pytest.raises(UnsupportedError, match=r"converts torch\.uint8 to torch\.float32: numbers are float32"):
        q8.compile(torch.export.export(Wrapped(codes), (torch.zeros(2, 3),)))


def int8_model() -> q8.Model:
    """The same graph on a true int8 input of the same scale and zero point."""
    model = imported(lambda x: x.float() / 255, image())
    graph = model.graph.copy()
    graph.values.clear()
    return q8.Model(graph, model.structure)


def test_dtypes_are_told_apart(device: Device) -> None:
    unsigned, signed, x = imported(lambda x: x.float() / 255, image()), int8_model(), image().numpy()
    with q8.Session(unsigned, device) as a, q8.Session(signed, device) as b:
        np.testing.assert_array_equal(a(x), b((x.astype(np.int16) - 128).astype(np.int8)))
        for wrong in (x.view(np.int8), x.astype(np.float32), x.astype(np.int32), x > 3):
            with pytest.raises(InputError, match=f"must be uint8, found {wrong.dtype}"):
                a(wrong)
        for wrong in (x, x.astype(np.float32)):
            with pytest.raises(InputError, match=f"must be int8, found {wrong.dtype}"):
                b(wrong)
        with pytest.raises(InputError, match="must have shape"):
            a(x[:1])
        strided = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        np.testing.assert_array_equal(a(strided), a(x))


def test_files_and_other_sizes(tmp_path: Path, quantized: tuple[Any, q8.Model, Tensor]) -> None:
    _, model, x = quantized
    model.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    assert loaded.graph.values["x"].given == "uint8"
    assert "x uint8[2" in repr(loaded)
    assert "given as uint8" in str(loaded.graph)
    np.testing.assert_array_equal(q8.Session(loaded, "reference")(x), q8.Session(model, "reference")(x))
    one = loaded.reshape((1, *x.shape[1:]))
    np.testing.assert_array_equal(q8.Session(one, "reference")(x[:1]), q8.Session(model, "reference")(x)[:1])
    int8_model().save(tmp_path / "int8.q8ta")
    assert not q8.load(tmp_path / "int8.q8ta").graph.values["x"].given


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = imported(lambda x: x.float() / 255, image()), image().numpy()
    file, given, result = (str(tmp_path / name) for name in ("net.q8ta", "x.npy", "y.npy"))
    model.save(file)
    np.save(given, x)
    assert main(["run", file, "--input", given, "--output", result, "--device", "reference"]) == 0
    np.testing.assert_array_equal(np.load(result), q8.Session(model, "reference")(x))
    assert main(["show", file]) == 0
    assert main(["time", file, "--repeats", "1"]) == 0
    assert "given as uint8" in capsys.readouterr().out
    np.save(given, x.astype(np.float32))
    assert main(["run", file, "--input", given, "--output", result, "--device", "reference"]) != 0
    assert "must be uint8, found float32" in capsys.readouterr().err


def test_in_tiles(device: Device) -> None:
    model = imported(lambda x: torch.relu(x.float()), image())
    with q8.TiledSession(model, SHAPE, device, max_bytes=6 * 6 * 4 * 8) as tiled:
        assert tiled.windows > 1
        np.testing.assert_array_equal(tiled(image()), q8.Session(model, "reference")(image()))
        with pytest.raises(InputError, match="must be uint8"):
            tiled(image().float())


def _graph(q: QParams = UINT8) -> Graph:
    graph = Graph(["x"], ["y"], [Node("dequantize", ("x",), "y")])
    graph.values.set("x", given="uint8")
    graph.types = {"x": TensorType((2, 3), INT8X4, q), "y": TensorType((2, 3))}
    return graph


def test_what_a_file_may_not_say() -> None:
    verify(_graph(), RUNNABLE)
    inner, outside = _graph(), _graph()
    inner.values.set("y", given="uint8")
    outside.outputs.append("x")
    for graph in (inner, outside, _graph(QParams(1.0, 0)), _graph(QParams(0.5, -128))):
        with pytest.raises(GraphError, match="is given as uint8, so it must be an input alone"):
            verify(graph, RUNNABLE)
