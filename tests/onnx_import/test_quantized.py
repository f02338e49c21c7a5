"""Networks that ONNX Runtime's quantizers made: the same numbers, and the same bytes on every device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.device import Device
from testbed.harness import flat
from testbed.onnx.networks import KINDS, NETWORKS, by_onnx_runtime, inputs, quantized


def steps_apart(found: Array, expected: Array) -> Array:
    """Differences in steps of the result, the least difference of two of its numbers."""
    between = np.diff(np.unique(expected))
    return np.asarray(np.abs(found - expected) / between[between > 1e-6].min())


AGREEMENT = {"single": 0.999}
"""How many results of a network are equal. One that an early layer rounds the other way reaches many others."""


@pytest.mark.parametrize(
    ("name", "kind"), [*(("single", kind) for kind in KINDS), *((n, "u8u8") for n in NETWORKS if n != "single")]
)
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_a_static_network_gives_what_onnx_runtime_gives(name: str, form: str, kind: str) -> None:
    data, (x,) = quantized(name, form, kind), inputs(name, 1)
    model = q8.from_onnx(data)
    report = model.report()
    assert not report.islands or name == "transformer"  # its norm is in float32 in the file
    assert report.macs[0] == report.macs[1], report
    for found, expected in zip(flat(q8.Session(model, device="reference")(x)), by_onnx_runtime(data, x), strict=True):
        apart = steps_apart(found, expected)
        assert apart.max() <= (1.01 if name == "single" else 2.01)
        assert (apart < 0.5).mean() >= AGREEMENT.get(name, 0.95 if form == "QDQ" else 0.99)


@pytest.mark.parametrize("name", ["depthwise", "upsampling", "transformer"])
def test_every_device_gives_the_bytes_of_the_reference(name: str, device: Device) -> None:
    model = q8.from_onnx(quantized(name, "QDQ", "u8u8"))
    (x,) = inputs(name, 1)
    found, expected = (flat(q8.Session(model, device=d)(x)) for d in (device, "reference"))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 if name == "transformer" else 0)


def test_what_a_gelu_rounds_in_between_is_one_table() -> None:
    """x * (1 + erf(x / 1.41)) * 0.5, each of which the file rounds: a table of x."""
    model = q8.from_onnx(quantized("transformer", "QDQ", "u8u8"))
    names = [node.op for node in model.graph.nodes]
    assert names.count("q8ta_table") == 1 and "q8ta_mul" not in names


def test_a_scale_of_a_whole_tensor_is_the_same_on_every_device(device: Device) -> None:
    random = np.random.default_rng(0)
    weight = random.integers(-127, 128, (16, 8)).astype(np.int8)
    constants = {"w": weight, "scale": np.float32(0.01), "zero": np.int8(3)}
    names = ["x", "w", "scale", "zero"]
    data = made(
        [helper.make_node("DynamicQuantizeMatMul", names, ["y"], domain="com.microsoft")], {"x": (40, 16)}, constants
    )
    x = random.standard_normal((40, 16)).astype(np.float32)
    found = q8.Session(q8.from_onnx(data), device=device)(x)
    np.testing.assert_array_equal(found, q8.Session(q8.from_onnx(data), device="reference")(x))
    np.testing.assert_allclose(found, by_onnx_runtime(data, x)[0], rtol=1e-5)


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_a_dynamic_network_computes_its_products_in_int8(name: str) -> None:
    data, (x,) = quantized(name, "dynamic", "u8s8"), inputs(name, 1)
    model = q8.from_onnx(data)
    assert any(node.op in ("q8ta_linear", "q8ta_conv2d") for node in model.graph.nodes)
    for found, expected in zip(flat(q8.Session(model, device="reference")(x)), by_onnx_runtime(data, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * np.abs(expected).max())


IMAGE = (2, 6, 9, 10)
POOL: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
CALLS: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]] = {
    "add": ("QLinearAdd", (IMAGE, IMAGE), {}),
    "add of channels": ("QLinearAdd", (IMAGE, (6, 1, 1)), {}),
    "mul": ("QLinearMul", (IMAGE, (2, 6, 1, 1)), {}),
    "sigmoid": ("QLinearSigmoid", (IMAGE,), {}),
    "leaky relu": ("QLinearLeakyRelu", (IMAGE,), {"alpha": 0.2}),
    "softmax": ("QLinearSoftmax", ((3, 5, 17),), {"axis": 1, "opset": 13}),
    "softmax of rows": ("QLinearSoftmax", ((3, 5, 17),), {"axis": 1, "opset": 12}),
    "concat": ("QLinearConcat", (IMAGE, IMAGE, IMAGE), {"axis": -1}),
    "average": ("QLinearGlobalAveragePool", (IMAGE,), {"channels_last": 0}),
    "average, channels last": ("QLinearGlobalAveragePool", (IMAGE,), {"channels_last": 1}),
    "pool": ("QLinearAveragePool", (IMAGE,), POOL),
    "pool with padding": ("QLinearAveragePool", (IMAGE,), {**POOL, "count_include_pad": 1}),
}
"""Operators of com.microsoft whose operands are activations: name, shapes, attributes."""


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_com_microsoft_gives_what_onnx_runtime_gives(call: str, kind: Any) -> None:
    """Softmax with 1/256, which the quantizers choose: with another scale ONNX Runtime cuts some results off."""
    name, shapes, attributes = CALLS[call]
    random, middle = np.random.default_rng(0), 0 if kind == np.int8 else 128
    step = np.float32(1 / 256 if "Softmax" in name else 0.0271)
    constants: dict[str, Any] = {"y.scale": step, "y.zero": kind(middle - 3)}
    ends, nodes, operands = ["y.scale", "y.zero"], list[onnx.NodeProto](), list[str]()
    for i, shape in enumerate(shapes):
        x = (random.standard_normal(shape) / np.float32(0.02 + 0.01 * i)).clip(-120, 120) + middle
        scale, zero = (f"x{i}.scale", f"x{i}.zero")
        constants |= {scale: np.float32(0.02 + 0.01 * i), zero: kind(middle + 5 - i), f"x{i}": x.astype(kind)}
        nodes.append(
            helper.make_node("Identity" if i else "QuantizeLinear", [f"x{i}", scale, zero][: 1 if i else 3], [f"q{i}"])
        )
        operands += [f"q{i}", scale, zero]
    given = (constants.pop("x0") - np.float32(middle + 5)) * constants["x0.scale"]
    both = [*ends, *operands] if name == "QLinearConcat" else [*operands, *ends]
    nodes.append(helper.make_node(name, both, ["yq"], domain="com.microsoft", **attributes))
    nodes.append(helper.make_node("DequantizeLinear", ["yq", *ends], ["y"]))
    data = made(nodes, {"x0": shapes[0]}, constants)
    found, expected = q8.Session(q8.from_onnx(data), device="reference")(given), by_onnx_runtime(data, given)[0]
    apart = np.abs(found - expected) / step
    assert apart.max() < 1.01
    assert (apart < 0.5).mean() > 0.999


@pytest.mark.parametrize("zero", [0, 90, 255])
@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_weight_with_any_zero_point_is_exact(zero: int, groups: int) -> None:
    """Where the weight less its zero point passes int8, the rest is the weight of copies of channels; 255 - 0 has
    no such parts and is not drawn."""
    random = np.random.default_rng(zero)
    weight = random.integers(0, 256 if zero else 255, (8, 8 // groups, 3, 3)).astype(np.uint8)
    constants: dict[str, Any] = {
        "scale": np.float32(0.02),
        "zero": np.uint8(120),
        "w": weight,
        "w_scale": np.float32(0.003),
        "w_zero": np.uint8(zero),
        "y_scale": np.float32(0.05),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node(
            "QLinearConv",
            ["xq", "scale", "zero", "w", "w_scale", "w_zero", "y_scale", "zero"],
            ["yq"],
            group=groups,
            pads=[1, 0, 1, 2],
        ),
        helper.make_node("DequantizeLinear", ["yq", "y_scale", "zero"], ["y"]),
    ]
    model = q8.from_onnx(made(nodes, {"x": (1, 8, 9, 9)}, constants))
    computed, whole = model.report().macs
    assert computed == whole
    x = random.standard_normal((1, 8, 9, 9)).astype(np.float32)
    steps = np.clip(np.rint(x / np.float32(0.02)) + 120, 0, 255) - 120
    padded = np.pad(steps, ((0, 0), (0, 0), (1, 1), (0, 2)))
    sums = np.zeros((1, 8, 9, 9))
    for o in range(8):
        first = o // (8 // groups) * (8 // groups)
        for c in range(8 // groups):
            for i in range(3):
                for j in range(3):
                    part = padded[:, first + c, i : i + 9, j : j + 9]
                    sums[:, o] += part * (int(weight[o, c, i, j]) - zero)
    expected = np.clip(np.rint(sums * 0.02 * 0.003 / 0.05) + 120, 0, 255) - 120
    found = q8.Session(model, device="reference")(x) / np.float32(0.05)
    assert np.abs(found - expected).max() <= 1.01
    assert (np.abs(found - expected) < 0.5).mean() > 0.999


def test_integers_of_8_bits_wrap() -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.UINT8, (5,)) for name in "xyz"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["z"])], "net", ports[:2], ports[2:])
    model = q8.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    x, y = np.array([1, 2, 200, 255, 7], np.uint8), np.array([1, 255, 200, 255, 0], np.uint8)
    found = q8.Session(model, device="reference")(x, y)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, x + y)


def made(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], constants: dict[str, Any]) -> bytes:
    """A file of these nodes, whose last result goes out."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def test_a_file_is_read_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(quantized("residual", "QDQ", "s8s8"))
    whole = tmp_path / "float.onnx"
    onnx.save(NETWORKS["residual"](), whole)
    np.save(tmp_path / "x.npy", inputs("residual", 1)[0])
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnxruntime'] = None\n"
        "import numpy, q8ta_wgpu as q8\n"
        f"model = q8.from_onnx({str(path)!r}); x = numpy.load({str(tmp_path / 'x.npy')!r})\n"
        "print([y.shape for y in q8.Session(model, device='reference')(x).values()])\n"
        f"model = q8.quantize({str(whole)!r}, calibration=[x]); print(model.report().macs[0] == 912544)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split("\n") == ["[(1, 16, 12, 12), (1, 10)]", "True", ""], done.stderr


