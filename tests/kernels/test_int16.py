"""int16 activations: kernels against the reference, what is refused, and a residual stream from torch to the device."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, InputError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from tests import harness, int16_graphs, op_graphs
from tests.quantizing import data

EVERY = 6
"""Of the kernels of a graph, the general one and every so-manieth of the others run; test_wgsl.py compiles all."""

GRAPHS = {name: (graph, inputs) for name, graph, inputs in int16_graphs.single_nodes()}
SUMS = {
    name: (graph, inputs)
    for name, _, graph, inputs in (
        *itertools.islice(int16_graphs.sums_of_int16(), 0, None, 4),
        *itertools.islice(int16_graphs.products_of_int16(), 0, None, 3),
    )
}


@pytest.mark.parametrize("name", GRAPHS)
def test_kernels(name: str, device: Device) -> None:
    """0 mismatches."""
    graph, inputs = GRAPHS[name]
    assert not graph.notes, graph.notes
    assert len(graph.nodes) == 1
    expected = reference.run(graph, inputs)[graph.outputs[0]]
    by_kernel = [
        (kernel, next(plans))
        for kernel, plans in itertools.groupby(harness.plans(graph, 0), lambda item: item[1].steps[0].variant.kernel)
    ]
    turn = list(GRAPHS).index(name)
    for place, (_, (what, plan)) in enumerate(by_kernel):
        if place == len(by_kernel) - 1 or (place + turn) % (EVERY * (3 if harness.sampled(device) else 1)) == 0:
            (found,) = harness.run_poisoned(graph, inputs, plan, device)
            np.testing.assert_array_equal(found, expected, err_msg=what)


@pytest.mark.parametrize("name", SUMS)
def test_weighted_sums_of_int16(name: str, device: Device) -> None:
    """A weighted sum of int16 is one node, as a product of activations: 0 mismatches."""
    unfused, inputs = SUMS[name]
    graph = run_passes(unfused)
    assert not graph.notes, graph.notes
    assert [node.op for node in graph.nodes] == [f"q16ta_{name.split()[0]}"]
    (found,) = harness.run_poisoned(graph, inputs, None, device)
    np.testing.assert_array_equal(found, reference.run(graph, inputs)[graph.outputs[0]])


def _long(depth: int, rows: int, zero: int) -> tuple[Graph, dict[str, Array]]:
    """A linear of int16 with extreme values and weights whose float32 result is its sum."""
    graph = Graph(["x"], ["y"])
    graph.types = {
        "x": TensorType((rows, depth), INT16X4, QParams(1.0, zero, INT16X4)),
        "real": TensorType((rows, depth)),
    }
    graph.nodes = [Node("dequantize", ("x",), "real")]
    signs = np.random.default_rng(0).choice([-127, 127], (5, depth)).astype(np.int8)
    signs[0], signs[1, 1:] = 127, signs[1, :-1]
    scale = np.ones(5, np.float32)
    names = (
        graph.add_constant("w0", signs),
        graph.add_constant("s", scale),
        graph.add_constant("z", np.zeros(5, np.int32)),
    )
    graph.types |= {"w": TensorType((5, depth)), "y": TensorType((rows, 5))}
    graph.nodes.append(Node("dequantize_weight", names, "w", {"axis": 0}))
    graph.nodes.append(Node("linear", ("real", "w", graph.add_constant("b", scale * 0)), "y"))
    x = np.random.default_rng(1).choice([-32768, 32767], (rows, depth)).astype(np.int16)
    x[0] = 32767 if zero <= 0 else -32768
    return graph, {"x": x}


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("zero", [0, -32768, 32767])
def test_sums_past_int32_are_exact(zero: int, rows: int, vulkan: Device) -> None:
    """A float32 result of a linear of int16 is the exact sum, rounded once: up to 2^38 here."""
    unfused, inputs = _long(1000 if rows > 8 else 60_000, rows, zero)
    graph = run_passes(unfused)
    assert [node.op for node in graph.nodes] == ["q16ta_linear"], graph.notes
    exact = (inputs["x"].astype(np.int64) - zero) @ unfused.constants["w0"].astype(np.int64).T
    assert np.abs(exact).max() > 2**31
    (found,) = harness.run_poisoned(graph, inputs, None, vulkan)
    np.testing.assert_array_equal(found, exact.astype(np.float32))


def test_a_linear_of_int16_whose_half_passes_int32_stays_in_float() -> None:
    graph = run_passes(_long(140_000, 1, 0)[0])
    assert "linear" in [node.op for node in graph.nodes]
    assert any("its accumulator could reach" in note and "past int32" in note for note in graph.notes), graph.notes


def rounded(x: torch.Tensor, scale: float, dtype: torch.dtype, zero: int = 0) -> torch.Tensor:
    """What a program says that stores a value in a dtype."""
    bounds = torch.iinfo(dtype)
    numbers = (scale, zero, bounds.min, bounds.max, dtype)
    ops = torch.ops.quantized_decomposed
    y: torch.Tensor = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *numbers), *numbers)
    return y


class Wide(nn.Module):
    """Convolutions of lines, images and volumes, and a linear, that read int16 and give int8, int16 or float32."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.image = nn.Conv1d(4, 8, 3, padding=1, groups=2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up, self.volume = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv3d(4, 3, (2, 3, 3), padding=(0, 1, 1))
        self.head, self.stores = nn.Linear(12, 5), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._stored(x, 2e-4, -900)
        y = self._stored(self._weighted(self.line, y).relu(), 2e-4, -32768)
        y = self._stored(self._weighted(self.image, y.reshape(1, 8, 4, 6)), 5e-4)
        y = self._stored(self._weighted(self.up, y).sigmoid(), 2.0**-16, -32768)
        y = self._stored(self._weighted(self.volume, y.reshape(1, 4, 2, 4, 12)), 3e-4)
        return self._weighted(self.head, y)

    def _stored(self, x: torch.Tensor, scale: float, zero: int = 0) -> torch.Tensor:
        return rounded(x, scale, torch.int16, zero) if self.stores else x

    def _weighted(self, module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        named: dict[str, torch.Tensor] = dict(module.named_parameters())
        weight = named["weight"].detach()
        named["weight"] = rounded(weight / weight.abs().max(), 1 / 127, torch.int8)
        y: torch.Tensor = torch.func.functional_call(module, named, x)
        return y


def test_a_program_in_int16(vulkan: Device) -> None:
    """Every weighted sum of int16 that a program asks for runs on integers, at 16 bits' distance from exact numbers."""
    torch.manual_seed(0)
    module, x = Wide().eval(), data(1, 4, 24)
    model = q8.compile(torch.export.export(module, (x,)))
    assert set(model.report().float32) == set(), model.report()
    assert model.report().exact
    found = q8.Session(model, "reference")(x)
    module.stores = False
    exact = module(x).detach().numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > 65
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), found)


