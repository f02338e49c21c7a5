"""Attention and norms in int8: how near their integers are to exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASKED, QuantizedCall, Rowwise
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention import attention
from q8ta_wgpu.kernels.attention.sizes import STRIDES
from q8ta_wgpu.kernels.norm import integers
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import attention_graphs, harness, op_graphs

STEP_ELEMENTS = 60_000
"""Elements compared of each length of a row."""


def int8_result(op: str, x: Array, q: QParams, attrs: dict[str, object], out: QParams, *parameters: Array) -> Array:
    """The int8 form of a float operator, by its reference."""
    kind = OPS[op].int8
    assert isinstance(kind, Rowwise)
    types = (TensorType(x.shape), *(TensorType(p.shape) for p in parameters))
    none = (None,) * len(parameters)
    form = kind.lower(QuantizedCall(attrs, types, (q, *none), dict(enumerate(parameters, 1)), out))
    constants = [array for array in form.operands if isinstance(array, np.ndarray)]
    inputs = (TensorType(x.shape, INT8X4, q), *(TensorType(a.shape, str(a.dtype)) for a in constants))
    call = Call(form.op, form.attrs, inputs, TensorType(x.shape, INT8X4, out))
    found: Array = OPS[form.op].reference(call, [x, *constants])
    return found


def apart(found: Array, real: Array, out: QParams) -> Array:
    """Steps between int8 values and the correctly rounded ones of real numbers."""
    exact = np.clip(np.rint(real / out.scale) + out.zero, *out.range)
    steps: Array = np.abs(found.astype(np.int64) - exact)
    return steps


@pytest.mark.parametrize("length", [32, 96, 192, 384, 768, 1024])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_are_the_rounded_exact_ones(op: str, length: int) -> None:
    """At most a step apart, 99.9 % equal; a few channels are large, as in residual streams."""
    g = np.random.default_rng(length)
    real = g.normal(0, 1, (STEP_ELEMENTS // length, length)) + g.normal(0, 0.5, (STEP_ELEMENTS // length, 1))
    real[:, :4] *= 8
    q = QParams(float(np.abs(real).max() / 120), 7)
    x = np.clip(np.rint(real / q.scale) + q.zero, -128, 127).astype(np.int8)
    gamma, beta = (g.uniform(0.5, 1.5, length).astype(np.float32), g.normal(0, 0.3, length).astype(np.float32))
    v = (x.astype(np.float64) - q.zero) * q.scale
    v -= v.mean(1, keepdims=True) if op == "layer_norm" else 0.0
    exact = v / np.sqrt((v**2).mean(1, keepdims=True) + 1e-6) * gamma + (beta if op == "layer_norm" else 0.0)
    out = QParams(float(np.abs(exact).max() / 140), -3)
    parameters = (gamma, beta) if op == "layer_norm" else (gamma,)
    steps = apart(int8_result(op, x, q, {"eps": 1e-6}, out, *parameters), exact, out)
    assert steps.max() <= 1
    assert (steps == 0).mean() >= 0.999


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 10.0])
def test_a_row_of_equal_elements_is_its_beta(eps: float) -> None:
    x = np.repeat(np.array([[-128], [5], [127]], np.int8), 48, axis=1)
    beta = np.linspace(-1, 1, 48).astype(np.float32)
    out = QParams(1 / 64, 0)
    found = int8_result("layer_norm", x, QParams(0.1, 5), {"eps": eps}, out, np.ones(48, np.float32), beta)
    np.testing.assert_array_equal(found, np.tile(np.rint(beta * 64), (3, 1)))


def test_inverse_roots_have_28_bits() -> None:
    g = np.random.default_rng(0)
    powers = [2**k + d for k in range(3, 63) for d in (-1, 0, 1)]
    v = np.concatenate([np.arange(5000), (2.0 ** g.uniform(0, 62.9, 20_000)).astype(np.uint64), powers]).astype(
        np.uint64
    )
    factor, shift = integers.inverse_root(v)
    assert factor.max() < 1 << 31
    exact = np.sqrt(np.maximum(v, 1).astype(np.float64))
    assert np.abs(factor * exact / 2.0**shift - 1).max() < 2.0**-28


@pytest.mark.parametrize("length", [49, 197, 1024])
def test_softmax_is_the_rounded_exact_one(length: int) -> None:
    """At most a step apart, 99.999 % equal: flat rows and peaked ones."""
    g = np.random.default_rng(length)
    rows = STEP_ELEMENTS // length
    x = np.clip(np.rint(g.normal(0, 40, (rows, length)) * g.uniform(0.05, 1.5, (rows, 1))), -128, 127).astype(np.int8)
    q, out = QParams(0.05, -9), QParams(1 / 256, -128)
    exact = np.exp((x.astype(np.float64) - x.max(1, keepdims=True)) * q.scale)
    steps = apart(int8_result("softmax", x, q, {"dim": 1}, out), exact / exact.sum(1, keepdims=True), out)
    assert steps.max() <= 1
    assert (steps == 0).mean() >= 0.9999


@pytest.mark.parametrize(
    ("keys", "spread", "noise"),
    [
        (5, 0.5, 0.6),
        (49, 0.5, 0.46),
        (197, 0.5, 0.44),
        (1024, 0.5, 0.42),
        (49, 3.0, 0.46),
        (197, 3.0, 0.6),
        (1024, 3.0, 1.1),
    ],
)
def test_attention_is_near_the_exact_one(keys: int, spread: float, noise: float) -> None:
    """Of float64, in steps of a result that fills int8: to round that alone makes a noise of 0.29. With scores that are
    normal numbers times `spread`, weights of eight bits add most where many keys have little each."""
    g = np.random.default_rng(keys)
    queries = STEP_ELEMENTS // keys // 8
    arrays = [g.integers(-128, 128, (1, 2, n, 16), dtype=np.int8) for n in (queries, keys, keys)]
    q, k, v = (QParams(scale, zero) for scale, zero in ((0.02, -5), (0.03, 7), (0.05, 11)))
    bias = g.normal(0, spread, (1, 1, 1, keys))
    real = [(a.astype(np.float64) - t.zero) * t.scale for a, t in zip(arrays, (q, k, v), strict=True)]
    factor = spread / float((real[0] @ np.swapaxes(real[1], -1, -2)).std())
    scores = real[0] @ np.swapaxes(real[1], -1, -2) * factor + bias
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    exact = powers / powers.sum(-1, keepdims=True) @ real[2]
    out = QParams(float(np.abs(exact).max() / 120), -3)
    steps = attention.bias_of(bias)
    assert steps is not None
    constants = (attention.powers(), steps)
    inputs = (
        *(TensorType(a.shape, INT8X4, t) for a, t in zip(arrays, (q, k, v), strict=True)),
        *(TensorType(c.shape, str(c.dtype)) for c in constants),
    )
    rounding = attention.rounding(q, k, v, factor, out)
    assert rounding is not None
    attrs = {**rounding, "even": False, "lo": -128, "hi": 127, "sizes": (), **dict.fromkeys(STRIDES, ())}
    call = Call("q8ta_attention", attrs, inputs, TensorType(exact.shape, INT8X4, out))
    found = OPS["q8ta_attention"].reference(call, [*arrays, *constants])
    error = found - (exact / out.scale + out.zero)
    assert np.sqrt((error**2).mean()) < noise


@pytest.mark.parametrize(
    ("stored", "result", "least"), [("", INT8X4, 10), (INT16X4, INT8X4, 40), (INT16X4, INT16X4, 52), ("", INT16X4, 52)]
)
@pytest.mark.parametrize(("keys", "share"), [(577, 0.5), (1024, 0.5), (197, 0.8)])
def test_weights_behind_a_sink(keys: int, share: float, stored: str, result: str, least: float, vulkan: Device) -> None:
    """Most of the other weights are below a 510th of the sink's. What a program stores in int16 has weights of fourteen
    bits: signal to noise in dB."""
    graph, inputs, exact = attention_graphs.sink(keys, share, stored, result)
    fused = run_passes(graph)
    assert [node.op for node in fused.nodes] == ["q8ta_attention"] and not fused.notes
    found, q = reference.run(fused, inputs)["y"], graph.types["y"].q
    assert q is not None
    assert 10 * np.log10((exact**2).sum() / ((found * q.scale - exact) ** 2).sum()) > least
    if keys == 577:
        (run,) = harness.run_poisoned(fused, inputs, None, vulkan)
        np.testing.assert_array_equal(run, found)


SOFTMAXES = {
    "int8": (QParams(0.04, -7), QParams(1 / 256, -128)),
    "int16": (QParams(0.0002, -7000, INT16X4), QParams(1 / 32767, 0, INT16X4)),
}


@pytest.mark.parametrize("width", SOFTMAXES)
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("masked", [(1, 5, 7), (2, 3, 5, 7), (2, 1, 1, 7)])
def test_what_is_masked_takes_no_part(masked: tuple[int, ...], dim: int, width: str, device: Device) -> None:
    """Where a constant of zeros and low numbers is added. A row of one number is as if without a mask, and one of what
    stands for minus infinity is all zeros."""
    shape, g = (2, 3, 5, 7), np.random.default_rng(dim)
    mask = np.where(g.random(masked) < 0.4, np.float32(-1e4), np.float32(0))
    mask.reshape(-1, 7)[:2] = np.array([[-1e4], [MASKED]])[: mask.size // 7]
    graph = Graph(["x"], ["y"])
    x, out = SOFTMAXES[width]
    graph.types = {"x": TensorType(shape, x.dtype, x), "y": TensorType(shape, out.dtype, out)}
    graph.types |= dict.fromkeys(("real", "added", "soft"), TensorType(shape))
    added = graph.add_constant("mask", mask)
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("add", ("real", added), "added", {"alpha": 1.0}),
        Node("softmax", ("added",), "soft", {"dim": dim}),
        Node("quantize", ("soft",), "y", dict(zip(("lo", "hi"), out.range, strict=True))),
    ]
    inputs = {"x": op_graphs.extremes(g, shape, x.dtype)}
    fused = run_passes(graph)
    assert [node.op for node in fused.nodes] == ["q8ta_softmax"], fused.notes
    assert fused.types[fused.nodes[0].inputs[2]].shape == (1,) * (4 - len(masked)) + masked
    expected = reference.run(fused, inputs)["y"]
    whole = np.broadcast_to(mask, shape)
    part = (whole == whole.max(dim, keepdims=True)) & (whole.max(dim, keepdims=True) != MASKED)
    v = np.where(part, (inputs["x"].astype(np.float64) - x.zero) * x.scale, -np.inf)
    powers = np.exp(v - np.maximum(v.max(dim, keepdims=True), -1e3))
    exact = powers / np.maximum(powers.sum(dim, keepdims=True), 1e-300)
    assert apart(expected, exact, out).max() <= 1
    assert (expected[~part] == out.zero).all()
    for name, plan in harness.plans(fused, dim):
        (found,) = harness.run_poisoned(fused, inputs, plan, device)
        np.testing.assert_array_equal(found, expected, err_msg=name)


def test_what_no_score_makes_up_for_is_a_mask() -> None:
    """Any two scores of int8 are at most 255 steps apart; e^-22 is in no table."""
    for low, op in ((-(255 * 0.125 + 22.1), "q8ta_softmax"), (-(255 * 0.125 + 21.9), "softmax")):
        graph = Graph(["x"], ["y"])
        graph.types = {
            name: TensorType((2, 4), INT8X4, QParams(scale, -128)) for name, scale in (("x", 0.125), ("y", 1 / 256))
        }
        graph.types |= dict.fromkeys(("real", "added", "soft"), TensorType((2, 4)))
        added = graph.add_constant("mask", np.array([[0, low, 0, 0]], np.float32))
        graph.nodes = [
            Node("dequantize", ("x",), "real"),
            Node("add", ("real", added), "added", {"alpha": 1.0}),
            Node("softmax", ("added",), "soft", {"dim": 1}),
            Node("quantize", ("soft",), "y", {"lo": -128, "hi": 127}),
        ]
        assert op in [node.op for node in run_passes(graph).nodes]
