"""Float ONNX files get the precision that modules get: as many bits as a value needs, and a report that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.ir.graph import FLOAT32, Array
from q8ta_wgpu.quantization.predicted import noise_of_each
from testbed.harness import flat
from testbed.onnx.networks import NETWORKS, Net, inputs


def decibels(data: bytes, model: q8.Model, x: Array) -> float:
    """Signal to noise of a model's first output against ONNX Runtime in float."""
    (expected, *_) = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    found = flat(q8.Session(model, device="reference")(x))[0]
    return float(10 * np.log10((expected**2).sum() / ((found - expected) ** 2).sum()))


def drawn(shape: tuple[int, ...], count: int) -> list[Array]:
    return [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i in range(count)]


def angles() -> onnx.ModelProto:
    """Sines of large angles: a step of 8 bits, and of 16, turns them around."""
    net = Net((64, 3))
    angle = net.add("Mul", "x", net.constant(np.float32(1000.0)))
    both = net.add("Concat", net.add("Sin", angle), net.add("Cos", angle), axis=1)
    return net.model(net.linear(net.add("Relu", net.linear(both, 6, 32)), 32, 4))


def spectrum() -> onnx.ModelProto:
    """A Fourier transform written as a convolution, the logarithm of its powers, and a layer that reads these."""
    net = Net((1, 1, 1, 2048))
    turns = 2 * np.pi * np.outer(np.arange(33), np.arange(64)) / 64
    basis = np.concatenate([np.cos(turns), -np.sin(turns)]) * np.hanning(64)
    parts = net.add("Conv", "x", net.constant(basis.astype(np.float32)[:, None, None]), strides=[1, 32])
    real, imaginary = (
        net.add("Slice", parts, *(net.constant(np.array([n])) for n in (first, first + 33, 1))) for first in (0, 33)
    )
    power = net.add("Add", net.add("Mul", real, real), net.add("Mul", imaginary, imaginary))
    log = net.add("Log", net.add("Add", power, net.constant(np.float32(1e-4))))
    return net.model(net.conv(log, 33, 8, kernel=1))


def sounds(count: int) -> list[Array]:
    time = np.arange(2048) / 2048
    found = []
    for i in range(count):
        random = np.random.default_rng(i)
        loud = np.sin(2 * np.pi * random.uniform(20, 300) * time) * np.exp(3 * np.sin(2 * np.pi * 2 * time))
        found.append((loud + 0.01 * random.standard_normal(2048)).astype(np.float32)[None, None, None])
    return found


def test_auto_leaves_in_float32_what_8_bits_lose() -> None:
    data, (x, *items) = angles().SerializeToString(), drawn((64, 3), 9)
    assert decibels(data, q8.quantize(data, calibration=items, precision="int8"), x) < 10
    found = q8.quantize(data, calibration=items)
    assert decibels(data, found, x) > 30
    assert any("is not rounded since 16 bits are too few: here alone" in note for note in found.report().notes)


def sink() -> onnx.ModelProto:
    """Attention in which the first of 197 elements has four fifths of the weight."""
    net = Net((1, 197, 32))
    q, k, v = (net.linear("x", 32, 16) for _ in range(3))
    bias = np.zeros((197, 197), np.float32)
    bias[:, 0] = np.log(0.8 * 197 / 0.2)
    scores = net.add(
        "MatMul", net.add("Mul", q, net.constant(np.float32(0.1))), net.add("Transpose", k, perm=[0, 2, 1])
    )
    shares = net.add("Softmax", net.add("Add", scores, net.constant(bias)), axis=-1)
    y = net.add("MatMul", shares, v)
    for size in (16, 32):
        y = net.add("Relu", net.linear(y, size, 32))
    return net.model(net.linear(y, 32, 32))


def test_auto_finds_weights_of_attention_that_8_bits_lose() -> None:
    data, items = sink().SerializeToString(), drawn((1, 197, 32), 1)
    assert decibels(data, q8.quantize(data, calibration=items), items[0]) > 30


