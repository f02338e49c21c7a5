"""layer_norm, rms_norm and group_norm. Their int8 forms are in norm_int8.py.

instance_norm is group_norm with as many groups as channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Rowwise
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Builder, Case, Op, Operand, extent
from q8ta_wgpu.kernels.lib import onnx_calls, rows
from q8ta_wgpu.kernels.norm import norm_int8
from q8ta_wgpu.kernels.norm.gamma_and_beta import AFFINE, EPS, gamma_and_beta


def _infer_layer_norm(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, gamma, beta = types[0].shape, types[1].shape, types[-1].shape
    if not gamma or len(gamma) > len(shape) or gamma != beta or shape[len(shape) - len(gamma) :] != gamma:
        raise GraphError(f"a norm's gamma {gamma} and beta {beta} must have the last dimensions of {shape}")
    return shape, FLOAT32


def _infer_group_norm(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, gamma, beta = (t.shape for t in types)
    if len(shape) < 2 or shape[1] % attrs["groups"] or gamma != (shape[1],) or beta != gamma:
        raise GraphError(
            f"group_norm of {shape} in {attrs['groups']} groups with gamma {gamma} and beta {beta}: "
            "dimension 1 holds the channels, a multiple of the groups"
        )
    return shape, FLOAT32


def _normalized(x: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    distance = x - x.mean(1, keepdims=True)
    return np.asarray(distance / np.sqrt((distance**2).mean(1, keepdims=True) + eps))


def _layer_norm(call: Call, arrays: Sequence[Array]) -> Array:
    x, gamma, beta = arrays
    normal = _normalized(x.reshape(-1, gamma.size), call.attrs["eps"]).reshape(x.shape)
    return np.asarray(normal * gamma + beta).astype(np.float32)


def _rms_norm(call: Call, arrays: Sequence[Array]) -> Array:
    x, gamma = arrays
    rows = x.reshape(-1, gamma.size).astype(np.float64)
    normal = rows / np.sqrt((rows**2).mean(1, keepdims=True) + call.attrs["eps"])
    return np.asarray(normal.reshape(x.shape) * gamma).astype(np.float32)


def _group_norm(call: Call, arrays: Sequence[Array]) -> Array:
    x, gamma, beta = arrays
    normal = _normalized(x.reshape(x.shape[0] * call.attrs["groups"], -1), call.attrs["eps"]).reshape(x.shape)
    per_channel = (-1,) + (1,) * (x.ndim - 2)
    return np.asarray(normal * gamma.reshape(per_channel) + beta.reshape(per_channel)).astype(np.float32)


def _layer_rows(call: Call) -> rows.Rows:
    length = call.inputs[1].numel
    return rows.Rows(call.output.numel // length, length, inner=1, vectors=length)


def _group_rows(call: Call) -> rows.Rows:
    shape = call.output.shape
    found = shape[0] * call.attrs["groups"]
    return rows.Rows(found, call.output.numel // found, inner=1, vectors=math.prod(shape[2:]))


def _layer_params(call: Call, item: int) -> Params:
    return {"length": np.float32(call.inputs[1].numel), "eps": np.float32(call.attrs["eps"])}


def _group_params(call: Call, item: int) -> Params:
    """Uniform fields: item k of a row belongs to channel `row % groups * per_group + k / inner`."""
    shape, groups = call.output.shape, call.attrs["groups"]
    return {
        "groups": np.uint32(groups),
        "per_group": np.uint32(shape[1] // groups),
        "inner": np.uint32(math.prod(shape[2:]) // item),
        "length": np.float32(_group_rows(call).length),
        "eps": np.float32(call.attrs["eps"]),
    }


def _import_layer_norm(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit(
        "layer_norm",
        (args["input"], *gamma_and_beta(b, args, tuple(args["normalized_shape"]))),
        {"eps": float(args["eps"])},
    )


def _import_native_layer_norm(b: Builder, args: Mapping[str, Any]) -> list[str]:
    return [_import_layer_norm(b, args)]


def _import_rms_norm(b: Builder, args: Mapping[str, Any]) -> str:
    gamma = args["weight"] or b.constant(np.ones(tuple(args["normalized_shape"]), np.float32), "gamma")
    eps = float(np.finfo(np.float32).eps) if args["eps"] is None else float(args["eps"])
    return b.emit("rms_norm", (args["input"], gamma), {"eps": eps})


def _import_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    affine = gamma_and_beta(b, args, b.type(args["input"]).shape[1:2])
    return b.emit("group_norm", (args["input"], *affine), {"groups": args["num_groups"], "eps": float(args["eps"])})


def _import_instance_norm(b: Builder, args: Mapping[str, Any]) -> str:
    if not args["use_input_stats"]:
        return str(b.aten("aten.batch_norm.default", {**args, "training": False}))
    return _import_group_norm(b, {**args, "num_groups": b.type(args["input"]).shape[1]})


def _onnx_layer_norm(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """ONNX's LayerNormalization and RMSNormalization over the last dimensions. gamma and beta may broadcast."""
    x, gamma, beta = (*args["inputs"], None)[:3]
    shape = b.type(x).shape
    normalized = shape[onnx_calls.axis(b, args, len(shape)) :]
    parameters = [
        name if name is None or b.type(name).shape == normalized else b.constant(_broadcast(b, name, normalized))
        for name in (gamma, beta)
    ]
    arguments = {"input": x, "normalized_shape": normalized, "weight": parameters[0], "bias": parameters[1]}
    rms = args["operator"] == "RMSNormalization"
    y: str = b.aten(f"aten.{'rms' if rms else 'layer'}_norm.default", {**arguments, "eps": float(args["epsilon"])})
    return [y] if args["outputs"] == 1 else [y, *_onnx_statistics(b, args, x, len(shape) - len(normalized))]