def test_token_numbers_are_rows_of_their_table() -> None:
    random = np.random.default_rng(3)
    table = random.standard_normal((50, 16)).astype(np.float32)
    constants = {
        "table": table,
        "scale": np.float32(0.03),
        "zero": np.uint8(120),
        "w": random.integers(-127, 128, (16, 8)).astype(np.int8),
        "w_scale": np.float32(0.01),
        "one": np.array([1]),
        "masked": np.float32(-100),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("QuantizeLinear", ["rows", "scale", "zero"], ["rows_q"]),
        helper.make_node("DequantizeLinear", ["rows_q", "scale", "zero"], ["rows_r"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["w_r"]),
        helper.make_node("MatMul", ["rows_r", "w_r"], ["product"]),
        helper.make_node("Cast", ["mask"], ["mask_f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask_f", "one"], ["mask_u"]),
        helper.make_node("Mul", ["mask_u", "masked"], ["penalty"]),
        helper.make_node("Add", ["product", "penalty"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.INT64, (6,)) for name in ("ids", "mask")]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "net", ports, results, initializers)
    opsets = [helper.make_opsetid("", 17)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    model = q8.from_onnx(data)
    ids, mask = random.integers(0, 50, 6), random.integers(0, 2, 6)
    session = q8.Session(model, device="reference")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run
    np.testing.assert_allclose(session(ids, mask), run(None, {"ids": ids, "mask": mask})[0], rtol=0, atol=1e-4)
    assert model.report().macs[0] == model.report().macs[1]
    with pytest.raises(q8.InputError, match=r"'ids' holds 50, and must be in \[0, 49\]"):
        session(np.full(6, 50), mask)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_has_its_gates_and_directions_in_onnx_order(cell: str, direction: str, layout: int) -> None:
    """With states that come in, in reverse without. With layout 1 the batch comes first everywhere."""
    random, gates = np.random.default_rng(0), {"LSTM": 4, "GRU": 3, "RNN": 1}[cell]
    directions, states = 2 if direction == "bidirectional" else 1, "hc"[: 1 + (cell == "LSTM")]
    shapes: dict[str, tuple[int, ...]] = {"w": (gates * 5, 7), "r": (gates * 5, 5), "b": (2 * gates * 5,)}
    shapes |= dict.fromkeys(states if direction != "reverse" else "", (2, 5))
    drawn = {
        n: random.standard_normal((directions, *s)).astype(np.float32) * np.float32(0.4) for n, s in shapes.items()
    }
    attributes: dict[str, Any] = {"linear_before_reset": 1} if cell == "GRU" else {}
    attributes |= {"hidden_size": 5, "direction": direction}
    names, x = ["x", "w", "r", "b", "", *list(shapes)[3:]], random.standard_normal((6, 2, 7)).astype(np.float32)
    expected = by_onnx_runtime(made([helper.make_node(cell, names, ["y"], **attributes)], {"x": x.shape}, drawn), x)[0]
    if layout:
        x, expected = x.swapaxes(0, 1), expected.transpose(2, 0, 1, 3)
        drawn |= {n: a.swapaxes(0, 1) for n, a in drawn.items() if n in states}
    data = made([helper.make_node(cell, names, ["y"], layout=layout, **attributes)], {"x": x.shape}, drawn)
    found = q8.Session(q8.from_onnx(data), device="reference")(np.ascontiguousarray(x))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_parameters_of_norms_and_biases_of_a_gemm_are_constants_however_they_are_stored() -> None:
    """As ONNX Runtime's static quantizer leaves them: scales and biases in int8, matrices that are not transposed."""
    random = np.random.default_rng(0)
    constants: dict[str, Any] = {"step": np.float32(0.05), "zero": np.int8(3), "bias": np.arange(6, dtype=np.float32)}
    nodes = list[onnx.NodeProto]()
    for name, shape in (("gamma", (8,)), ("beta", (8,)), ("w", (8, 6))):
        constants[name] = random.integers(-127, 128, shape).astype(np.int8)
        constants[f"{name}.scale"] = np.float32(0.01)
        nodes.append(helper.make_node("DequantizeLinear", [name, f"{name}.scale"], [f"{name}.real"]))

    def rounded(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "step", "zero"], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", "step", "zero"], [f"{name}.r"]))
        return f"{name}.r"

    nodes.append(helper.make_node("LayerNormalization", [rounded("x"), "gamma.real", "beta.real"], ["n"]))
    nodes.append(helper.make_node("Gemm", [rounded("n"), "w.real", "bias"], ["g"]))
    nodes.append(helper.make_node("Identity", [rounded("g")], ["y"]))
    data = made(nodes, {"x": (5, 8)}, constants)
    model = q8.from_onnx(data)
    assert [n.op for n in model.graph.nodes] == ["quantize", "q8ta_layer_norm", "q8ta_linear"]
    x = random.standard_normal((5, 8)).astype(np.float32)
    found, (expected,) = q8.Session(model, device="reference")(x), by_onnx_runtime(data, x)
    assert np.abs(found - expected).max() <= 0.051


def test_a_factor_and_a_term_of_channels_stay_what_the_file_has() -> None:
    """They became a batch norm, an operator that the file does not have."""
    numbers = np.linspace(-1, 2, 8).astype(np.float32)
    constants = {"step": np.float32(0.05), "zero": np.int8(3), "factor": numbers + 0.1, "term": numbers[::-1].copy()}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["r"]),
        helper.make_node("Mul", ["r", "factor"], ["m"]),
        helper.make_node("Add", ["m", "term"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "step", "zero"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "step", "zero"], ["y"]),
    ]
    model = q8.from_onnx(made(nodes, {"x": (5, 8)}, constants))
    assert [node.op for node in model.graph.nodes] == ["quantize", "q8ta_mul", "q16ta_add", "dequantize"]


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_a_linear_resize_of_integers_is_cut_to_whole_numbers(kind: Any) -> None:
    """As the QOperator form of a U-Net has it, and as ONNX Runtime computes it."""
    constants = {"scale": np.float32(0.03), "zero": kind(7), "scales": np.array([1, 1, 2, 2], np.float32)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Resize", ["q", "", "scales"], ["r"], mode="linear"),
        helper.make_node("DequantizeLinear", ["r", "scale", "zero"], ["y"]),
    ]
    data = made(nodes, {"x": (1, 3, 5, 7)}, constants)
    x = np.random.default_rng(3).normal(0, 2, (1, 3, 5, 7)).astype(np.float32)
    found, expected = q8.Session(q8.from_onnx(data), device="reference")(x), by_onnx_runtime(data, x)[0]
    np.testing.assert_array_equal(found, expected)
