"""layer_norm, rms_norm and group_norm, whose int8 forms are in norm_int8.py, and batch_norm at inference, a chain in
int8.

instance_norm is group_norm with as many groups as channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, Normalization, QuantizedCall, Rowwise
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Case, Op, Operand, extent, reads_same_place
from q8ta_wgpu.kernels.elementwise import chain
from q8ta_wgpu.kernels.lib import onnx_calls, rows
from q8ta_wgpu.kernels.norm import norm_int8

EPS = Attr("float", low=0, high=1e6)
AFFINE = (Operand("gamma", constant=True), Operand("beta", constant=True))


def _scale_and_shift(b: Builder, args: Mapping[str, Any], shape: Shape) -> tuple[str, str]:
    """gamma and beta; ones and zeros where the module has none."""
    gamma = args["weight"] or b.constant(np.ones(shape, np.float32), "gamma")
    return gamma, args["bias"] or b.constant(np.zeros(shape, np.float32), "beta")


# --- layer_norm and group_norm ---


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
    """Item k of a row has channel `row % groups * per_group + k / inner`."""
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
        (args["input"], *_scale_and_shift(b, args, tuple(args["normalized_shape"]))),
        {"eps": float(args["eps"])},
    )


def _import_native_layer_norm(b: Builder, args: Mapping[str, Any]) -> list[str]:
    return [_import_layer_norm(b, args)]


def _import_rms_norm(b: Builder, args: Mapping[str, Any]) -> str:
    gamma = args["weight"] or b.constant(np.ones(tuple(args["normalized_shape"]), np.float32), "gamma")
    eps = float(np.finfo(np.float32).eps) if args["eps"] is None else float(args["eps"])
    return b.emit("rms_norm", (args["input"], gamma), {"eps": eps})


def _import_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    affine = _scale_and_shift(b, args, b.type(args["input"]).shape[1:2])
    return b.emit("group_norm", (args["input"], *affine), {"groups": args["num_groups"], "eps": float(args["eps"])})


def _import_instance_norm(b: Builder, args: Mapping[str, Any]) -> str:
    if not args["use_input_stats"]:
        return _import_batch_norm(b, {**args, "training": False})
    return _import_group_norm(b, {**args, "num_groups": b.type(args["input"]).shape[1]})


def _onnx_layer_norm(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """LayerNormalization and RMSNormalization over the last dimensions; gamma and beta are given for each of them or
    broadcast."""
    x, gamma, beta = (*args["inputs"], None)[:3]
    shape = b.type(x).shape
    normalized = shape[onnx_calls.axis(b, args, len(shape)) :]
    parameters = [
        name if name is None or b.type(name).shape == normalized else b.constant(_broadcast(b, name, normalized))
        for name in (gamma, beta)
    ]
    given = {"input": x, "normalized_shape": normalized, "weight": parameters[0], "bias": parameters[1]}
    rms = args["operator"] == "RMSNormalization"
    y: str = b.aten(f"aten.{'rms' if rms else 'layer'}_norm.default", {**given, "eps": float(args["epsilon"])})
    return [y] if args["outputs"] == 1 else [y, *_onnx_statistics(b, args, x, len(shape) - len(normalized))]


def _onnx_statistics(b: Builder, args: Mapping[str, Any], x: str, first: int) -> list[str]:
    """Mean and inverse deviation, the further results of LayerNormalization."""
    over = {"dim": list(range(first, len(b.type(x).shape))), "keepdim": True}
    mean: str = b.aten("aten.mean.dim", {"self": x, **over})
    apart = b.emit("pow", (b.aten("aten.sub.Tensor", {"self": x, "other": mean}),), {"exponent": 2.0})
    variance = b.aten("aten.mean.dim", {"self": apart, **over})
    inverse = b.emit("rsqrt", (b.emit("affine", (variance,), {"factor": 1.0, "term": float(args["epsilon"])}),))
    return [mean, inverse]


def _broadcast(b: Builder, name: str, shape: Shape) -> Array:
    array = onnx_calls.constant(b, name, "scale or bias")
    assert array is not None
    lead = array.reshape(array.shape[max(array.ndim - len(shape), 0) :]) if array.ndim > len(shape) else array
    return np.array(np.broadcast_to(lead, shape), np.float32)


def _onnx_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    """GroupNormalization, and InstanceNormalization, a group for each channel."""
    x, gamma, beta = args["inputs"]
    shape = b.type(x).shape
    groups = int(args.get("num_groups") or shape[1])
    return b.aten(
        "aten.group_norm.default",
        {"input": x, "num_groups": groups, "weight": gamma, "bias": beta, "eps": float(args["epsilon"])},
    )


def _onnx_batch_norm(b: Builder, args: Mapping[str, Any]) -> str:
    x, gamma, beta, mean, variance = args["inputs"]
    given = {"input": x, "weight": gamma, "bias": beta, "running_mean": mean, "running_var": variance}
    return b.aten(
        "aten.batch_norm.default", {**given, "training": args.get("training_mode"), "eps": float(args["epsilon"])}
    )


# --- batch_norm ---


def _infer_batch_norm(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    if len(shape) < 2 or any(t.shape != (shape[1],) for t in types[1:]):
        found = ", ".join(str(t.shape) for t in types[1:])
        raise GraphError(f"batch_norm of {shape}: dimension 1 holds the channels, found per-channel operands {found}")
    return shape, FLOAT32


def _factor_and_term(parameters: Sequence[Array], attrs: Attrs) -> tuple[Array, Array]:
    """A batch norm as x * factor + term, float64, for each channel."""
    gamma, beta, mean, variance = (a.astype(np.float64) for a in parameters)
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + attrs["eps"])
        return np.asarray(factor), np.asarray(beta - mean * factor)


def _batch_norm(call: Call, arrays: Sequence[Array]) -> Array:
    per_channel = (-1,) + (1,) * (arrays[0].ndim - 2)
    x, gamma, beta, mean, variance = (a.astype(np.float64) for a in arrays)
    factor = gamma / np.sqrt(variance + call.attrs["eps"])
    return np.asarray((x - mean.reshape(per_channel)) * factor.reshape(per_channel) + beta.reshape(per_channel)).astype(
        np.float32
    )


def _channel_params(call: Call) -> dict[str, Any]:
    shape = call.output.shape
    return {"channels": np.uint32(shape[1]), "inner": np.uint32(math.prod(shape[2:]))}


def _batch_norm_params(call: Call) -> Params:
    return {**_channel_params(call), "eps": np.float32(call.attrs["eps"])}


def _lower_batch_norm(call: QuantizedCall) -> Int8Form | str:
    """A chain of the norm and what joins it. The channel's factor is part of the multiplier."""
    x = call.q[0]
    if call.out is None:
        return "it needs a quantized result"
    parameters = [a for a in (call.constants.get(i) for i in range(1, 5)) if isinstance(a, np.ndarray)]
    if len(parameters) < 4:
        return "its parameters are not float constants"
    affine = _factor_and_term(parameters, call.attrs)
    if x is None:
        return chain.lower_float(replace(call, affine=affine), "q8ta_quantize_channels")
    return chain.lower(replace(call, affine=affine), "q8ta_batch_norm", x.scale, x.scale * x.span, (0,), {})


