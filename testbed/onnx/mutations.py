"""Damaged ONNX files: bytes and structure changed at random. An input's number determines its content."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx
from onnx import AttributeProto, TensorProto, helper

HUGE = (0, 1, -1, 2, 7, 255, 1 << 16, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
"""Numbers that take the place of others."""

PATHS = ("../secret", "/etc/hostname", "secret", "sub/../../secret", "", "\0", "x" * 5000, ".", "net.onnx")
"""Locations of external data."""


def mutated(files: Sequence[bytes], number: int) -> bytes:
    """A file with one to three faults."""
    drawn = random.Random(number)
    data = files[number % len(files)]
    if drawn.random() < 0.3:
        return _bytes(data, drawn)
    model = onnx.ModelProto.FromString(data)
    for _ in range(drawn.randint(1, 3)):
        drawn.choice(_EDITS)(model, drawn)
    return bytes(model.SerializeToString())


def _bytes(data: bytes, drawn: random.Random) -> bytes:
    found = bytearray(data)
    what = drawn.random()
    if what < 0.2:
        return bytes(found[: drawn.randrange(len(found))])
    for _ in range(drawn.choice((1, 4, 40))):
        at = drawn.randrange(min(len(found), 4000) if what < 0.6 else len(found))
        found[at] = drawn.randrange(256)
    return bytes(found)


def _node(model: onnx.ModelProto, drawn: random.Random) -> onnx.NodeProto:
    found: onnx.NodeProto = drawn.choice(model.graph.node) if model.graph.node else model.graph.node.add()
    return found


def _remove(model: onnx.ModelProto, drawn: random.Random) -> None:
    if model.graph.node:
        del model.graph.node[drawn.randrange(len(model.graph.node))]


def _again(model: onnx.ModelProto, drawn: random.Random) -> None:
    model.graph.node.add().CopyFrom(_node(model, drawn))


def _operator(model: onnx.ModelProto, drawn: random.Random) -> None:
    names = [node.op_type for node in model.graph.node] + ["If", "Loop", "Resize", "Reshape", "Cast", "LSTM", "Own", ""]
    node = _node(model, drawn)
    node.op_type, node.domain = drawn.choice(names), drawn.choice(("", "", "com.microsoft", "own"))


def _inputs(model: onnx.ModelProto, drawn: random.Random) -> None:
    node = _node(model, drawn)
    names = [name for other in model.graph.node[:200] for name in (*other.input, *other.output)] or [""]
    if node.input and drawn.random() < 0.7:
        node.input[drawn.randrange(len(node.input))] = drawn.choice((*names, "", "nothing"))
    elif node.input and drawn.random() < 0.5:
        del node.input[-1]
    else:
        node.input.append(drawn.choice(names))


def _outputs(model: onnx.ModelProto, drawn: random.Random) -> None:
    node = _node(model, drawn)
    if node.output:
        node.output[drawn.randrange(len(node.output))] = drawn.choice(
            ("", "x", *(o for n in model.graph.node[:50] for o in n.output))
        )


def _attribute(model: onnx.ModelProto, drawn: random.Random) -> None:
    node = _node(model, drawn)
    if not node.attribute or drawn.random() < 0.2:
        node.attribute.append(
            helper.make_attribute(drawn.choice(("axis", "axes", "to", "group", "own")), drawn.choice(HUGE[:8]))
        )
        return
    given = drawn.choice(node.attribute)
    if given.type == AttributeProto.INT:
        given.i = drawn.choice(HUGE)
    elif given.type == AttributeProto.INTS and given.ints:
        given.ints[drawn.randrange(len(given.ints))] = drawn.choice(HUGE)
    elif given.type == AttributeProto.FLOAT:
        given.f = drawn.choice((0.0, float("nan"), float("inf"), -1e38))
    elif given.type == AttributeProto.STRING:
        given.s = drawn.choice((b"", b"\xff\xfe", b"NOTSET", b"reflect"))
    elif given.type == AttributeProto.TENSOR:
        _damage(given.t, drawn)
    else:
        given.type = drawn.choice((AttributeProto.INT, AttributeProto.GRAPH, AttributeProto.STRINGS))


def _constant(model: onnx.ModelProto, drawn: random.Random) -> None:
    if model.graph.initializer:
        _damage(drawn.choice(model.graph.initializer), drawn)


def _damage(tensor: TensorProto, drawn: random.Random) -> None:
    what = drawn.randrange(4)
    if what == 0 and tensor.dims:
        tensor.dims[drawn.randrange(len(tensor.dims))] = drawn.choice(HUGE)
    elif what == 1:
        tensor.data_type = drawn.randrange(28)
    elif what == 2:
        tensor.raw_data = tensor.raw_data[: drawn.randrange(len(tensor.raw_data) + 1)]
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", drawn.choice(PATHS)), ("offset", str(drawn.choice(HUGE))), ("length", "4")):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value


def _input(model: onnx.ModelProto, drawn: random.Random) -> None:
    if not model.graph.input:
        return
    tensor = drawn.choice(model.graph.input).type.tensor_type
    if drawn.random() < 0.3:
        tensor.elem_type = drawn.randrange(28)
    elif tensor.shape.dim:
        tensor.shape.dim[drawn.randrange(len(tensor.shape.dim))].dim_value = drawn.choice(HUGE)


def _ports(model: onnx.ModelProto, drawn: random.Random) -> None:
    ports = drawn.choice((model.graph.input, model.graph.output))
    if ports and drawn.random() < 0.5:
        del ports[drawn.randrange(len(ports))]
    else:
        names = [name for node in model.graph.node[:50] for name in node.output] or ["x"]
        ports.append(helper.make_tensor_value_info(drawn.choice(names), TensorProto.FLOAT, None))


def _opset(model: onnx.ModelProto, drawn: random.Random) -> None:
    if model.opset_import:
        entry = drawn.choice(model.opset_import)
        entry.version = drawn.choice((*range(1, 30), *HUGE))


def _order(model: onnx.ModelProto, drawn: random.Random) -> None:
    nodes = list(model.graph.node)
    drawn.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


_EDITS: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    *(_remove, _again, _operator, _inputs, _inputs, _outputs, _attribute, _attribute, _attribute),
    *(_constant, _constant, _input, _ports, _opset, _order),
)
