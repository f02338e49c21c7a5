"""Activations as piecewise linear integer curves, against float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import Elementwise, QuantizedCall
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue import curve, magic_rounding
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import StageContext
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Curve
from q8ta_wgpu.kernels.epilogue.sum_rounding import Rounding, rounding
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.device import Device
from testbed import harness

NAMES = ("silu", "gelu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "mish")


def _function(name: str) -> Callable[[Array], Array]:
    kind = OPS[name].int8
    assert isinstance(kind, Elementwise)
    return lambda x: kind.function(x, {})


FUNCTIONS = {name: _function(name) for name in NAMES}
FUNCTIONS["leaky_relu"] = lambda x: np.where(x < 0, 0.01 * x, x)
FUNCTIONS["eighth"] = lambda x: x / 8
FUNCTIONS["abs"] = np.abs


def _steps(found: curve.Curve, x: Array) -> Array:
    """The curve at real numbers, in steps of an int8 result."""
    by_addition = found.allows_additions
    v = np.rint((x - found.low) * found.steps(by_addition)).astype(np.int64)
    bits = curve.fraction(len(found.knots) - 1, by_addition)
    return curve.evaluate(v, found.knots, bits) / 2.0**arithmetic.FRACTION


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("out", [QParams(0.004, -100), QParams(0.05, 3), QParams(0.4, -128)])
def test_within_rounding_of_the_function(name: str, out: QParams) -> None:
    """Everywhere, also far outside the curve's interval: within 2^-9 of an output step."""
    found = curve.fit(FUNCTIONS[name], out, -128, 127)
    assert found is not None
    x = np.random.default_rng(1).normal(0, 1, 20000) * np.repeat([0.1, 1, 10, 1000], 5000)
    steps = _steps(found, x)
    bounds = -128 - out.zero, 127 - out.zero
    exact = FUNCTIONS[name](x) / out.scale
    assert np.abs(np.clip(steps, *bounds) - np.clip(exact, *bounds)).max() <= 2**-9


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("scale", [3e-5, 2.5e-4, 3e-3])
@pytest.mark.parametrize("zero", [-32768, 0])
def test_int16_within_rounding_of_the_function(name: str, scale: float, zero: int) -> None:
    """Within 2^-6 of an output step, a position being a product in float32."""
    out = QParams(scale, zero, INT16X4)
    found = curve.fit(FUNCTIONS[name], out, *out.range, farthest=50000 * scale)
    assert found is not None
    acc = np.random.default_rng(1).integers(-350000, 350000, 20000)
    fractions = found.steps(False)
    t = np.rint(acc.astype(np.float32) * np.float32(scale / 7 * fractions))
    v = t.astype(np.int64) + int(np.rint(-found.low * fractions))
    steps = curve.evaluate(v, found.knots, arithmetic.FRACTION) / 2.0**arithmetic.INT16_FRACTION
    bounds = out.range[0] - zero, out.range[1] - zero
    exact = FUNCTIONS[name](acc * (scale / 7)) / scale
    assert np.abs(np.clip(steps, *bounds) - np.clip(exact, *bounds)).max() <= 2**-6


@pytest.mark.parametrize("name", ["silu", "mish", "gelu"])
@pytest.mark.parametrize(
    ("out", "reached", "near"),
    [
        (QParams(0.01, 0), 20.0, 2**-9),
        (QParams(0.0003, 0), 20.0, 2**-9),
        (QParams(0.0001, 100), 20.0, 2**-9),
        (QParams(0.00003, 0, INT16X4), 3.0, 2**-6),
    ],
)
def test_sums_have_fractions_of_a_segment_enough(name: str, out: QParams, reached: float, near: float) -> None:
    """Sums that reach far beyond the result's range have long curves. Additions round sums of few fractions only."""
    call = QuantizedCall({}, (), (), {}, out, *out.range, activation=FUNCTIONS[name])
    scale = reached / 2**23
    found = rounding(call, out, np.array([scale]), np.zeros(1), reached)
    assert isinstance(found, Rounding)
    bend, knots = found.epilogue.stages[0], found.operands[0]
    assert isinstance(knots, np.ndarray)
    acc = np.random.default_rng(1).integers(-(2**23), 2**23, 200000)
    sums = bend.start(acc, found.multiplier, found.offset)
    values = bend.apply(sums, StageContext(out.zero, array=knots)) / 2.0 ** arithmetic.fraction(out.dtype)
    bounds = out.range[0] - out.zero, out.range[1] - out.zero
    exact = FUNCTIONS[name](acc * scale) / out.scale
    assert np.abs(np.clip(values, *bounds) - np.clip(exact, *bounds)).max() <= near


def test_an_int16_result_too_bent_for_its_segments_is_refused() -> None:
    out = QParams(3.0, 0, INT16X4)
    assert curve.fit(FUNCTIONS["hardswish"], out, *out.range, farthest=1e5) is None
    assert curve.fit(FUNCTIONS["hardswish"], QParams(800.0, 0), -128, 127, farthest=1e5) is not None


