"""What operators of int16 values become: one node of integers, or float32 with a note that says why."""

from __future__ import annotations

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, InputError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs


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
    assert [node.op for node in found.nodes] == ["q8ta_where"], found.notes
    inputs: dict[str, Array] = {
        "mask": np.array([0, 1, 0, 1, 0, 1, 0], np.int8),
        "x": np.array([-32768, -1, 0, 1, 300, 400, 32767], np.int16),
    }
    (y,) = graph.outputs
    np.testing.assert_array_equal(reference.run(found, inputs)[y], reference.run(graph, inputs)[y])


@pytest.mark.parametrize("dtype", [INT8X4, INT16X4])
@pytest.mark.parametrize(("constant", "op"), [((2, 7), "int"), ((3, 2, 7), "where"), ((7,), "int")])
def test_a_number_that_is_repeated_replaces_elements(constant: tuple[int, ...], op: str, dtype: str) -> None:
    """As one number does, if the others give the result its shape; it was left in float32."""
    q, shape = QParams(2.0**-6, -30, dtype), (2, 7)
    graph = Graph(["mask", "x"])
    graph.types |= {"mask": TensorType(shape, INT8X4, QParams(1.0, 0)), "x": TensorType(shape, dtype, q)}
    graph.types |= {
        "held": TensorType(shape),
        "real": TensorType(shape),
        "filled": TensorType((*constant[:-2], *shape)),
    }
    graph.add_constant("numbers", np.full(constant, -0.75, np.float32))
    graph.nodes = [
        Node("dequantize", ("mask",), "held"),
        Node("dequantize", ("x",), "real"),
        Node("where", ("held", "numbers", "real"), "filled"),
    ]
    _append(graph, "filled", [("quantize", q)])
    found = run_passes(graph)
    assert ("q8ta_where" if op == "int" else op) in {node.op for node in found.nodes}, found.notes
    inputs: dict[str, Array] = {
        "mask": np.resize(np.array([0, 1, 1], np.int8), shape),
        "x": np.arange(-100, 96, 14).reshape(shape).astype(np.int8 if dtype == INT8X4 else np.int16),
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