class Causal(nn.Module):
    """Attention whose queries, keys and values, or some of them, a program stores in int16."""

    def __init__(self, wide: str, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.wide, self.mask, self.stores = wide, mask, True

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (self._stored(x, name in self.wide) for x, name in zip((q, k, v), "qkv", strict=True))
        scores = q @ k.transpose(-1, -2) / 4
        weights = (scores if self.mask is None else scores + self.mask).softmax(-1)
        return self._stored(weights @ v, True)

    def _stored(self, x: torch.Tensor, wide: bool) -> torch.Tensor:
        if not self.stores:
            return x
        return rounded(x, 2e-4, torch.int16) if wide else rounded(x, 0.04, torch.int8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("wide", "least"), [("qkv", 55), ("qk", 34), ("v", 27), ("k", 27)])
def test_attention_of_int16(wide: str, least: float, masked: bool, vulkan: Device) -> None:
    """Three operators of integers, whose scores and weights are int16."""
    mask = torch.full((9, 9), -1e9).triu(1) if masked else None
    module = Causal(wide, mask).eval()
    inputs = tuple(data(2, 3, 9, 16, seed=seed) for seed in range(3))
    model = q8.compile(torch.export.export(module, inputs))
    report = model.report()
    assert not report.float32 and report.exact, report
    assert "q16ta_softmax" in {node.op for node in model.graph.nodes}
    found = q8.Session(model, "reference")(*inputs)
    module.stores = False
    exact = module(*inputs).numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > least
    np.testing.assert_array_equal(q8.Session(model, vulkan)(*inputs), found)


class Block(nn.Module):
    """A transformer's second half, twice: norm, two linears, dropout, sum; and a branch that moves its result."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.norms = nn.ModuleList(nn.LayerNorm(12) for _ in range(3))
        self.up, self.down, self.turned = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 12)
        self.dropout = nn.Dropout(0.1)
        self.place = nn.Parameter(torch.randn(1, 7, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x) + self.place
        x = x + self.dropout(self.down(self.up(self.norms[0](x)).relu()))
        x = x + self.turned(self.norms[1](x)).reshape(1, 12, 7).transpose(1, 2)
        y: torch.Tensor = self.norms[2](x)[:, 0]
        return y


def quantized(module: nn.Module, *shape: int, residual: str = "int16") -> tuple[q8.Model, torch.Tensor]:
    """A module's model, and an input for it."""
    batches = [torch.randn(shape) for _ in range(4)]
    quantizer = q8.Quantizer(residual=residual, precision="int8")
    return q8.compile(q8.quantize(module.eval(), (batches[0],), batches, quantizer, progress=False)), batches[1]


def test_residual_stream(tmp_path: Path, vulkan: Device) -> None:
    """Its sums are int16, one rounding each, and nearer to the float network; a saved model runs the same."""
    torch.manual_seed(0)
    module = Block()
    model, x = quantized(module, 1, 7, 5)
    sums = [node for node in model.graph.nodes if model.graph.types[node.output].dtype == INT16X4]
    stages = [node.attrs["epilogue"].label if "epilogue" in node.attrs else node.op for node in sums]
    assert [stage for stage in stages if stage not in ("view", "permute")] == [
        "scaled_residual -> requantize_int16",
        "scaled_residual -> requantize_int16",
        "requantize_int16",
        "q16ta_add",
    ]
    assert f"{len(sums)} int16 values between nodes" in str(model.report())
    assert model.report().exact
    model.save(tmp_path / "stream.q8ta")
    expected = q8.Session(model, device="reference")(x)
    with q8.Session(q8.load(tmp_path / "stream.q8ta"), device=vulkan) as session:
        np.testing.assert_array_equal(session(x), expected)
    narrow, _ = quantized(module, 1, 7, 5, residual="int8")
    assert all(t.dtype != INT16X4 for t in narrow.graph.types.values())
    exact = module(x).detach().numpy()
    errors = [np.abs(q8.Session(m, device="reference")(x) - exact).mean() for m in (model, narrow)]
    assert errors[0] < errors[1]


class Merged(nn.Module):
    """A stream that a part of its own moves before it norms it, as Swin merges patches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.merge = Merge()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(x)
        y: torch.Tensor = self.merge(x + self.last(self.norm(x)))
        return y


class Merge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(torch.cat([x[:, ::2], x[:, 1::2]], -1))
        return y


@pytest.mark.parametrize(
    ("skip", "floats", "streams"),
    [("merge", {"layer_norm", "slice", "cat", "add"}, 1), ("last", {"layer_norm", "linear"}, 2)],
)
def test_a_stream_through_modules_left_in_float(skip: str, floats: set[str], streams: int) -> None:
    """What only a module in float reads is not rounded; all other sums stay int16, also where what is added to them
    comes from one."""
    x = torch.randn(1, 4, 8)
    quantizer = q8.Quantizer(skip=[skip], precision="int8")
    model = q8.compile(q8.quantize(Merged().eval(), (x,), [x], quantizer, progress=False))
    assert set(model.report().float32) == floats
    sums = [node for node in model.graph.nodes if node.op in ("q16ta_add", "q8ta_linear")]
    assert [model.graph.types[node.output].dtype for node in sums].count(INT16X4) == streams


def test_convolutional_networks_have_no_stream() -> None:
    """Sums that no layer_norm reads stay int8."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).relu()
            y: torch.Tensor = (x + self.second(x)).relu()
            return y

    model, _ = quantized(Residual(), 1, 3, 8, 8)
    assert all(t.dtype != INT16X4 for t in model.graph.types.values())


def test_what_has_no_int16_form_stays_in_float() -> None:
    """And the report says why."""
    q = QParams(0.01, 0, INT16X4)
    graph = Graph(["x"], ["y"], [Node("dequantize", ("x",), "real"), Node("hypot", ("real", "real"), "size")])
    graph.nodes.append(Node("quantize", ("size",), "y", {"lo": -(2**15), "hi": 2**15 - 1}))
    shape = (3, 5)
    graph.types = {name: TensorType(shape) for name in ("real", "size")}
    graph.types |= {name: TensorType(shape, INT16X4, q) for name in ("x", "y")}
    fused = run_passes(graph)
    assert [node.op for node in fused.nodes] == ["dequantize", "hypot", "quantize"]
    assert fused.notes == ["size: hypot stays in float32: it reads int8 alone, and an operand is int16"]


def test_ranges_and_dtypes_are_checked() -> None:
    with pytest.raises(GraphError, match=r"a zero point must be an int8 \(-128..127\), found 300"):
        QParams(0.1, 300)
    with pytest.raises(GraphError, match="scale and zero point belong to int8x4 and int16x4"):
        TensorType((3,), INT8X4, QParams(0.1, 300, INT16X4))
    graph = Graph(["x"], ["y"], [Node("quantize", ("x",), "y", {"lo": -200, "hi": 127})])
    graph.types = {"x": TensorType((3,)), "y": TensorType((3,), INT8X4, QParams(0.1, 0))}
    with pytest.raises(GraphError, match=r"has the range -200..127, its result is int8x4: -128..127"):
        verify(graph, RUNNABLE)
    with pytest.raises(InputError, match="residual must be 'int16' or 'int8', found 'float'"):
        q8.Quantizer(residual="float")


class Joined(nn.Module):
    """Two convolutions are summed in the stream, which is padded for a norm; masks of a score are added twice."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.LayerNorm(8)
        mask = torch.zeros(6, 6)
        mask[:, 4:] = -100.0
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (self.left(x) + self.right(x.relu())).permute(0, 2, 3, 1)
        rows = self.norm(nn.functional.pad(y, (0, 0, 0, 1, 0, 1))).mean(1)
        weights = (rows @ rows.transpose(1, 2) + self.mask + self.mask).softmax(-1)
        z: torch.Tensor = weights @ rows
        return z


def test_sums_of_two_convolutions_and_padded_streams(vulkan: Device) -> None:
    model, x = quantized(Joined(), 2, 3, 5, 5)
    report = model.report()
    assert not report.float32, report
    assert "q8ta_conv2d (scaled_residual -> requantize_int16)" in report.int8
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), q8.Session(model, "reference")(x))


class Tokens(nn.Module):
    """A class token a hundredth as large as the patches beside it, which alone is read, as vision transformers do."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 12, 2, 2), nn.LayerNorm(12) if normed else nn.Identity()
        self.token = nn.Parameter(torch.randn(1, 1, 12) / 100)
        self.norm, self.up, self.down = nn.LayerNorm(12), nn.Linear(12, 8), nn.Linear(8, 12)
        with torch.no_grad():
            self.down.weight.mul_(0.01)
            self.down.bias.mul_(0.01)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.first(self.patches(x).flatten(2).transpose(1, 2))
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        y = y + self.down(self.up(self.norm(y)).relu())
        z: torch.Tensor = self.norm(y)[:, 0]
        return z


@pytest.mark.parametrize("normed", [False, True])
def test_a_class_token_keeps_its_size_beside_patches(normed: bool, vulkan: Device) -> None:
    torch.manual_seed(0)
    module = Tokens(normed)
    model, x = quantized(module, 2, 3, 6, 6)
    assert [model.graph.types[n.output].dtype for n in model.graph.nodes if n.op == "cat"] == [INT16X4]
    found, exact = q8.Session(model, "reference")(x), module(x).detach().numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > 30
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), found)


