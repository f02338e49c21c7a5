"""Branches that follow from sizes and constants, and inputs that are always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from q8ta_wgpu.__main__ import main

FLOAT = TensorProto.FLOAT


def branch(op: str, name: str, *constants: onnx.TensorProto, shape: Any = (1, 4)) -> onnx.GraphProto:
    inputs = ["x", *(each.name for each in constants)]
    result = helper.make_tensor_value_info(name, FLOAT, shape)
    return helper.make_graph([helper.make_node(op, inputs, [name])], op, [], [result], list(constants))


def of_nodes(nodes: list[onnx.NodeProto], *constants: tuple[str, Any], more: Any = ()) -> bytes:
    ports = [helper.make_tensor_value_info("x", FLOAT, (1, 4)), *more]
    results = [helper.make_tensor_value_info("y", FLOAT, None)]
    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants]
    graph = helper.make_graph(nodes, "net", ports, results, arrays)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def by_size(size: int) -> bytes:
    """Relu if the input has so many columns, else a sum with a constant that the branch holds."""
    added = numpy_helper.from_array(np.full(4, 2, np.float32), "two")
    return of_nodes(
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "one"], ["n"]),
            helper.make_node("Equal", ["n", "size"], ["c"]),
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("Relu", "p"), else_branch=branch("Add", "q", added)
            ),
        ],
        ("one", 1),
        ("size", size),
    )


def by_rate() -> bytes:
    """Relu at 16,000, else Neg of an operator that cannot be imported."""
    inner = helper.make_graph(
        [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Neg", ["d"], ["q"])],
        "b",
        [],
        [helper.make_tensor_value_info("q", FLOAT, None)],
    )
    return of_nodes(
        [
            helper.make_node("Equal", ["sr", "rate"], ["c"]),
            helper.make_node("Sigmoid", ["x"], ["z"]),
            helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu", "p"), else_branch=inner),
        ],
        ("rate", 16000),
        more=[helper.make_tensor_value_info("sr", TensorProto.INT64, ())],
    )


X = np.array([[-1, 2, -3, 4]], np.float32)


@pytest.mark.parametrize(("size", "expected"), [(4, np.maximum(X, 0)), (5, X + 2)])
def test_a_branch_that_follows_from_a_size_is_taken(size: int, expected: Any) -> None:
    session = q8.Session(q8.from_onnx(by_size(size)), device="reference")
    np.testing.assert_array_equal(session(X), expected)


def test_an_input_that_is_given_as_a_constant_decides_a_branch(tmp_path: Path) -> None:
    model = q8.from_onnx(by_rate(), constants={"sr": 16000})
    assert list(model.inputs) == ["x"]
    np.testing.assert_array_equal(q8.Session(model, device="reference")(X), np.maximum(X, 0))
    quantized = q8.quantize(by_rate(), calibration=[X], constants={"sr": 16000}, progress=False)
    np.testing.assert_allclose(q8.Session(quantized, device="reference")(X), np.maximum(X, 0), atol=0.03)
    (tmp_path / "net.onnx").write_bytes(by_rate())
    made = tmp_path / "net.q8ta"
    assert main(["import", str(tmp_path / "net.onnx"), "-o", str(made), "--constant", "sr=16000"]) == 0
    assert list(q8.load(made).inputs) == ["x"]
    assert main(["import", str(tmp_path / "net.onnx"), "-o", str(made), "--constant", "sr=fast"]) != 0


def test_a_condition_that_an_input_decides_is_refused_with_the_way_out() -> None:
    with pytest.raises(q8.UnsupportedError, match=r"If .* at 'y': its condition is computed.*--constant NAME=16000"):
        q8.from_onnx(by_rate())
    with pytest.raises(q8.UnsupportedError, match="Det"):
        q8.from_onnx(by_rate(), constants={"sr": 8000})


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"rate": 16000}, "constants name 'rate', which is no input of the file: it has 'x', 'sr'"),
        ({"sr": 1.5}, "the constant for input 'sr' must be int64, found '1.5'"),
        ({"sr": [1, 2]}, r"the constant for input 'sr' must have the shape \(\), found \(2,\)"),
        ({"sr": "fast"}, "constant 'sr' .*|the constant for input 'sr' must be int64"),
        ([16000], "constants must be arrays by name"),
    ],
)
def test_constants_that_do_not_fit_are_named(constants: Any, message: str) -> None:
    with pytest.raises(q8.InputError, match=message):
        q8.from_onnx(by_rate(), constants=constants)


def test_what_no_output_depends_on_is_no_problem() -> None:
    nodes = [helper.make_node("Det", ["x"], ["unused"]), helper.make_node("Relu", ["x"], ["y"])]
    np.testing.assert_array_equal(q8.Session(q8.from_onnx(of_nodes(nodes)), device="reference")(X), np.maximum(X, 0))


def test_compare_takes_the_constants_of_a_model() -> None:
    """A file was said to be another one than the model was made of."""
    rng = np.random.default_rng(0)
    items = [rng.standard_normal((1, 4)).astype(np.float32) for _ in range(4)]
    model = q8.quantize(by_rate(), calibration=items, constants={"sr": 16000}, progress=False)
    found = q8.compare(by_rate(), model, {"x": items[0], "sr": 16000})
    assert [layer.name for layer in found.layers if layer.output] == ["y"]
    with pytest.raises(q8.InputError, match="fixed by constants=, give its value beside the inputs"):
        q8.compare(by_rate(), model, items[0])