@pytest.mark.parametrize(
    ("name", "most"), [("hardswish", 600), ("hardsigmoid", 50), ("leaky_relu", 400), ("silu", 1300), ("gelu", 1400)]
)
@pytest.mark.parametrize("out", [QParams(0.0227, -111), QParams(0.02, -110)])
def test_corners_are_knots(name: str, most: int, out: QParams) -> None:
    """No segment is shorter than its chord asks for: a corner between two knots would take 16,384."""
    found = curve.fit(FUNCTIONS[name], out, -128, 127)
    assert found is not None and len(found.knots) <= most


@pytest.mark.parametrize("name", ["hardswish", "silu", "gelu"])
@pytest.mark.parametrize("zero", [-128, 0, 127])
def test_tiny_values(name: str, zero: int) -> None:
    """Of a network whose values are tiny only what its sums reach counts: the rest is too steep for its scale."""
    out = QParams(2e-6, zero)
    assert name != "hardswish" or curve.fit(FUNCTIONS[name], out, -128, 127) is None
    found = curve.fit(FUNCTIONS[name], out, -128, 127, farthest=0.01)
    assert found is not None and found.low >= -0.01 - found.step
    x = np.linspace(-0.01, 0.01, 20001)
    steps = _steps(found, x)
    bounds = -128 - zero, 127 - zero
    exact = FUNCTIONS[name](x) / out.scale
    assert np.abs(np.clip(steps, *bounds) - np.clip(exact, *bounds)).max() <= 2**-9


def test_every_curve_fits_the_interval_in_which_sums_round_by_addition() -> None:
    """The fractions of all its segments do, and no more than 14 bits or twice the segments would."""
    for segments in range(1, curve.MOST_SEGMENTS + 1):
        bits = curve.fraction(segments, by_addition=True)
        assert (segments << bits) + 2 * curve.MARGIN <= magic_rounding.WIDEST
        assert bits == arithmetic.FRACTION or (segments << bits + 1) + 2 * curve.MARGIN > magic_rounding.WIDEST


def test_sums_that_are_always_zero_have_a_curve() -> None:
    assert curve.fit(FUNCTIONS["silu"], QParams(0.1, 0), -128, 127, farthest=0.0) is not None


def test_a_function_too_steep_is_refused() -> None:
    assert curve.fit(lambda x: np.sign(x) * 1e6, QParams(1e-6, 0), -128, 127) is None


@pytest.mark.parametrize(
    "knots", [np.zeros(1), np.zeros(2**14 + 2), np.zeros((2, 2)), np.full(1025, 2**28), np.arange(1025) * 2**18]
)
def test_knots_of_a_file_are_checked(knots: Array) -> None:
    assert curve.valid(knots.astype(np.int32))


@pytest.mark.parametrize("end", ["first", "last"])
def test_sums_at_the_ends_of_a_curve(end: str, device: Device) -> None:
    """Sums of large terms that lie up to 200 fractions of a segment before or behind an end: 0 mismatches. float32
    rounds the interval that such a channel is clamped to by up to 64."""
    steep, segments, tie = curve.STEEPEST - 1, 40, 2 ** (arithmetic.FRACTION - 1)
    at_end = 0 if end == "first" else segments * steep - (steep >> arithmetic.FRACTION) - 2
    knots = (np.arange(segments + 1) * steep + tie - at_end).astype(np.int32)
    beyond = np.arange(-200, 201, 2)
    target = beyond + (0 if end == "first" else segments << curve.fraction(segments, by_addition=True))
    weight = np.full((len(beyond), 16), 127, np.int8)
    sign = np.where(np.arange(len(beyond)) % 2, 1, -1)
    multiplier, sums = (8192.0 * sign).astype(np.float32), 16 * 127 * 16
    graph = Graph(["x"], ["y"])
    graph.types["x"] = TensorType((9, 16), INT8X4, QParams(0.02, 0))
    graph.types["y"] = TensorType((9, len(beyond)), INT8X4, QParams(0.02, 0))
    offset = (target - sums * 8192 * sign).astype(np.int32)
    constants = (weight, multiplier, offset, np.zeros(len(beyond), np.int32), knots)
    names = [graph.add_constant(f"c{i}", array) for i, array in enumerate(constants)]
    attrs = {"epilogue": Epilogue((Curve(by_addition=True), Requantize(-128, 127)))}
    graph.nodes.append(Node("q8ta_linear", ("x", *names), "y", attrs))
    inputs = {"x": np.full((9, 16), 16, np.int8)}
    expected = reference.run(graph, inputs)["y"]
    assert set(np.unique(expected)) == {0, 1}  # it rises at the end itself, behind a tie
    for name, plan in [*harness.plans(graph, 0)][::4]:
        (result,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(result, expected, err_msg=name)