class Attended(Tokens):
    """What is computed of the class token alone is a hundredth as large as the patches beside it, and multiplied by
    channel, as class attention does."""

    def __init__(self) -> None:
        super().__init__(normed=True)
        self.factor = nn.Parameter(torch.rand(12) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1)
        normed = self.first(y)
        added = torch.cat([self.down(self.up(normed[:, :1]).relu()), normed[:, 1:]], 1)
        z: torch.Tensor = self.norm(y + self.factor * added)[:, 0]
        return z


def test_a_class_token_keeps_its_size_in_what_is_added() -> None:
    torch.manual_seed(0)
    module = Attended()
    model, x = quantized(module, 2, 3, 6, 6)
    assert [model.graph.types[n.output].dtype for n in model.graph.nodes if n.op == "cat"] == [INT16X4] * 2
    found, exact = q8.Session(model, "reference")(x), module(x).detach().numpy()
    assert 10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()) > 30


def test_an_addend_of_many_steps_saturates_with_the_result() -> None:
    """Where the other term is small the sum is past the result's range either way; else the sum stays in float32."""
    for scale, op in ((1e-7, "q16ta_add"), (30.0, "add")):
        graph = Graph(["a", "b"], ["y"])
        for name, q in (("a", QParams(0.5, 0, INT16X4)), ("b", QParams(scale, 0, INT16X4)), ("y", QParams(1e-5, 3))):
            graph.types[name] = TensorType((6,), q.dtype, q)
        graph.types |= dict.fromkeys(("a.real", "b.real", "sum"), TensorType((6,)))
        graph.nodes = [
            Node("dequantize", ("a",), "a.real"),
            Node("dequantize", ("b",), "b.real"),
            Node("add", ("a.real", "b.real"), "sum", {"alpha": 1.0}),
            Node("quantize", ("sum",), "y", {"lo": -128, "hi": 127}),
        ]
        fused = run_passes(graph)
        assert op in [node.op for node in fused.nodes]
        inputs = {"a": np.array([-32768, -1, 0, 0, 1, 32767], np.int16), "b": np.arange(-2, 4, dtype=np.int16)}
        np.testing.assert_array_equal(reference.run(fused, inputs)["y"], reference.run(graph, inputs)["y"])