def _valid_variance(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[4] is not None
    bad = arrays[4][~(arrays[4] >= 0)]
    return f"must not be negative, found {bad[0]}" if bad.size else ""


VARIANCE = Operand("variance", constant=True, valid=_valid_variance)


def _import_batch_norm(b: Builder, args: Mapping[str, Any]) -> str:
    if args.get("training"):
        raise b.refuse("it uses the batch's own statistics: export the module in eval mode")
    if args["running_mean"] is None or args["running_var"] is None:
        raise b.refuse("it has no running statistics")
    affine = _scale_and_shift(b, args, b.type(args["running_mean"]).shape)
    operands = (args["input"], *affine, args["running_mean"], args["running_var"])
    return b.emit("batch_norm", operands, {"eps": float(args["eps"])})


def _batch_norm_case(shape: Shape, values: str = "random") -> Case:
    return Case((shape, *((shape[1],),) * 4), {"eps": 1e-5}, values)


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

batch_norm = Op(
    name="batch_norm",
    operands=(Operand("x"), *AFFINE, Operand("mean", constant=True), VARIANCE),
    infer=_infer_batch_norm,
    reference=_batch_norm,
    schema={"eps": EPS},
    kernels=(Kernel("batch_norm", ("map", "compute=batch_norm"), (FLOAT,), FLOAT, params=_batch_norm_params),),
    aten={
        "aten.batch_norm.default": _import_batch_norm,
        "aten._native_batch_norm_legit_no_training.default": lambda b, args: [_import_batch_norm(b, args)],
    },
    onnx={"BatchNormalization": _onnx_batch_norm},
    int8=Normalization(_lower_batch_norm, _factor_and_term, reads_int16=True, gives_int16=True, reads_float32=True),
    reads=reads_same_place,
    cases=(
        _batch_norm_case((2, 5, 3, 7)),
        _batch_norm_case((3, 8)),
        _batch_norm_case((2, 6, 11), "saturate"),
        _batch_norm_case((2, 3, 2, 3, 5)),
        _batch_norm_case((1, 17, 4, 4), "ties"),
    ),
    tolerance=1e-5,
)
