"""Recurrent layers by the public call: quantized, compiled, run on the GPU, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.export.recurrent_layers import first_states
from q8ta_wgpu.ir.graph import Array, Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.recurrent.q8ta_recurrent import PROJECTED
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.noise import decibels
from tests.quantizing import INT8

BOTH = {"num_layers": 2, "bidirectional": True, "batch_first": True}


class Results(nn.Module):
    """What a layer returns, as a flat tuple; states are inputs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *states: Tensor) -> Any:
        y, last = self.layer(x, (states if len(states) > 1 else states[0]) if states else None)
        return (y, *last) if isinstance(last, tuple) else (y, last)


class Last(nn.Module):
    """A class from the last hidden states of both directions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)[1]
        y: Tensor = self.head(torch.cat([hidden[-2], hidden[-1]], 1))
        return y


def of(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def built(make: Any, *sizes: int, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    layer: nn.Module = make(*sizes, **options).eval()
    return layer


def noise(found: Any, exact: Tensor) -> float:
    """In decibels below the signal."""
    wanted = exact.detach().numpy()
    return float(10 * np.log10((wanted**2).sum() / max(((found - wanted) ** 2).sum(), 1e-30)))


def checked(module: nn.Module, inputs: tuple[Tensor, ...], device: Device, **options: Any) -> q8.Model:
    """The model, whose bytes are the reference's and whose results are near torch's."""
    program = q8.quantize(module.eval(), inputs, [inputs], quantizer=INT8, progress=False, **options)
    model = q8.compile(program)
    arrays = tuple(x.numpy() for x in inputs)
    expected = harness.flat(q8.Session(model, "reference")(*arrays))
    with q8.Session(model, device) as session:
        found = harness.flat(session(*arrays))
    exact = module(*inputs)
    for one, same, real in zip(found, expected, exact if isinstance(exact, tuple) else (exact,), strict=True):
        np.testing.assert_array_equal(one, same)
        assert noise(one, real) > 30
    return model


@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_layers(make: Any, vulkan: Device) -> None:
    """Two layers, both directions, all results: every product in int8, a linear and a dispatch for each direction."""
    model = checked(Results(built(make, 6, 12, **BOTH)), (of(3, 7, 6),), vulkan)
    report = model.report()
    assert report.macs[0] == report.macs[1]
    assert report.int8["q8ta_linear (requantize_int16)"] == 4
    assert report.int8[f"q8ta_{make.__name__.lower()}"] == 8  # four give all steps, four their states


def test_states_come_in_and_go_out(vulkan: Device) -> None:
    """Two halves of a sequence, the second begun with the states of the first, are near the whole."""
    layer = Results(built(nn.LSTM, 6, 12))
    x, zero = of(8, 2, 6), torch.zeros(1, 2, 12)
    half = (x[:4], of(1, 2, 12) * 0.5, of(1, 2, 12) * 0.5)
    model = checked(layer, half, vulkan)
    assert not set(model.report().float32) & {"lstm", "linear"}
    with q8.Session(model, vulkan) as session:
        first, *states = session(x[:4].numpy(), zero.numpy(), zero.numpy())
        second = session(x[4:].numpy(), *states)[0]
    assert noise(np.concatenate([first, second]), layer(x)[0]) > 25


def test_last_hidden_states_of_any_batch(vulkan: Device) -> None:
    model = checked(Last(built(nn.GRU, 6, 12, **BOTH)), (of(2, 5, 6),), vulkan, dynamic_batch=True)
    assert not model.report().float32
    with q8.Session(model, vulkan) as session:
        assert session(of(3, 5, 6).numpy()).shape == (3, 5)


@pytest.mark.parametrize(
    ("make", "states", "options"),
    [
        (nn.GRU, (10.0,), {}),
        (nn.GRU, (10.0,), {"num_layers": 2, "bidirectional": True}),
        (nn.GRU, (150.0,), {}),
        (nn.LSTM, (0.5, 150.0), {}),
        (nn.LSTM, (15.0, 0.5), {"bidirectional": True, "bias": False}),
    ],
)
def test_large_first_states(make: Any, states: tuple[float, ...], options: dict[str, Any], vulkan: Device) -> None:
    """States have the range that calibration met: torch's, at 30 dB and more."""
    layer = built(make, 6, 12, **options)
    rows = (2 if options.get("bidirectional") else 1) * options.get("num_layers", 1)
    checked(Results(layer), (of(8, 2, 6), *(of(rows, 2, 12) * size for size in states)), vulkan)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2}, {"bidirectional": True}, BOTH])