def test_tables_of_int16_fold() -> None:
    """A function of a function is one table; a clamp at the same scale joins the range of a sum."""
    wide, narrow = QParams(2.0**-12, 0, INT16X4), QParams(2.0**-4, 3)
    steps: list[tuple[str, QParams | None]] = [
        ("dequantize", None),
        ("gelu", None),
        ("quantize", wide),
        ("dequantize", None),
        ("sigmoid", None),
        ("quantize", narrow),
    ]
    x = np.arange(-128, 128, dtype=np.int8)
    graph = Graph(["x"], types={"x": TensorType(x.shape, INT8X4, narrow)})
    _append(graph, "x", steps)
    found = run_passes(graph)
    assert [node.op for node in found.nodes] == ["q8ta_table"]
    assert graph.types[found.nodes[0].inputs[0]].q == narrow
    (y,) = graph.outputs
    np.testing.assert_array_equal(reference.run(found, {"x": x})[y], reference.run(graph, {"x": x})[y])

    graph = Graph(["x"], types={"x": TensorType(x.shape, INT8X4, narrow), "sum": TensorType(x.shape)})
    graph.types["real"] = TensorType(x.shape)
    graph.nodes = [Node("dequantize", ("x",), "real"), Node("add", ("real", "real"), "sum", {"alpha": 1.0})]
    _append(graph, "sum", [("quantize", wide), ("dequantize", None), ("relu", None), ("quantize", wide)])
    found = run_passes(graph)
    assert [(node.op, node.attrs["lo"], node.attrs["hi"]) for node in found.nodes] == [("q16ta_add", 0, 32767)]


