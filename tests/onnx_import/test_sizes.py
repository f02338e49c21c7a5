"""Files whose inputs have sizes that are any: one model, and what it gives at each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from testbed.onnx.networks import Net
from tests.onnx_import.test_float import by_onnx_runtime, decibels


def opened(net: onnx.ModelProto, *names: str) -> bytes:
    """The file with names in place of the sizes of its input."""
    for port in (*net.graph.input, *net.graph.output):
        port.type.tensor_type.ClearField("shape")
    for name in names:
        dim = net.graph.input[0].type.tensor_type.shape.dim.add()
        if name.isdecimal():
            dim.dim_value = int(name)
        else:
            dim.dim_param = name
    del net.graph.value_info[:]
    return bytes(net.SerializeToString())


def attention() -> bytes:
    """A batch of sequences: sizes are computed from shapes, positions are a part of a table."""
    net = Net((2, 12, 32))
    shape = net.add("Shape", "x")
    batch, length = (net.add("Gather", shape, net.constant(np.array([i])), axis=0) for i in (0, 1))
    table = net.weight(1, 20, 32, scale=0.5)
    part = net.add("Slice", table, net.constant(np.array([0])), length, net.constant(np.array([1])))
    x = net.add("Add", net.linear("x", 32, 32), part)
    heads = net.add("Concat", batch, length, *(net.constant(np.array([n])) for n in (2, 16)), axis=0)
    q, k, v = (
        net.add("Transpose", net.add("Reshape", net.linear(x, 32, 32), heads), perm=order)
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.add("Softmax", net.add("Div", net.add("MatMul", q, k), net.constant(np.float32(4))), axis=-1)
    y = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    whole = net.add("Concat", batch, length, net.constant(np.array([32])), axis=0)
    return opened(net.model(net.linear(net.add("Reshape", y, whole), 32, 32)), "N", "T", "32")


def image() -> bytes:
    """Convolutions, and an upsampling to the size of what was before."""
    net = Net((1, 3, 16, 16))
    first = net.add("Relu", net.conv("x", 3, 8))
    x = net.add("Relu", net.conv(first, 8, 16, stride=2))
    sizes = net.add("Shape", first)
    pixels = net.add("Slice", sizes, *(net.constant(np.array([n])) for n in (2, 4, 0)))
    channels = net.constant(np.array([1, 16]))
    to = net.add("Concat", channels, pixels, axis=0)
    x = net.add(
        "Resize", x, "", "", to, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return opened(net.model(net.conv(net.add("Concat", x, first, axis=1), 24, 4)), "1", "3", "H", "W")


def drawn(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("made", "sizes", "shapes"),
    [
        (attention, {"N": (1, 3), "T": (1, 20)}, [(3, 20, 32), (1, 7, 32), (2, 1, 32)]),
        (attention, {"N": 2, "T": (3, 12)}, [(2, 12, 32), (2, 3, 32)]),
        (image, {"H": (2, 24, 2), "W": (2, 20, 2)}, [(1, 3, 24, 20), (1, 3, 2, 14), (1, 3, 10, 6)]),
    ],
)
def test_a_file_takes_the_sizes_that_arrive(
    made: Callable[[], bytes], sizes: dict[str, int | tuple[int, ...]], shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    data = made()
    model = q8.quantize(data, calibration=[drawn(*shapes[0]), drawn(*shapes[0]) * 0.9], sizes=sizes)
    assert not model.report().islands
    model.save(tmp_path / "net.q8ta")
    session = q8.Session(q8.load(tmp_path / "net.q8ta"), device="reference")
    whole = q8.Session(q8.from_onnx(data, sizes=sizes), device="reference")
    for shape in shapes:
        x = drawn(*shape)
        (expected,) = by_onnx_runtime(data, x)
        assert decibels(session(x), expected) > 20
        np.testing.assert_allclose(whole(x), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("most", "read"), [(200, 0), (300, 0), (300, 2)])
def test_states_of_a_layer_have_as_many_bits_at_each_size(most: int, read: int) -> None:
    """The states of a cell that forgets little outgrow their range with the longest sequence, also where the last state
    of the cell alone is read."""
    net = Net((most, 1, 4))
    bias = np.concatenate([np.full(12, 6.0), np.ones(4), np.zeros(16)]).astype(np.float32)[None]  # of i, o, f and c
    weights = (net.weight(1, 16, 4, scale=0.3), net.weight(1, 16, 4, scale=0.3), net.constant(bias))
    results = [""] * read + ["y"]
    net.nodes.append(onnx.helper.make_node("LSTM", ["x", *weights], results, name="cell", hidden_size=4))
    data = opened(net.model(net.linear("y", 4, 3)), "T", "1", "4")
    model = q8.quantize(data, calibration=[drawn(most, 1, 4)] * 2, sizes={"T": (4, most)}, progress=False)
    assert [node.attrs["shifts"][1] > 0 for node in model.graph.nodes if "lstm" in node.op] == [True]
    session = q8.Session(model, device="reference")
    for steps in (most, 60, 4):
        x = drawn(steps, 1, 4)
        assert decibels(session(x), by_onnx_runtime(data, x)[0]) > (18 if read else 30)


def test_a_size_out_of_its_range_is_refused() -> None:
    session = q8.Session(q8.from_onnx(attention(), sizes={"N": 1, "T": (2, 8)}), device="reference")
    with pytest.raises(q8.InputError, match="T from 2 to 8, found 9"):
        session(drawn(1, 9, 32))


def test_a_size_that_the_file_does_not_have_is_refused() -> None:
    """A name with a slip of the pen was ignored."""
    with pytest.raises(q8.InputError, match=r"sizes name 'Q', but the file leaves these open: N, T"):
        q8.from_onnx(attention(), {"N": 2, "T": 12, "Q": 3})


def test_what_is_no_formula_in_the_sizes_is_refused() -> None:
    with pytest.raises(q8.UnsupportedError, match=r"the file does not follow the sizes that are ranges.*in steps"):
        q8.from_onnx(image(), sizes={"H": (2, 24), "W": 8})  # twice what is half of an odd size is another one


@pytest.mark.parametrize("sizes", [{"H": (3, 2)}, {"H": (1, 2, 3, 4)}, {"H": (0, 4)}, {"H": (1, 2.5)}])
def test_a_range_is_a_pair_of_sizes(sizes: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(q8.InputError, match=r"sizes must be integers|the least first"):
        q8.from_onnx(image(), sizes={**sizes, "W": 8})


def test_reshape_keeps_rows_of_tokens_apart() -> None:
    """Rows are gathered as one list, which was cut into rows of the old length."""
    table = onnx.numpy_helper.from_array(drawn(9, 8), "table")
    ports = [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 4])]
    ends = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    node = onnx.helper.make_node("Gather", ["table", "ids"], ["y"])
    opsets = [onnx.helper.make_opsetid("", 17)]
    net = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ports, ends, [table]), opset_imports=opsets)
    model = q8.from_onnx(net.SerializeToString())
    assert model.reshape((3, 4)).outputs[0].shape == (3, 4, 8)
    with pytest.raises(q8.InputError, match=r"dimension 1 of input ids must be 4, found 2: .* rows of one length"):
        model.reshape((2, 2))
