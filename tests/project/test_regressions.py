"""Defects found by review, each with the smallest module or graph that showed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Attrs, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.op import Case
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs
from testbed.harness import stages_of


class Net(nn.Module):
    """A function of submodules and parameters as a module."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _float(module: nn.Module, x: Tensor) -> tuple[q8.Model, Any, Any]:
    """The float module compiled, its result by the reference, and torch's."""
    model = q8.compile(torch.export.export(module.eval(), (x,)))
    with torch.no_grad():
        return model, q8.Session(model, "reference")(x), module(x)


def _int8(module: nn.Module, x: Tensor) -> q8.Model:
    return q8.compile(
        q8.quantize(module.eval(), (x,), calibration=[x], quantizer=q8.Quantizer(precision="int8"), progress=False)
    )


@pytest.mark.parametrize("outputs", [8, 6])
def test_batch_norm_over_dimension_1_of_a_linear_is_not_folded_into_its_outputs(outputs: int) -> None:
    norm = nn.BatchNorm1d(8).eval()
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.normal_(norm.bias)
    module = nn.Sequential(nn.Linear(5, outputs), norm)
    _, found, expected = _float(module, torch.randn(3, 8, 5))
    assert np.allclose(found, expected, atol=1e-5)


def test_the_last_of_two_clamps_that_do_not_overlap_wins() -> None:
    """x + u -> clamp(0.5, 6) -> clamp(-3, 0.1) is 0.1 everywhere."""
    q = QParams(0.1, 0)
    graph = Graph(inputs=["x"], outputs=["y"])
    whole = {"lo": -128, "hi": 127}
    calls: list[tuple[str, tuple[str, ...], str, Attrs]] = [
        ("quantize", ("x",), "x.int8", whole),
        ("quantize", ("x",), "u.int8", {"lo": -128, "hi": 100}),
        ("dequantize", ("x.int8",), "x.real", {}),
        ("dequantize", ("u.int8",), "u.real", {}),
        ("add", ("x.real", "u.real"), "sum", {"alpha": 1.0}),
        ("clamp", ("sum",), "first", {"min": 0.5, "max": 6.0}),
        ("clamp", ("first",), "second", {"min": -3.0, "max": 0.1}),
        ("quantize", ("second",), "y.int8", whole),
        ("dequantize", ("y.int8",), "y", {}),
    ]
    graph.nodes = [Node(*call) for call in calls]
    for name in ("x", *(node.output for node in graph.nodes)):
        graph.types[name] = TensorType((1, 4), INT8X4, q) if name.endswith(".int8") else TensorType((1, 4))
    x = np.array([[-9.0, 0.3, 2.0, 9.0]], np.float32)
    expected = reference.run(graph, {"x": x})["y"]
    assert np.array_equal(expected, np.full((1, 4), 0.1, np.float32))
    fused = run_passes(graph)
    assert [node.op for node in fused.nodes] == ["quantize", "quantize", "q8ta_add", "dequantize"]
    assert np.array_equal(reference.run(fused, {"x": x})["y"], expected)


def test_a_chain_of_clamps_joins_the_convolution() -> None:
    module = Net(lambda s, x: F.hardtanh(F.relu(s.conv(x)), -1.0, 0.4), conv=nn.Conv2d(4, 4, 3))
    assert _int8(module, torch.randn(1, 4, 6, 5)).report().int8 == {"q8ta_conv2d (requantize -> dequantize)": 1}


def test_a_linear_before_a_pixel_shuffle(vulkan: Device) -> None:
    """A linear's channels are innermost, so a pixel_shuffle cannot join its store."""
    module = nn.Sequential(nn.Linear(8, 8), nn.PixelShuffle(2))
    x = torch.randn(1, 4, 2, 8)
    model = _int8(module, x)
    assert [stages_of(node) for node in model.graph.nodes] == ["", "scale", ""]
    expected = q8.Session(model, "reference")(x)
    np.testing.assert_array_equal(q8.Session(model, vulkan)(x), expected)


def test_a_value_repeated_by_cat_is_expanded() -> None:
    module = Net(lambda s, x: s.conv(x) + torch.cat([x] * 9, 1), conv=nn.Conv2d(1, 9, 3, padding=1))
    model = _int8(module, torch.randn(2, 1, 6, 5))
    assert [node.op for node in model.graph.nodes] == ["quantize", "expand", "q8ta_conv2d"]
    assert stages_of(model.graph.nodes[-1]) == "residual requantize dequantize"


def test_a_module_applied_twice_has_its_weights_once() -> None:
    module = Net(lambda s, x: (s.conv(x), s.conv(s.conv(x)), s.conv(x[:, :, :5])), conv=nn.Conv2d(4, 4, 3, padding=1))
    graph = _int8(module, torch.randn(1, 4, 6, 6)).graph
    weights = [array for name, array in graph.constants.items() if graph.types[name].dtype == "int8"]
    assert [array.shape for array in weights if array.ndim == 4] == [(4, 4, 3, 3)]