@pytest.mark.parametrize("number", [-0.5, 1e30, -np.inf, np.nan])
def test_an_int16_tensor_with_elements_replaced_by_a_number(number: float) -> None:
    """In steps of the result; a number past its range is its end."""
    q, shape = QParams(2.0**-12, -300, INT16X4), (7,)
    graph = Graph(["mask", "x"])
    graph.types |= {"mask": TensorType(shape, INT8X4, QParams(1.0, 0)), "x": TensorType(shape, INT16X4, q)}
    graph.types |= dict.fromkeys(("held", "real", "filled"), TensorType(shape))
    graph.add_constant("number", np.array(number, np.float32))
    graph.nodes = [
        Node("dequantize", ("mask",), "held"),
        Node("dequantize", ("x",), "real"),
        Node("where", ("held", "number", "real"), "filled"),
    ]
    _append(graph, "filled", [("quantize", q)])
    found = run_passes(graph)
    assert [node.op for node in found.nodes] == ["q16ta_where"], found.notes
    inputs: dict[str, Array] = {
        "mask": np.array([0, 1, 0, 1, 0, 1, 0], np.int8),
        "x": np.array([-32768, -1, 0, 1, 300, 400, 32767], np.int16),
    }
    (y,) = graph.outputs
    np.testing.assert_array_equal(reference.run(found, inputs)[y], reference.run(graph, inputs)[y])