def test_auto_finds_a_fourier_transform_that_is_a_convolution() -> None:
    data, (x, *items) = spectrum().SerializeToString(), sounds(9)
    int8 = decibels(data, q8.quantize(data, calibration=items, precision="int8"), x)
    found = q8.quantize(data, calibration=items)
    assert decibels(data, found, x) > max(30, int8 + 15)
    assert any(node.op == "conv2d" and found.graph.types[node.output].dtype == FLOAT32 for node in found.graph.nodes)


def magnitudes() -> onnx.ModelProto:
    """A Fourier transform in one dimension, roots of its powers, and a layer that reads how loud these are."""
    net = Net((1, 1, 2048))
    turns = 2 * np.pi * np.outer(np.arange(33), np.arange(64)) / 64
    basis = (np.concatenate([np.cos(turns), -np.sin(turns)]) * np.hanning(64)).astype(np.float32)
    parts = net.add("Conv", "x", net.constant(basis[:, None]), strides=[32])
    real, imaginary = (
        net.add("Slice", parts, *(net.constant(np.array([n])) for n in (first, first + 33, 1))) for first in (0, 33)
    )
    two = net.constant(np.float32(2))
    root = net.add("Sqrt", net.add("Add", net.add("Pow", real, two), net.add("Pow", imaginary, two)))
    loud = net.add("Log", net.add("Add", root, net.constant(np.float32(1e-2))))
    weight = np.random.default_rng(3).normal(size=(8, 33, 1)).astype(np.float32)
    return net.model(net.add("Conv", loud, net.constant(weight)))


def test_powers_that_16_bits_lose_stay_in_float32() -> None:
    """In one dimension a view stands before the transform, which was then stored in 16 bits, its weights in 8. Of
    powers below a root 16 bits lose more than was predicted."""
    data, (x, *items) = magnitudes().SerializeToString(), [each[0] for each in sounds(9)]
    found, wide = (q8.quantize(data, calibration=items, precision=name) for name in ("auto", "int16"))
    for model in (found, wide):
        (first, *_) = (node for node in model.graph.nodes if "conv2d" in node.op)
        assert model.graph.types[first.output].dtype == FLOAT32
    assert decibels(data, found, x) > 30


def bands() -> onnx.ModelProto:
    """A mel spectrogram as a package of wake words has it: cosines and sines in two layers, powers, bands of them that
    a matrix adds up, and the logarithm."""
    net = Net((1, 1, 2048))
    turns = 2 * np.pi * np.outer(np.arange(33), np.arange(64)) / 64
    parts = [
        net.add("Conv", "x", net.constant((basis * np.hanning(64)).astype(np.float32)[:, None]), strides=[32])
        for basis in (np.cos(turns), -np.sin(turns))
    ]
    power = net.add("Add", *(net.add("Pow", part, net.constant(np.float32(2))) for part in parts))
    triangles = np.maximum(1 - np.abs(np.arange(33)[:, None] - np.linspace(2, 30, 8)) / 4, 0).astype(np.float32)
    mel = net.add("MatMul", net.add("Transpose", power, perm=[0, 2, 1]), net.constant(triangles))
    return net.model(net.add("Log", net.add("Max", mel, net.constant(np.float32(1e-10)))))


def test_auto_finds_a_filter_bank_behind_a_fourier_transform_in_two_layers() -> None:
    """Neither was known for one, so their weights were rounded in the yardstick as well, which left 0.4 dB."""
    data, (x, *items) = bands().SerializeToString(), [each[0] for each in sounds(9)]
    assert decibels(data, q8.quantize(data, calibration=items), x) > 20


def test_auto_stores_nothing_in_more_bits_where_int8_suffices() -> None:
    data, items = NETWORKS["residual"]().SerializeToString(), inputs("residual", 8)
    found, int8 = (q8.quantize(data, calibration=items, precision=name) for name in ("auto", "int8"))
    assert str(found.graph) == str(int8.graph)


