"""Small networks as ONNX files, and what ONNX Runtime's quantizers make of them."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from q8ta_wgpu.ir.graph import Array
from testbed.onnx.exact import exact


class Net:
    """A float network under construction: each method adds a node and returns the name of its value."""

    def __init__(self, shape: Sequence[int], seed: int = 0) -> None:
        self.shape = tuple(shape)
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, scale: float = 0.0) -> str:
        deviation = scale or (2 / np.prod(shape[1:])) ** 0.5
        return self.constant((self.random.standard_normal(shape) * deviation).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, group: int = 1) -> str:
        weight, bias = self.weight(outputs, inputs // group, kernel, kernel), self.weight(outputs, scale=0.1)
        sizes = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
        return self.add("Conv", x, weight, bias, group=group, **sizes)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        y = self.add("MatMul", x, self.weight(inputs, outputs, scale=inputs**-0.5))
        return self.add("Add", y, self.weight(outputs, scale=0.1))

    def model(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", ports, results, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model)


def single() -> onnx.ModelProto:
    """One convolution, whose result is rounded once."""
    net = Net((1, 16, 24, 24))
    return net.model(net.conv("x", 16, 32))


def residual() -> onnx.ModelProto:
    """Convolutions with residuals, pooling, a linear."""
    net = Net((1, 3, 24, 24))
    x = net.add("Relu", net.conv("x", 3, 16))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = net.conv(net.add("Relu", net.conv(x, 16, 16)), 16, 16)
    x = net.add("Relu", net.add("Add", x, y))
    flat = net.add("Flatten", net.add("GlobalAveragePool", x))
    bias = net.weight(10, scale=0.1)
    return net.model(x, net.add("Gemm", flat, net.weight(10, 16), bias, transB=1))


def depthwise() -> onnx.ModelProto:
    """Inverted residuals with clips and gates of channels."""
    net = Net((1, 3, 24, 24))
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    x = net.add("Clip", net.conv("x", 3, 16, stride=2), low, high)
    y = net.add("Clip", net.conv(x, 16, 32, 1), low, high)
    y = net.add("Clip", net.conv(y, 32, 32, group=32), low, high)
    gate = net.add("Sigmoid", net.conv(net.add("GlobalAveragePool", y), 32, 32, 1))
    return net.model(net.add("Add", x, net.conv(net.add("Mul", y, gate), 32, 16, 1)))


def upsampling() -> onnx.ModelProto:
    """A U-Net: pooled, upsampled and joined with what was before."""
    net = Net((1, 3, 24, 24))
    first = net.add("LeakyRelu", net.conv("x", 3, 8), alpha=0.1)
    x = net.add("AveragePool", first, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1])
    x = net.add("Relu", net.conv(x, 8, 16))
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    x = net.add(
        "Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
    )
    return net.model(net.conv(net.add("Concat", x, first, axis=1), 24, 8))


def transformer() -> onnx.ModelProto:
    """A block of a transformer: attention of two heads, a norm, linears. Its sizes are computed from shapes."""
    net = Net((1, 16, 32))
    x = net.add(
        "LayerNormalization", "x", net.constant(np.ones(32, np.float32)), net.constant(np.zeros(32, np.float32))
    )
    batch = net.add("Gather", net.add("Shape", x), net.constant(np.int64(0)), axis=0)
    parts = [
        net.add("Unsqueeze", batch, net.constant(np.array([0]))),
        *(net.constant(np.array([n])) for n in (16, 2, 16)),
    ]
    shape = net.add("Concat", *parts, axis=0)
    q, k, v = (
        net.add("Transpose", net.add("Reshape", net.linear(x, 32, 32), shape), perm=order)
        for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = net.add("Softmax", net.add("Div", net.add("MatMul", q, k), net.constant(np.float32(4))), axis=-1)
    y = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
    y = net.linear(net.add("Reshape", y, net.constant(np.array([1, 16, 32]))), 32, 32)
    x = net.add("Add", "x", y)
    wide = net.linear(x, 32, 64)
    half = net.add("Div", wide, net.constant(np.float32(2**0.5)))
    gelu = net.add(
        "Mul",
        net.add("Mul", wide, net.add("Add", net.add("Erf", half), net.constant(np.float32(1)))),
        net.constant(np.float32(0.5)),
    )
    return net.model(net.add("Add", x, net.linear(gelu, 64, 32)))


NETWORKS = {f.__name__: f for f in (single, residual, depthwise, upsampling, transformer)}

KINDS = {"s8s8": ("QInt8", "QInt8", True), "u8s8": ("QUInt8", "QInt8", True), "u8u8": ("QUInt8", "QUInt8", False)}
"""Types of activations and weights, and whether weights have scales by channel."""


def inputs(name: str, count: int) -> list[Array]:
    """Inputs of a network."""
    random = np.random.default_rng(7)
    shape = [d.dim_value for d in NETWORKS[name]().graph.input[0].type.tensor_type.shape.dim]
    return [random.standard_normal(shape).astype(np.float32) for _ in range(count)]


@functools.cache
def quantized(name: str, form: str, kind: str) -> bytes:
    """A network quantized by ONNX Runtime in the form QDQ, QOperator or dynamic."""
    return quantize(NETWORKS[name]().SerializeToString(), form, inputs(name, 4), KINDS[kind])


def quantize(
    data: bytes, form: str, calibration: Sequence[Array], kind: tuple[str, str, bool], operators: Sequence[str] = ()
) -> bytes:
    """A float file with the input x, as ONNX Runtime quantizes it in the form QDQ, QOperator or dynamic: all operators,
    or these."""
    from onnxruntime import quantization as made

    class Reader(made.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(calibration)

        def get_next(self) -> dict[str, Array] | None:
            found = next(self.left, None)
            return None if found is None else {"x": found}

    activations, weights, by_channel = kind
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "quantized.onnx")
        source.write_bytes(data)
        if form == "dynamic":
            made.quantize_dynamic(source, target, per_channel=by_channel, weight_type=made.QuantType[weights])
        else:
            made.quantize_static(
                source,
                target,
                Reader(),
                quant_format=made.QuantFormat[form],
                per_channel=by_channel,
                activation_type=made.QuantType[activations],
                weight_type=made.QuantType[weights],
                op_types_to_quantize=list(operators) or None,
            )
        logging.disable(logging.NOTSET)
        return target.read_bytes()


def by_onnx_runtime(data: bytes, x: Array) -> list[Array]:
    """Results of ONNX Runtime's processor provider, node by node as the file says, with exact products of integers."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exact(data), options, providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, {session.get_inputs()[0].name: x})]