def test_a_constant_without_dimensions_keeps_its_shape() -> None:
    module = Net(lambda s, x: (x * s.k.exp(), s.k.exp()), k=nn.Parameter(torch.tensor(0.3)))
    _, found, expected = _float(module, torch.randn(2, 3))
    assert found[1].shape == ()
    assert all(np.allclose(f, e.detach()) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "function",
    [lambda s, x: s.k * x, lambda s, x: s.k + x, lambda s, x: s.k - x, lambda s, x: torch.sub(s.k, x, alpha=3)],
)
def test_a_number_on_the_left_is_a_table(function: Callable[..., Tensor]) -> None:
    module = Net(function, k=nn.Parameter(torch.tensor([0.7])))
    x = torch.randn(2, 3, 4)
    _, found, expected = _float(module, x)
    assert np.allclose(found, expected.detach(), atol=1e-6)
    assert _int8(module, x).report().int8 == {"q8ta_table": 1}


def test_a_mean_of_a_scalar() -> None:
    _, found, expected = _float(Net(lambda s, x: x.sum().mean(dim=0)), torch.randn(2, 3))
    assert np.allclose(found, expected)


def test_hundreds_of_matrix_products_in_a_row() -> None:
    weight = nn.Parameter(torch.eye(5))
    module = Net(lambda s, x: [x := (x @ s.weight).relu() for _ in range(600)][-1], weight=weight)
    _, found, expected = _float(module, torch.randn(3, 5))
    assert np.allclose(found, expected.detach())


def test_a_weight_computed_from_parameters() -> None:
    """Quantized or not, what follows from parameters alone is a constant in the end."""
    module = Net(lambda s, x: F.conv2d(x, s.w * 2), w=nn.Parameter(torch.randn(4, 4, 3, 3)))
    x = torch.randn(1, 4, 6, 5)
    exported = q8.quantize(
        module.eval(), (x,), calibration=[x], quantizer=q8.Quantizer(precision="int8"), progress=False
    )
    found = q8.Session(q8.compile(exported), "reference")(x)
    with torch.no_grad():
        assert np.allclose(found, exported.module()(x), atol=0.05)


def test_a_weight_computed_from_inputs_is_refused_by_name() -> None:
    with pytest.raises(q8.UnsupportedError, match=r"aten.conv2d.default.*its weight must follow from parameters alone"):
        q8.compile(torch.export.export(Net(lambda s, x: F.conv2d(x, x)), (torch.randn(1, 4, 6, 5),)))


def test_what_is_no_aten_operator_is_refused() -> None:
    module = Net(lambda s, x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)))
    with pytest.raises(q8.UnsupportedError, match=r"cond.*not supported"):
        q8.compile(torch.export.export(module, (torch.randn(2, 3),)))


def test_outputs_that_are_no_tensors_are_refused() -> None:
    x = torch.randn(2, 3)
    with pytest.raises(q8.UnsupportedError, match="an output is 3"):
        q8.compile(torch.export.export(Net(lambda s, x: (x + 1, 3)), (x,)))
    with pytest.raises(q8.UnsupportedError, match="must be strings, found 0"):
        q8.compile(torch.export.export(Net(lambda s, x: {0: x + 1}), (x,)))


def test_a_dynamic_batch_may_shape_views() -> None:
    batch = torch.export.Dim("batch", min=1, max=16)
    x = torch.randn(2, 4, 5)
    program = torch.export.export(Net(lambda s, x: x.view(x.shape[0], -1) + 1), (x,), dynamic_shapes={"x": {0: batch}})
    model = q8.compile(program).reshape((3, 4, 5))
    assert q8.Session(model, "reference")(np.zeros((3, 4, 5), np.float32)).shape == (3, 20)


def test_a_dynamic_batch_as_a_number_follows_the_batch() -> None:
    batch, module = torch.export.Dim("batch", min=1, max=16), Net(lambda s, x: x + x.shape[0])
    program = torch.export.export(module, (torch.randn(2, 4),), dynamic_shapes={"x": {0: batch}})
    session = q8.Session(q8.compile(program), "reference")
    for size in (1, 3, 16):
        x = torch.randn(size, 4)
        np.testing.assert_array_equal(session(x), module(x))


def test_bad_arguments_of_quantize_are_named() -> None:
    module, x = nn.Conv2d(4, 4, 3).eval(), torch.randn(1, 4, 6, 5)
    bad: Any = x
    with pytest.raises(q8.InputError, match=r"found Tensor: write \(x,\)"):
        q8.quantize(module, bad, calibration=[x])
    bad = (x.numpy(),)
    with pytest.raises(q8.InputError, match=r"found .*ndarray"):
        q8.quantize(module, bad, calibration=[x])
    bad = None
    with pytest.raises(q8.InputError, match="calibration must be an iterable"):
        q8.quantize(module, (x,), calibration=bad)


