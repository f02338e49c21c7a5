"""Files that cannot be imported, and files made to do harm: one of our errors, soon, that names the place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8

FLOAT = TensorProto.FLOAT


def model(
    nodes: list[onnx.NodeProto], *constants: onnx.TensorProto, shape: Any = (2, 3), **more: Any
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info("x", more.pop("dtype", FLOAT), shape)]
    results = [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "net", ports, results, list(constants))
    opset = helper.make_opsetid("", more.pop("opset", 17))
    return helper.make_model(graph, opset_imports=[opset, helper.make_opsetid("own", 1)], ir_version=9, **more)


def node(op: str, *inputs: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [to], name=f"the_{op.lower()}", **attributes)


def many() -> onnx.ModelProto:
    doubled = [node("Concat", f"c{i}", f"c{i}", to=f"c{i + 1}", axis=0) for i in range(60)]
    return model([*doubled, node("Add", "x", "c60")], numpy_helper.from_array(np.ones(1 << 10, np.float32), "c0"))


def functions(depth: int, circle: bool) -> onnx.ModelProto:
    def function(i: int) -> onnx.FunctionProto:
        inner = [
            helper.make_node(f"F{(i + 1) % depth if circle else i + 1}", ["a"], [f"b{k}"], domain="own") for k in "12"
        ]
        last = [helper.make_node("Add", ["b1", "b2"], ["c"])]
        body = [*inner, *last] if circle or i + 1 < depth else [helper.make_node("Relu", ["a"], ["c"])]
        return helper.make_function(
            "own", f"F{i}", ["a"], ["c"], body, [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        )

    made = model([helper.make_node("F0", ["x"], ["y"], domain="own")])
    made.functions.extend(function(i) for i in range(depth))
    return made


def nested() -> onnx.ModelProto:
    inner = helper.make_graph([node("Relu", "x")], "g", [], [helper.make_tensor_value_info("y", FLOAT, None)])
    for _ in range(12):
        again = [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
        inner = helper.make_graph(again, "g", [], [helper.make_tensor_value_info("y", FLOAT, None)])
    return model(
        [helper.make_node("If", ["c"], ["y"], "branch", then_branch=inner, else_branch=inner)],
        numpy_helper.from_array(np.array(True), "c"),
    )


def lying() -> onnx.ModelProto:
    return model(
        [node("Add", "x", "w")], TensorProto(name="w", dims=[1 << 20, 1 << 20], data_type=FLOAT, raw_data=b"1234")
    )


def shaped(op: str, *numbers: int) -> onnx.ModelProto:
    return model([node(op, "x", "n")], numpy_helper.from_array(np.array(numbers, np.int64), "n"))


HUGE = 1 << 40


def whole_numbers() -> onnx.ModelProto:
    return model([helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("Mul", "i", "i")])


def huge() -> onnx.ModelProto:
    nodes = [node("ConstantOfShape", "n", to="c"), node("Add", "x", "c")]
    return model(nodes, numpy_helper.from_array(np.array([HUGE]), "n"))


def slow() -> onnx.ModelProto:
    """A loop in Python over four million elements."""
    shape = numpy_helper.from_array(np.array([1 << 22, 1]), "n")
    fill = numpy_helper.from_array(np.array([0.0], np.float32), "c")
    zero = numpy_helper.from_array(np.array([0]))
    nodes = [
        node("ConstantOfShape", "n", to="i", value=zero),
        node("GatherND", "c", "i", to="g"),
        node("Add", "x", "g"),
    ]
    return model(nodes, shape, fill)


def parts(count: int) -> onnx.ModelProto:
    data = numpy_helper.from_array(np.ones(4, np.float32), "c")
    return model([node("Split", "c", to="s", num_outputs=count), node("Add", "x", "s")], data, opset=18)


def elements(place: int) -> onnx.ModelProto:
    data = numpy_helper.from_array(np.ones(4, np.float32), "c"), numpy_helper.from_array(np.array([place]), "i")
    return model([node("GatherElements", "c", "i", to="g"), node("Add", "x", "g")], *data)


def resized() -> onnx.ModelProto:
    scales = numpy_helper.from_array(np.array([1, 1, 1, 2], np.float32), "s")
    return model([node("Resize", "x", "", "s", mode="cubic")], scales, shape=(1, 1, 1, 1 << 14))


def without_output() -> onnx.ModelProto:
    made = model([node("Relu", "x")])
    del made.graph.output[:]
    return made


def infinite() -> onnx.ModelProto:
    """A mask of -inf as ONNX Runtime's static quantizer writes it."""
    mask, scale, zero = np.array([0, -np.inf, 0], np.float32), np.array(np.inf, np.float32), np.array(127, np.int8)
    return model(
        [
            node("QuantizeLinear", "mask", "scale", "zero", to="q"),
            node("DequantizeLinear", "q", "scale", "zero", to="m"),
            node("Add", "x", "m"),
        ],
        *(numpy_helper.from_array(a, name) for a, name in ((mask, "mask"), (scale, "scale"), (zero, "zero"))),
    )


REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "infinite scale": (infinite, "'the_quantizelinear'.* scale is inf: calibration met infinities.* finite low"),
    "operator": (lambda: model([node("Det", "x")]), r"Det \(opset 17\) at 'the_det"),
    "unknown operator": (lambda: model([node("Own", "x", domain="own")]), r"own\.Own \(opset 1\) .* not known"),
    "control flow": (nested, "a branch of a branch, more than 8 deep"),
    "circle": (lambda: model([node("Add", "x", "y")]), "reads 'y', which nothing before it writes"),
    "two of a name": (lambda: model([node("Relu", "x"), node("Exp", "x")]), "two values that are called 'y'"),
    "open size": (lambda: model([node("Relu", "x")], shape=("batch", 3)), r"sizes=\{'batch': 1\} or --size 'batch=1',"),
    "no shape": (lambda: model([node("Relu", "x")], shape=None), "input 'x' has no shape"),
    "double": (lambda: model([node("Relu", "x")], dtype=TensorProto.DOUBLE), "must be float32.*found double"),
    "opset": (lambda: model([node("Relu", "x")], opset=5), r"opset 5, 7 to \d+ are read: convert it"),
    "attribute": (lambda: model([node("Softmax", "x", axis=5)]), r"must be in \[-2 , 1\]. Its actual value is: 5"),
    "kind of attribute": (lambda: model([node("Softmax", "x", axis="last")]), "attribute type .*axis.*STRING"),
    "missing input": (lambda: model([node("Add", "x")]), "input size 1 not in range"),
    "scale": (lambda: model([node("QuantizeLinear", "x", "x")]), "its scale is computed while the network runs"),
    "integers": (whole_numbers, "computes with int64"),
    "lying shape": (lying, r"'w' has the shape \(1048576, 1048576\), but data of 4"),
    "huge constant": (huge, "constant of 1099511627776 elements"),
    "doubled constants": (many, "computes a constant of"),
    "slow constant": (slow, "or takes as long"),
    "parts": (lambda: parts(1 << 31), "num_outputs is 2147483648, and it has 1"),
    "index of a constant": (lambda: elements(1 << 40), "index 1099511627776 is out of bounds"),
    "weights of a resize": (resized, "67108864 weights at most"),
    "unexpected text": (lambda: model([node("Cast", "x", to="text")]), "Cast"),
    "huge shape": (lambda: shaped("Expand", HUGE, 3), "from 1 to"),
    "huge repeats": (lambda: shaped("Tile", HUGE, 3), "repeats"),
    "impossible reshape": (lambda: shaped("Reshape", 7, HUGE), "Reshape"),
    "functions in a circle": (lambda: functions(3, True), "calls itself"),
    "functions without end": (lambda: functions(40, False), "nodes, more than"),
    "no output": (without_output, "nothing to compute"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_imported_is_named(case: str) -> None:
    make, message = REFUSED[case]
    data, begun = make().SerializeToString(), time.monotonic()
    with pytest.raises(q8.Q8taError, match=message):
        q8.from_onnx(data)
    assert time.monotonic() - begun < 20


def deep(levels: int) -> bytes:
    """An attribute's graph in a graph in a graph, by hand: messages nested deeper than a parser takes."""
    data = b""
    for _ in range(levels):
        for tag in (0x32, 0x2A, 0x0A):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            length, size = b"", len(data)
            while size >= 128:
                length, size = length + bytes([size & 127 | 128]), size >> 7
            data = bytes([tag]) + length + bytes([size]) + data
    return (
        b"\x3a" + bytes([len(data)]) + data
        if len(data) < 128
        else b"\x3a" + bytes([len(data) & 127 | 128, len(data) >> 7]) + data
    )


@pytest.mark.parametrize("data", [b"", b"\x00" * 64, b"no onnx file", deep(60), deep(8)[:-3]])
def test_what_is_no_onnx_file_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(q8.Q8taError, match="no ONNX file"):
        q8.from_onnx(data)


def test_every_cut_and_many_changed_bytes_end_in_an_error_of_ours_or_a_model() -> None:
    whole = bytearray(
        model(
            [node("Conv", "x", "w", pads=[1, 1, 1, 1])],
            numpy_helper.from_array(np.ones((2, 3, 3, 3), np.float32), "w"),
            shape=(1, 3, 5, 5),
        ).SerializeToString()
    )
    random = np.random.default_rng(0)
    for i in range(300):
        data = bytearray(whole)
        if i < 100:
            data = data[: random.integers(len(data))]
        else:
            for place in random.integers(len(data), size=3):
                data[place] = random.integers(256)
        with contextlib.suppress(q8.Q8taError):
            q8.from_onnx(bytes(data))


def external(location: str, **more: str) -> onnx.ModelProto:
    tensor = TensorProto(name="w", dims=[3], data_type=FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return model([node("Add", "x", "w")], tensor)


def test_external_data_is_read_from_the_folder_of_the_file_alone(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    path = folder / "net.onnx"
    for where in (tmp_path / "outside.bin", folder / "inside.bin"):
        where.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "circle.bin").symlink_to("circle.bin")
    path.write_bytes(external("inside.bin", offset="4", length="12").SerializeToString())
    x = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(q8.Session(q8.from_onnx(path), device="reference")(x), x + np.array([1, 2, 3]))
    with pytest.raises(q8.UnsupportedError, match="give the path, not the bytes"):
        q8.from_onnx(path.read_bytes())
    outside = ("../outside.bin", str(tmp_path / "outside.bin"), "link.bin", "/dev/zero")
    for location in (*outside, "circle.bin", "missing.bin", "a\0b", "x" * 5000, "", "."):
        path.write_bytes(external(location).SerializeToString())
        with pytest.raises(q8.UnsupportedError, match="which is no file in"):
            q8.from_onnx(path)
    for more in ({"offset": "8"}, {"length": "4"}, {"offset": "-4"}, {"offset": "one"}):
        path.write_bytes(external("inside.bin", **more).SerializeToString())
        with pytest.raises(q8.UnsupportedError, match="initializer 'w'"):
            q8.from_onnx(path)


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"batch": "two"}, 3])
def test_sizes_are_numbers_by_name(sizes: Any) -> None:
    with pytest.raises(q8.InputError, match=r"size"):
        q8.from_onnx(model([node("Relu", "x")], shape=("batch", 3)).SerializeToString(), sizes)


def test_a_source_is_a_path_or_bytes(tmp_path: Path) -> None:
    for source, message in ((3, "found int"), (tmp_path / "none.onnx", "cannot read")):
        with pytest.raises(q8.InputError, match=message):
            q8.from_onnx(source)  # type: ignore[arg-type]