def _onnx_statistics(b: Builder, args: Mapping[str, Any], x: str, first: int) -> list[str]:
    """The second and third result of LayerNormalization: mean and inverse standard deviation."""
    over = {"dim": list(range(first, len(b.type(x).shape))), "keepdim": True}
    mean: str = b.aten("aten.mean.dim", {"self": x, **over})
    squares = b.emit("pow", (b.aten("aten.sub.Tensor", {"self": x, "other": mean}),), {"exponent": 2.0})
    variance = b.aten("aten.mean.dim", {"self": squares, **over})
    inverse = b.emit("rsqrt", (b.emit("affine", (variance,), {"factor": 1.0, "term": float(args["epsilon"])}),))
    return [mean, inverse]


def _broadcast(b: Builder, name: str, shape: Shape) -> Array:
    array = onnx_calls.constant(b, name, "scale or bias")
    assert array is not None
    lead = array.reshape(array.shape[max(array.ndim - len(shape), 0) :]) if array.ndim > len(shape) else array
    return np.array(np.broadcast_to(lead, shape), np.float32)


def _onnx_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's GroupNormalization, and InstanceNormalization, which has a group for each channel."""
    x, gamma, beta = args["inputs"]
    shape = b.type(x).shape
    groups = int(args.get("num_groups") or shape[1])
    return b.aten(
        "aten.group_norm.default",
        {"input": x, "num_groups": groups, "weight": gamma, "bias": beta, "eps": float(args["epsilon"])},
    )


layer_norm = Op(
    name="layer_norm",
    operands=(Operand("x"), *AFFINE),
    infer=_infer_layer_norm,
    reference=_layer_norm,
    schema={"eps": EPS},
    kernels=(
        rows.kernel(
            "layer_norm",
            ("layer_norm", "affine=affine_element"),
            ("x", "gamma", "beta", "y"),
            _layer_rows,
            _layer_params,
            3,
            {"CENTERED": 1},
        ),
    ),
    aten={
        "aten.layer_norm.default": _import_layer_norm,
        "aten.native_layer_norm.default": _import_native_layer_norm,
    },
    onnx={"LayerNormalization": _onnx_layer_norm},
    int8=Rowwise(norm_int8.lowering("layer_norm"), reads_int16=True, gives_int16=True),
    cases=(
        Case(((2, 7, 192), (192,), (192,)), {"eps": 1e-5}),
        Case(((3, 5), (5,), (5,)), {"eps": 1e-6}),
        Case(((2, 5, 3, 7), (5, 3, 7), (5, 3, 7)), {"eps": 1e-5}),
        Case(((2, 2, 2, 3, 13), (3, 13), (3, 13)), {"eps": 1e-5}),
    ),
    tolerance=2e-5,
    work=lambda call: 3 * call.output.numel,
)

rms_norm = Op(
    name="rms_norm",
    operands=(Operand("x"), AFFINE[0]),
    infer=_infer_layer_norm,
    reference=_rms_norm,
    schema={"eps": EPS},
    kernels=(
        rows.kernel(
            "rms_norm",
            ("layer_norm", "affine=scaled_element"),
            ("x", "gamma", "y"),
            _layer_rows,
            _layer_params,
            3,
            {"CENTERED": 0},
        ),
    ),
    aten={"aten.rms_norm.default": _import_rms_norm},
    onnx={"RMSNormalization": _onnx_layer_norm},
    int8=Rowwise(norm_int8.lowering("rms_norm"), reads_int16=True, gives_int16=True),
    cases=(
        Case(((2, 7, 192), (192,)), {"eps": 1e-5}),
        Case(((3, 5), (5,)), {"eps": 1e-6}),
        Case(((2, 5, 3, 7), (3, 7)), {"eps": 1e-5}),
    ),
    tolerance=2e-5,
    work=lambda call: 3 * call.output.numel,
)

group_norm = Op(
    name="group_norm",
    operands=(Operand("x"), *AFFINE),
    infer=_infer_group_norm,
    reference=_group_norm,
    schema={"eps": EPS, "groups": extent()},
    kernels=(
        rows.kernel(
            "group_norm",
            ("layer_norm", "affine=affine_channel"),
            ("x", "y"),
            _group_rows,
            _group_params,
            3,
            {"CENTERED": 1},
        ),
    ),
    aten={
        "aten.group_norm.default": _import_group_norm,
        "aten.instance_norm.default": _import_instance_norm,
    },
    onnx={"GroupNormalization": _onnx_group_norm, "InstanceNormalization": _onnx_group_norm},
    int8=Rowwise(norm_int8.lowering("group_norm"), reads_int16=True, gives_int16=True),
    cases=(
        Case(((2, 6, 5, 7), (6,), (6,)), {"eps": 1e-5, "groups": 3}),
        Case(((1, 5, 11), (5,), (5,)), {"eps": 1e-5, "groups": 5}),
        Case(((2, 6, 10, 10), (6,), (6,)), {"eps": 1e-5, "groups": 2}),
        Case(((3, 8), (8,), (8,)), {"eps": 1e-5, "groups": 1}),
        Case(((2, 4, 2, 3, 5), (4,), (4,)), {"eps": 1e-5, "groups": 2}),
    ),
    tolerance=2e-5,
    work=lambda call: 3 * call.output.numel,
)