def test_reshape_takes_any_integers_and_names_what_is_none() -> None:
    model, _, _ = _float(nn.Conv2d(4, 4, 3), torch.randn(1, 4, 6, 5))
    sizes: Any = tuple(np.array([1, 4, 9, 8]))
    assert [t.shape for t in model.reshape(sizes).inputs.values()] == [(1, 4, 9, 8)]
    with pytest.raises(q8.InputError, match="must be a tuple of integers, found 7"):
        model.reshape(7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pad", "fits"),
    [((-5, 3), True), ((-4, 9), True), ((-3, -1), True), ((-6, 8), False), ((7, -6), False), ((-3, -2), False)],
)
def test_a_negative_pad_takes_no_more_than_there_is(pad: tuple[int, int], fits: bool) -> None:
    x = torch.arange(10.0).reshape(2, 5)
    types, attrs = (TensorType((2, 5)),), {"padding": (0, 0, *pad), "value": 9.0}
    if not fits:
        with pytest.raises(GraphError, match="cuts more than there is"):
            OPS["pad"].check(types, attrs)
        return
    _, found, expected = _float(Net(lambda _, x: F.pad(x, pad, value=9.0)), x)
    np.testing.assert_array_equal(found, expected)


def test_pad_of_an_int8_scalar(vulkan: Device) -> None:
    """A model file may hold it: the kernel for 4C asked for rows and columns that it has not."""
    graph, inputs = op_graphs.int8_only_graph(OPS["pad"], Case(((),), {"padding": (), "value": 1.0}))
    for name, plan in harness.plans(graph, 0):
        (found,) = harness.run_poisoned(graph, inputs, plan, vulkan)
        np.testing.assert_array_equal(found, inputs["x"], err_msg=name)


@pytest.mark.usefixtures("caches")
def test_a_tuned_network_of_cats_and_slices_keeps_its_bytes(vulkan: Device) -> None:
    """Their kernels differ by layout alone: a plan that meant one and ran another gave 6,090 wrong values of 6,144."""

    def forward(net: Any, x: Tensor) -> Tensor:
        fine = F.relu(net.first(x))
        coarse = F.relu(net.second(F.max_pool2d(fine, 2)))
        both = torch.cat((fine, F.interpolate(coarse, scale_factor=2.0)), 1)
        joined = net.third(F.max_pool2d(both, 3, 1, 1))  # a convolution would read the parts of a cat in place
        left, right = joined[:, :16], joined[:, 16:]
        return torch.cat((left, right[:, :8], left[:, 8:]), 1)

    torch.manual_seed(0)
    layers = {"first": (4, 16), "second": (16, 32), "third": (48, 32)}
    parts = {name: nn.Conv2d(*channels, 3, padding=1) for name, channels in layers.items()}
    x = torch.randn(1, 4, 16, 12)
    model = _int8(Net(forward, **parts), x)
    expected = q8.Session(model, "reference")(x)
    with q8.Session(model, vulkan, tune=True) as session:
        assert any(dispatch.kernel == "cat.runs_4C" for dispatch in session.program.dispatches)
        assert int((session(x) != expected).sum()) == 0


def test_equal_linears_of_one_value_are_summed_in_one_dispatch() -> None:
    twin = nn.Linear(5, 5)
    module = Net(lambda s, x: s.a(x) + s.b(x), a=twin, b=nn.Linear(5, 5))
    module.b.load_state_dict(twin.state_dict())  # type: ignore[union-attr]
    report = _int8(module, torch.randn(2, 6, 5)).report()
    assert report.int8 == {"q8ta_linear": 1, "q8ta_linear (residual -> requantize -> dequantize)": 1}, report


def test_a_constant_times_an_activation_is_a_linear_of_it_turned() -> None:
    module = Net(lambda s, x: torch.relu(s.w @ x).sum(2), w=nn.Parameter(torch.randn(4, 6)))
    x = torch.randn(2, 6, 5)
    assert "q8ta_linear" in _int8(module, x).report().int8
    _, found, expected = _float(module, x)
    assert np.allclose(found, expected, atol=1e-5)


def test_an_eps_of_many_steps_leaves_a_norm_in_int8() -> None:
    module = Net(lambda s, x: s.norm(x + s.shift), norm=nn.LayerNorm(144), shift=nn.Parameter(torch.zeros(144)))
    model = _int8(module, torch.randn(2, 3, 144) * 1e-6)
    assert not model.report().float32, model.report()


def test_buffers_that_a_forward_sets_anew_are_put_back() -> None:
    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return x * 2

    module = Counting().eval()
    calls = module.calls
    q8.quantize(module, (torch.ones(2),), [torch.ones(2)], progress=False)
    assert module.calls is calls
    assert calls == 0


def test_a_convolution_that_shares_a_scale_with_what_it_reads_is_int8() -> None:
    """It was taken for a move, since both are joined, and stayed in float32 where no weighted sum reads the joined."""

    def forward(net: Any, x: Tensor) -> Tensor:
        first = net.first(x)
        joined: Tensor = torch.cat((first, net.cheap(first)), 1) + net.last(F.relu(x))
        return joined

    cheap = nn.Conv2d(8, 8, 3, padding=1, groups=8)
    report = _int8(
        Net(forward, first=nn.Conv2d(8, 8, 1), cheap=cheap, last=nn.Conv2d(8, 16, 1)), torch.randn(1, 8, 8, 8)
    ).report()
    assert not report.float32
