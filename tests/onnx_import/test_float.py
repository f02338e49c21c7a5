"""Float ONNX files are quantized as modules are, without torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.passes.plan.storage import INT8, INT16, SLICE, WHOLE
from q8ta_wgpu.quantization.ranges import Range, best_range
from testbed.harness import flat
from testbed.onnx.networks import NETWORKS, Net, inputs, quantized


def decibels(found: Array, expected: Array) -> float:
    return float(10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()))


def by_onnx_runtime(data: bytes, x: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, {"x": x})]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_network_is_quantized_whole(name: str) -> None:
    data, (x, *items) = NETWORKS[name]().SerializeToString(), inputs(name, 9)
    model = q8.quantize(data, calibration=items)
    report = model.report()
    assert not report.islands
    assert report.macs[0] == report.macs[1]
    found = flat(q8.Session(model, device="reference")(x))
    for y, expected in zip(found, by_onnx_runtime(data, x), strict=True):
        assert decibels(y, expected) > 30


def test_layers_that_read_one_value_are_all_in_int8() -> None:
    """Each adds a dimension to what it reads. These were one view of the first layer, and the second one, which then
    read what no layer of the file gives, stayed in float32."""
    net = Net((1, 4, 64))
    parts = [net.add("Conv", "x", net.weight(8, 4, 3)) for _ in range(2)]
    data = net.model(net.add("Mul", *parts)).SerializeToString()
    items = [np.random.default_rng(i).standard_normal((1, 4, 64)).astype(np.float32) for i in range(4)]
    report = q8.quantize(data, calibration=items).report()
    assert not report.islands
    assert report.macs[0] == report.macs[1]


def normed() -> onnx.ModelProto:
    """Factors and terms of channels behind a convolution and a linear, as exporters leave them."""
    net = Net((1, 3, 12, 12))
    parameters = [net.constant(np.abs(net.random.standard_normal(8)).astype(np.float32) + 0.1) for _ in range(4)]
    x = net.add("Relu", net.add("BatchNormalization", net.conv("x", 3, 8), *parameters))
    x = net.add("Mul", net.conv(x, 8, 8), net.constant(np.float32(0.3)))
    x = net.add("Add", x, net.weight(8, 1, 1))
    return net.model(net.linear(net.add("Flatten", net.add("GlobalAveragePool", x)), 8, 5))


def test_factors_and_terms_of_channels_are_part_of_the_sum_before_them() -> None:
    data = normed().SerializeToString()
    x, *items = (np.random.default_rng(i).standard_normal((1, 3, 12, 12)).astype(np.float32) for i in range(5))
    model = q8.quantize(data, calibration=items)
    assert [key for key in model.report().int8 if "linear" not in key] == [
        "q8ta_conv2d",
        "q8ta_adaptive_avg_pool2d",
        "view",
    ]
    assert decibels(q8.Session(model, device="reference")(x), by_onnx_runtime(data, x)[0]) > 30


def test_a_detectors_scores_keep_a_scale_of_their_own() -> None:
    """A Concat that is an output joins parts of very different sizes."""
    net = Net((1, 3, 8, 8))
    boxes, scores = net.add("Mul", net.conv("x", 3, 4), net.constant(np.float32(200))), net.conv("x", 3, 8)
    data = net.model(net.add("Concat", boxes, net.add("Sigmoid", scores), axis=1)).SerializeToString()
    x, *items = (np.random.default_rng(i).standard_normal((1, 3, 8, 8)).astype(np.float32) for i in range(9))
    found = q8.Session(q8.quantize(data, calibration=items), device="reference")(x)
    expected = by_onnx_runtime(data, x)[0]
    assert decibels(found[:, :4], expected[:, :4]) > 30
    assert decibels(found[:, 4:], expected[:, 4:]) > 30


def _scaled(size: float) -> bytes:
    net = Net((1, 3, 12, 12))
    x = net.add("Relu", net.add("Mul", net.conv("x", 3, 8), net.constant(np.float32(size))))
    data: bytes = net.model(net.add("Conv", x, net.weight(4, 8, 1, 1))).SerializeToString()
    return data


def test_small_values_keep_as_much_as_others() -> None:
    data = _scaled(1e-20)
    x, *items = (np.random.default_rng(i).standard_normal((1, 3, 12, 12)).astype(np.float32) for i in range(9))
    found = q8.Session(q8.quantize(data, calibration=items), device="reference")(x)
    assert decibels(found.astype(np.float64), by_onnx_runtime(data, x)[0].astype(np.float64)) > 30
    with pytest.raises(q8.InputError, match=r"is at most .* in the calibration, and float32 has no scale"):
        q8.quantize(_scaled(1e-38), calibration=items)


def test_elements_that_a_where_leaves_out_have_no_part_in_ranges() -> None:
    """The bools are computed behind the root, whose range waits for them."""
    net = Net((1, 3, 12, 12))
    before = net.conv("x", 3, 8)
    root = net.add("Sqrt", before)
    chosen = net.add("Where", net.add("Greater", before, net.constant(np.float32(0))), root, net.add("Neg", before))
    data = net.model(net.conv(chosen, 8, 4)).SerializeToString()
    x, *items = (np.random.default_rng(i).standard_normal((1, 3, 12, 12)).astype(np.float32) for i in range(5))
    model = q8.quantize(data, calibration=items)
    assert decibels(q8.Session(model, device="reference")(x), by_onnx_runtime(data, x)[0]) > 28


def test_values_that_onnx_runtime_computes_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    data, items = NETWORKS["depthwise"]().SerializeToString(), inputs("depthwise", 3)
    with_it = q8.quantize(data, calibration=items)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    without = q8.quantize(data, calibration=items)
    assert "its ranges were measured by ONNX Runtime" in str(with_it.report())
    assert "its ranges were measured by the reference" in str(without.report())
    pairs = [(with_it.graph.types[n].q, without.graph.types[n].q) for n in with_it.graph.types]
    for a, b in pairs:
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            np.testing.assert_allclose((a.scale, a.zero), (b.scale, b.zero), rtol=1e-2, atol=1)


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("the calibration is empty", {"calibration": []}),
        ("'x' must have shape", {"calibration": [np.zeros((1, 3, 5, 5), np.float32)]}),
        ("leads to NaN or an infinity at x", {"calibration": [np.full((1, 16, 24, 24), np.nan, np.float32)]}),
        ("residual must be 'int16' or 'int8', found 'int4'", {"residual": "int4"}),
        ("quantizer is for modules", {"quantizer": q8.Quantizer()}),
        ("example_inputs are those of a module", {"example_inputs": ()}),
        ("fit_weights", {"fit_weights": 1}),
        ("unsupported is for modules", {"unsupported": "torch"}),
        ("sizes name 'batch', but the file leaves none open", {"sizes": {"batch": 1}}),
        ("must be an iterable of inputs, found NoneType", {"calibration": None}),
        ("must be an iterable of inputs, found ndarray", {"calibration": np.zeros((1, 16, 24, 24), np.float32)}),
    ],
)
def test_what_is_wrong_is_an_input_error(problem: str, given: dict[str, Any]) -> None:
    with pytest.raises(q8.InputError, match=problem):
        q8.quantize(NETWORKS["single"]().SerializeToString(), **given)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_refused(bad: float) -> None:
    """Its integers were whatever numpy made of NaN."""
    net = Net((2, 8))
    y = net.add("MatMul", "x", net.constant(np.full((8, 4), bad, np.float32)))
    with pytest.raises(q8.InputError, match=r"the value .* has a weight or bias with NaN or an infinity: train again"):
        q8.quantize(net.model(y).SerializeToString(), calibration=[np.ones((2, 8), np.float32)])


def test_a_quantized_file_is_not_quantized_again() -> None:
    with pytest.raises(q8.UnsupportedError, match=r"quantized already.*from_onnx"):
        q8.quantize(quantized("single", "QDQ", "s8s8"), calibration=inputs("single", 1))


def test_zeros_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="zero"):
        q8.quantize(NETWORKS["single"]().SerializeToString(), calibration=[np.zeros((1, 16, 24, 24), np.float32)])


def test_ranges_are_those_of_all_values_however_they_come() -> None:
    """And hold what was met: int16 with room, whole numbers as they are, slices about zero."""
    random = np.random.default_rng(0)
    items = [random.standard_normal(1000).astype(np.float32) * np.float32(k + 1) for k in range(4)]
    met = Range("int8")
    for item in items:
        met.meet(item)
    at_once = Range("int8")
    at_once.meet(np.concatenate(items))
    assert abs(met.stored(INT8).scale / at_once.stored(INT8).scale - 1) < 0.05
    largest = max(float(np.abs(item).max()) for item in items)
    assert 2 <= met.stored(INT16).scale / (largest / 32767.5) < 2.5
    assert met.stored(SLICE).zero == 0
    whole = Range(WHOLE)
    whole.meet(np.arange(-3, 9, dtype=np.float32))
    assert whole.stored(WHOLE).scale == 1.0


@pytest.mark.parametrize("law", ["laplace", "normal", "standard_cauchy"])
def test_a_range_has_the_least_squared_error(law: str) -> None:
    """Of 64 low and 64 high ends, for values that 4 bits must clip."""
    x, steps = getattr(np.random.default_rng(0), law)(size=20_000), 15
    counts, edges = np.histogram(x, 2048, (low := float(x.min()), high := float(x.max())))
    middles = (edges[1:] + edges[:-1]) / 2

    def error(low: float, high: float) -> float:
        step = (high - low) / steps
        zero = np.rint(low / step)
        rounded = np.clip(np.rint(middles / step), zero, zero + steps) * step
        return float(counts @ np.square(rounded - middles))

    others = [error(low * i / 64, high * j / 64) for i in range(1, 65) for j in range(1, 65)]
    assert error(*best_range(counts.astype(np.float64), low, high, steps)) < 1.001 * min(others)


def test_few_small_inputs_leave_room_for_others() -> None:
    """As in a torch module: of 32 inputs the next one reaches further once in 33 times."""
    random = np.random.default_rng(0)
    given, others = (random.standard_normal((n, 16)).astype(np.float32) for n in (32, 4000))
    given, others = (x * np.abs(x).mean(1, keepdims=True) for x in (given, others))
    met, one_item = Range("int8"), Range("int8")
    for x in given:
        met.meet(x)
        met.peaks.end_item()
        one_item.meet(x)

    def error(found: Range) -> float:
        q = found.stored(INT8)
        rounded = (np.clip(np.rint(others / q.scale) + q.zero, -128, 127) - q.zero) * q.scale
        return float(np.square(rounded - others).mean())

    assert error(met) < 0.8 * error(one_item)