def test_all_values_may_have_16_bits() -> None:
    data, (x, *items) = NETWORKS["transformer"]().SerializeToString(), inputs("transformer", 9)
    wide, int8 = (q8.quantize(data, calibration=items, precision=name) for name in ("int16", "int8"))
    assert wide.report().int16 > int8.report().int16
    assert decibels(data, wide, x) > decibels(data, int8, x) + 3


def test_skipped_operators_stay_in_float32() -> None:
    data, items = NETWORKS["residual"]().SerializeToString(), inputs("residual", 4)
    (first, *_) = (node.name for node in onnx.ModelProto.FromString(data).graph.node if node.op_type == "Conv")
    found = q8.quantize(data, calibration=items, skip=[first])
    assert found.report().float32["conv2d"] == 1
    assert any("skip=[...] names it" in note for note in found.report().notes)


def test_a_skipped_name_is_also_a_folder_of_names() -> None:
    file = NETWORKS["residual"]()
    for i, node in enumerate(file.graph.node):
        node.name = f"/{'first' if i < 3 else 'rest'}/{node.name}"
    found = q8.quantize(file.SerializeToString(), calibration=inputs("residual", 4), skip=["/first"])
    assert 0 < found.report().macs[0] < found.report().macs[1]


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("skip names 'conv7', but no operator has that name.*nearest to it: 'conv0'", {"skip": ["conv7"]}),
        (r"skip is a list of operators' names, found a string: write skip=\['conv0'\]", {"skip": "conv0"}),
        ("precision must be 'auto', 'int8' or 'int16', found 'int4'", {"precision": "int4"}),
        ("unsupported is for modules: an ONNX file takes sizes, constants, residual", {"unsupported": "torch"}),
        ("weights is for modules: an ONNX file takes sizes, constants, residual", {"weights": "int4"}),
    ],
)
def test_what_is_wrong_is_an_input_error(problem: str, given: dict[str, Any]) -> None:
    with pytest.raises(q8.InputError, match=problem):
        q8.quantize(NETWORKS["single"]().SerializeToString(), calibration=inputs("single", 1), **given)


def test_a_network_that_makes_noise_larger_is_warned_of() -> None:
    """A difference of nearly equal layers: their rounded weights alone make more noise than there is signal."""
    net = Net((1, 16))
    weight = net.random.standard_normal((16, 16)).astype(np.float32)
    nearly = weight + 1e-3 * net.random.standard_normal((16, 16)).astype(np.float32)
    one, other = (net.add("MatMul", "x", net.constant(each)) for each in (weight, nearly))
    data = net.model(net.add("Sub", one, other)).SerializeToString()
    with pytest.warns(UserWarning, match=r"predicted to keep .* dB of signal to noise.*skip=\[\.\.\.\]"):
        q8.quantize(data, calibration=drawn((1, 16), 8))


def test_sizes_that_are_ranges_have_the_same_widths() -> None:
    file = angles()
    file.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    data, items = onnx.shape_inference.infer_shapes(file).SerializeToString(), drawn((64, 3), 9)
    model = q8.quantize(data, calibration=items, sizes={"rows": (1, 64)})
    assert decibels(data, model, drawn((5, 3), 1)[0]) > 30


def test_a_model_explains_each_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, items = angles().SerializeToString(), drawn((64, 3), 8)
    path = tmp_path / "net.q8ta"
    q8.quantize(data, calibration=items).save(path)
    model = q8.load(path)
    said = model.explain("mul0")
    assert said.startswith("mul0 is not rounded for other readers\n  decided by its noise, since 16 bits are too few\n")
    assert "times the noise that the outputs should have at most" in said
    (relu,) = (decision for decision in model.graph.decisions if "relu" in decision.values[0])
    assert (relu.width, relu.by, relu.cost) == ("int8", "plan", 0.0)
    assert model.explain(f"{relu.values[0]}.stored") == model.explain(relu.values[0])
    assert main(["explain", str(path), "mul0"]) == 0
    assert capsys.readouterr().out.strip() == said
    with pytest.raises(q8.InputError, match=r"no stored value is called 'mul7'; nearest to it: mul0"):
        model.explain("mul7")
    with pytest.raises(q8.InputError, match=r"no record of what was decided: q8ta_wgpu\.quantize writes one"):
        q8.from_onnx(data).explain()