@pytest.mark.parametrize("make", [nn.LSTM, nn.GRU])
def test_states_of_all_layers_and_directions_have_16_fraction_bits(make: Any, options: dict[str, Any]) -> None:
    """Cell states, and a GRU's hidden states, that are returned."""
    module = Results(built(make, 6, 12, **options)).eval()
    items = [torch.randn(9, 9, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(8)]
    model = q8.compile(q8.quantize(module, (items[0],), items, progress=False))
    with torch.no_grad():
        *_, exact = module(items[3])
    assert noise(q8.Session(model, "reference")(items[3].numpy())[-1], exact) > 48


class Count(nn.Module):
    """Two cells that count the steps, one up and one down, and how far they are apart at the end."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.layer = nn.LSTM(1, 2, batch_first=batch_first)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.zero_()
            weight, _, bias, _ = self.layer.parameters()
            bias.view(4, 2)[[0, 1, 3]] = 20.0  # gates are open, nothing is forgotten
            weight.view(4, 2)[2] = torch.tensor([20.0, -20.0])

    def forward(self, x: Tensor) -> Tensor:
        state = self.layer(x)[1][1]
        apart: Tensor = state[..., 0] - state[..., 1]
        return apart


@pytest.mark.parametrize("batch_first", [True, False])
def test_states_that_grow(batch_first: bool, vulkan: Device) -> None:
    """A cell that counts beyond 128 on the way, and back: its range is that of all steps, not of the last."""
    ups = torch.ones(600).index_fill(0, torch.arange(300, 500), -1.0).reshape(600, 1, 1)
    model = checked(Count(batch_first), (ups.transpose(0, 1) if batch_first else ups,), vulkan)
    (found,) = (node.attrs["shifts"] for node in model.graph.nodes if node.op == "q8ta_lstm")
    assert found == (0, 3)  # 300, and room for twice as many


def test_the_range_of_states_is_saved_with_the_program(tmp_path: Path) -> None:
    inputs = (of(8, 2, 6), of(1, 2, 12) * 10)
    program = q8.quantize(Results(built(nn.GRU, 6, 12)).eval(), inputs, [inputs], quantizer=INT8, progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    again = torch.export.load(tmp_path / "net.pt2")
    assert [[n.attrs.get("shifts") for n in q8.compile(p).graph.nodes] for p in (program, again)] == [
        [n.attrs.get("shifts") for n in q8.compile(program).graph.nodes]
    ] * 2


def test_skipped_layers_stay_in_float(vulkan: Device) -> None:
    module = Results(built(nn.LSTM, 6, 12, bias=False)).eval()
    x = of(5, 2, 6)
    program = q8.quantize(module, (x,), [x], quantizer=q8.Quantizer(skip=["layer"], precision="int8"), progress=False)
    model = q8.compile(program)
    assert model.report().float32["lstm"] == 2
    for found, exact in zip(q8.Session(model, vulkan)(x.numpy()), module(x), strict=True):
        np.testing.assert_allclose(found, exact.detach().numpy(), atol=1e-5)


def test_steps_are_not_traced() -> None:
    """torch would compute with the shapes of every step, 8 ms each; afterwards it does so again."""
    kernels = {name: dict(getattr(torch.ops.aten, name).input.py_kernels) for name in ("lstm", "gru")}
    module = Results(built(nn.LSTM, 4, 4)).eval()
    program = q8.quantize(module, (of(4000, 1, 4),), [of(4000, 1, 4)], quantizer=INT8, progress=False)
    assert len(program.graph.nodes) < 40
    assert {name: dict(getattr(torch.ops.aten, name).input.py_kernels) for name in kernels} == kernels


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.LSTM(6, 12, proj_size=4), "leave proj_size at 0"),
        (nn.LSTM(6, 2001), "2001 hidden units, 2000 at most"),
    ],
    ids=["projected", "wide"],
)
def test_refused(module: nn.Module, text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        q8.quantize(Results(module).eval(), (of(3, 2, 6),), [of(3, 2, 6)], quantizer=INT8, progress=False)


def _graph(first: Array, shifts: tuple[int, int] = (0, 0)) -> tuple[Graph, dict[str, Array]]:
    """A q8ta_lstm of five units that begins with the given states, and gives its own."""
    draw, units = np.random.default_rng(0), 5
    graph = Graph(["pre", "hidden", "cell"], ["y"])
    graph.types = {"pre": TensorType((3, 2, 4 * units), PROJECTED.dtype, PROJECTED), "y": TensorType((2, units))}
    graph.types |= dict.fromkeys(("hidden", "cell"), TensorType(first.shape))
    constants = {
        "weight": draw.integers(-127, 128, (4 * units, units)).astype(np.int8),
        "multiplier": np.full(4 * units, 0.05, np.float32),
        "bias": draw.integers(-(2**16), 2**16, 4 * units).astype(np.int32),
        "knots": np.rint(np.tanh(np.linspace(0, 8, 513)) * 2**15).astype(np.int32),
    }
    names = [graph.add_constant(name, array) for name, array in constants.items()]
    attrs = {"reverse": False, "batch_first": False, "result": "state", "shifts": shifts, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_lstm", ("pre", *names, "hidden", "cell"), "y", attrs)]
    pre = draw.integers(-(2**15), 2**15, (3, 2, 4 * units)).astype(np.int16)
    return graph, {"pre": pre, "hidden": first, "cell": first}


@pytest.mark.parametrize("shifts", [(0, 0), (5, 1), (12, 12)])
def test_any_state_may_come_in(shifts: tuple[int, int], device: Device) -> None:
    """NaN is 0, infinities and what is beyond 128, or what calibration met, saturate, on every device alike."""
    first = np.array([[np.nan, np.inf, -np.inf, 127.9, -3.99], [1e-40, 1e30, -4.5, 3e-5, 0.5]], np.float32)
    graph, inputs = _graph(first, shifts)
    expected = reference.run(graph, inputs)["y"]
    assert np.isfinite(expected).all()
    assert np.abs(expected).max() <= 128 << shifts[1]
    (found,) = harness.run_poisoned(graph, inputs, None, device)
    np.testing.assert_array_equal(found, expected)


def test_states_do_not_drift() -> None:
    """A cell that keeps what it has, over a thousand steps: rounding in each does not add up."""
    graph, inputs = _graph(np.full((2, 5), 0.7, np.float32))
    graph.constants["weight"][:], graph.constants["bias"][:] = 0, 0
    gates = np.array([-16.0, 16.0, 0.0, 0.0]).repeat(5)  # nothing comes in, nothing is forgotten
    inputs["pre"] = np.broadcast_to(gates * 2**10, (1000, 2, 20)).astype(np.int16)
    graph.types["pre"] = TensorType((1000, 2, 20), PROJECTED.dtype, PROJECTED)
    np.testing.assert_allclose(reference.run(graph, inputs)["y"], 0.7, atol=1e-5)
    assert OPS["q8ta_lstm"].tolerance == 0


@pytest.mark.parametrize("given", ["h", "y, h", "y, h, c"])
def test_a_returned_state_leaves_a_layer_in_int8(given: str, vulkan: Device) -> None:
    """Calibration meets few values of it, for which other results have 16 bits: the layer was computed in float32."""

    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(12, 16)

        def forward(self, x: Tensor) -> Any:
            y, (h, c) = self.layer(x)
            return {"h": h, "y, h": (y, h), "y, h, c": (y, h, c)}[given]

    torch.manual_seed(0)
    items = [torch.randn(10, 2, 12) for _ in range(8)]
    model = q8.compile(q8.quantize(Returns().eval(), (items[0],), calibration=items, progress=False))
    assert model.report().exact
    assert not set(model.report().float32) - {"view"}  # the shape of c, which goes out in float32
    with q8.Session(model, vulkan) as session, q8.Session(model, "reference") as expected:
        for found, wanted in zip(harness.flat(session(items[1])), harness.flat(expected(items[1])), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_a_dynamic_batch_by_its_name(layer: type[nn.Module], vulkan: Device) -> None:
    """States of zeros that follow the batch were taken for a table that an observer reads: a TypeError."""
    torch.manual_seed(0)
    module, items = layer(6, 8, batch_first=True).eval(), [torch.randn(3, 5, 6) for _ in range(4)]
    sizes = [{0: torch.export.Dim("B")}]
    program = q8.quantize(module, (items[0],), calibration=items, dynamic_shapes=sizes, progress=False)
    x = torch.randn(7, 5, 6)
    with q8.Session(q8.compile(program), vulkan) as session, torch.no_grad():
        ratio = decibels(module(x)[0].numpy(), harness.flat(session(x))[0])
    assert ratio is not None
    assert ratio > 20


def test_moves_in_a_row_are_followed_without_recursion() -> None:
    """300 slices that a module writes one after the other were a RecursionError in `quantize`."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    for _ in range(3000):
        value = graph.call_function(torch.ops.aten.view.default, (value, [1, 8]))
    graph.output(value)
    assert first_states(graph) == set()
