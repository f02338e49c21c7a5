"""ONNX's Einsum: any sum of products of one or two values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.ir.graph import Array

SHAPES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6}
"""Extents by letter."""


def made(equation: str, constant: int = -1) -> tuple[onnx.ModelProto, list[Array], Array]:
    """A file of an Einsum of random values, of which one may be a constant; its inputs and what NumPy gives."""
    terms = equation.partition("->")[0].replace(" ", "").split(",")
    rng = np.random.default_rng(len(equation))
    arrays = [rng.standard_normal([SHAPES[letter] for letter in term]).astype(np.float32) for term in terms]
    names = [f"x{i}" for i in range(len(terms))]
    stored = [
        numpy_helper.from_array(a, n) for i, (a, n) in enumerate(zip(arrays, names, strict=True)) if i == constant
    ]
    given = [(a, n) for i, (a, n) in enumerate(zip(arrays, names, strict=True)) if i != constant]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)],
        "einsum",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape) for array, name in given],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model, [array for array, _ in given], np.einsum(equation, *arrays)


@pytest.mark.parametrize(
    ("equation", "constant"),
    [
        ("abcd,aecd->aceb", -1),  # scores of heads
        ("abcd,ecd->aceb", -1),
        ("acbe,aecd->abcd", -1),
        ("ab->ba", -1),
        ("abc->b", -1),
        ("a,b->ab", -1),
        ("ab, ac", -1),
        ("ab,ab->", -1),
        ("ab,ab->a", -1),
        ("abc,acd->d", -1),
        ("abc,cd->abd", 1),
        ("de,abe->adb", 0),
    ],
)
def test_a_sum_of_products_is_that_of_numpy(equation: str, constant: int) -> None:
    model, inputs, expected = made(equation, constant)
    found = np.asarray(q8.Session(q8.from_onnx(model.SerializeToString()), "reference")(*inputs))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_constant_matrix_is_a_weight() -> None:
    for equation, constant in (("abc,cd->abd", 1), ("dc,abc->abd", 0)):
        nodes = q8.from_onnx(made(equation, constant)[0].SerializeToString()).graph.nodes
        assert [node.op for node in nodes if node.op not in ("view", "permute")] == ["linear"]


@pytest.mark.parametrize("equation", ["aa->a", "ab,bc,cd->ad"])
def test_what_is_no_product_is_refused_by_name(equation: str) -> None:
    model, *_ = made(equation)
    with pytest.raises(UnsupportedError, match=rf"Einsum .*'{equation}': one or two values are supported"):
        q8.from_onnx(model.SerializeToString())