def test_compare_names_the_operators_of_a_file() -> None:
    data, (x, *items) = angles().SerializeToString(), drawn((64, 3), 9)
    model = q8.quantize(data, calibration=items, precision="int8")
    found = q8.compare(data, model, x)
    worst = found.layers[0]
    assert (worst.name, worst.module, worst.source, worst.cause) == ("cos2", "cos2", "Cos 'cos2'", "before")
    (output,) = (layer for layer in found.layers if layer.output)
    assert output.snr == pytest.approx(decibels(data, model, x), abs=2)
    assert "quantize(..., skip=['cos2', 'sin1', ...]) leaves operators in float" in str(found)
    (skipped,) = (e for e in q8.compare(data, q8.quantize(data, calibration=items), {"x": x}).layers if e.output)
    assert skipped.snr > 30


def test_compare_takes_sizes_in_a_range() -> None:
    file = angles()
    file.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    data, items = onnx.shape_inference.infer_shapes(file).SerializeToString(), drawn((64, 3), 9)
    model = q8.quantize(data, calibration=items, sizes={"rows": (1, 64)})
    (output,) = (layer for layer in q8.compare(data, model, drawn((5, 3), 1)[0]).layers if layer.output)
    assert output.snr > 30


@pytest.mark.parametrize(
    ("problem", "model", "x"),
    [
        ("the Model that quantize made of it, found 'bytes' and 'int'", 3, np.zeros((1, 16, 24, 24), np.float32)),
        ("'x' must have shape", None, np.zeros((1, 3, 5, 5), np.float32)),
    ],
)
def test_what_cannot_be_compared_is_an_input_error(problem: str, model: Any, x: Array) -> None:
    data = NETWORKS["single"]().SerializeToString()
    with pytest.raises(q8.InputError, match=problem):
        q8.compare(data, model or q8.quantize(data, calibration=inputs("single", 2)), x)


def test_an_output_that_is_not_judged_costs_no_runs() -> None:
    """Its limit is infinite, and infinity times no noise was NaN: numpy warned, and each half was run by itself."""
    readings: list[Any] = list(range(8))
    runs = []

    def noise(kept: Any) -> list[float]:
        runs.append(kept)
        return [1e-4 * sum(1 + reading for reading in readings if reading not in kept), 0.0]

    found = noise_of_each(readings, noise, [1e-4, np.inf], 40)
    assert [found[each] for each in readings] == pytest.approx(range(1, 9))
    assert len(runs) == 8  # all of them once, and seven times one of two halves


def test_weights_are_not_fitted_to_the_items_that_judge_them() -> None:
    """The first items are simulated. A network that was fitted to these alone was as good as it looked on no others."""
    data, items = NETWORKS["residual"]().SerializeToString(), inputs("residual", 16)
    first, held, others = [2 * np.abs(x) for x in items[:4]], items[4:8], items[8:]  # eight are held, four simulated
    found = q8.quantize(data, calibration=[*first, *held, *others], residual="int8")
    wanted = q8.quantize(data, calibration=[*others, *held, *first], residual="int8", precision="int8")
    weights = [[x for x in m.graph.constants.values() if x.dtype == np.int8 and x.ndim > 1] for m in (found, wanted)]
    assert weights[0]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def waves() -> onnx.ModelProto:
    """A network without weighted sums: the yardstick, which rounds what these read, has no noise."""
    net = Net((8, 64))
    return net.model(net.add("Sin", net.add("Mul", "x", net.constant(np.float32(20)))))


def test_a_network_whose_yardstick_has_no_noise_is_judged() -> None:
    """It kept 15.7 dB with "auto", too, and without a warning."""
    data, (x, *items) = waves().SerializeToString(), drawn((8, 64), 9)
    assert decibels(data, q8.quantize(data, calibration=items, precision="int8"), x) < 18
    assert decibels(data, q8.quantize(data, calibration=items), x) > 40