def _append(graph: Graph, last: str, steps: list[tuple[str, QParams | None]]) -> None:
    """Operators of one operand in a row, the last one's result the graph's output."""
    shape = graph.types[last].shape
    for index, (op, q) in enumerate(steps):
        name = f"v{index}"
        graph.types[name] = TensorType(shape, q.dtype, q) if q else TensorType(shape)
        graph.nodes.append(Node(op, (last,), name, dict(zip(("lo", "hi"), q.range, strict=True)) if q else {}))
        last = name
    graph.outputs = [last]


@pytest.mark.parametrize(("first", "result"), [(INT8X4, INT16X4), (INT16X4, INT16X4), (INT16X4, INT8X4)])
def test_operands_of_a_cat_take_its_scale_and_dtype(first: str, result: str, vulkan: Device) -> None:
    """Each operand by itself, before elements are moved; one that has both is moved as it is."""
    types = QParams(0.03, -5, first), QParams(0.0004, 0, result), QParams(0.0004, 0, result)
    graph = Graph([f"x{i}" for i in range(3)])
    for i, q in enumerate(types):
        graph.types |= {f"x{i}": TensorType((2, i + 3, 5), q.dtype, q), f"r{i}": TensorType((2, i + 3, 5))}
        graph.nodes.append(Node("dequantize", (f"x{i}",), f"r{i}"))
    graph.types["all"] = TensorType((2, 12, 5))
    graph.nodes.append(Node("cat", ("r0", "r1", "r2"), "all", {"dim": 1}))
    _append(graph, "all", [("quantize", types[1])])
    found = run_passes(graph)
    assert sorted(n.op for n in found.nodes) == ["cat", "q8ta_requantize"]
    inputs = {f"x{i}": op_graphs.extremes(op_graphs.rng(i), (2, i + 3, 5), q.dtype) for i, q in enumerate(types)}
    (y,) = graph.outputs
    expected = reference.run(found, inputs)[y]
    assert np.abs(expected.astype(int) - reference.run(graph, inputs)[y]).max() <= 1
    (run,) = harness.run_poisoned(found, inputs, None, vulkan)
    np.testing.assert_array_equal(run, expected)
