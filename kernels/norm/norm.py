"""layer_norm, rms_norm and group_norm. Their int8 forms are in norm_int8.py.

instance_norm is group_norm with as many groups as channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Rowwise
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Case, Op, Operand, extent
from q8ta_wgpu.kernels.lib import rows
from q8ta_wgpu.kernels.norm import norm_int8

EPS = Attr("float", low=0, high=1e6)
AFFINE = (Operand("gamma", constant=True), Operand("beta", constant=True))


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


def _op(
    name: str,
    affine: str,
    operands: Sequence[Operand],
    reference: Callable[[Call, Sequence[Array]], Array],
    **more: Any,
) -> Op:
    """A norm of rows; of groups of channels where its schema has groups. `affine` is the WGSL of gamma and beta."""
    groups = {"groups": extent()} if affine == "affine_channel" else {}
    wide = ("x", "y") if groups else ("x", *(operand.name for operand in operands), "y")
    kernel = rows.kernel(
        name,
        ("layer_norm", f"affine={affine}"),
        wide,
        _group_rows if groups else _layer_rows,
        _group_params if groups else _layer_params,
        3,
        {"CENTERED": int(len(operands) > 1)},
    )
    return Op(
        name=name,
        operands=(Operand("x"), *operands),
        infer=_infer_group_norm if groups else _infer_layer_norm,
        reference=reference,
        schema={"eps": EPS, **groups},
        kernels=(kernel,),
        int8=Rowwise(norm_int8.lowering(name), reads_int16=True, gives_int16=True),
        tolerance=2e-5,
        work=lambda call: 3 * call.output.numel,
        **more,
    )


layer_norm = _op(
    "layer_norm",
    "affine_element",
    AFFINE,
    _layer_norm,
    cases=(
        Case(((2, 7, 192), (192,), (192,)), {"eps": 1e-5}),
        Case(((3, 5), (5,), (5,)), {"eps": 1e-6}),
        Case(((2, 5, 3, 7), (5, 3, 7), (5, 3, 7)), {"eps": 1e-5}),
        Case(((2, 2, 2, 3, 13), (3, 13), (3, 13)), {"eps": 1e-5}),
    ),
)

rms_norm = _op(
    "rms_norm",
    "scaled_element",
    AFFINE[:1],
    _rms_norm,
    cases=(
        Case(((2, 7, 192), (192,)), {"eps": 1e-5}),
        Case(((3, 5), (5,)), {"eps": 1e-6}),
        Case(((2, 5, 3, 7), (3, 7)), {"eps": 1e-5}),
    ),
)

group_norm = _op(
    "group_norm",
    "affine_channel",
    AFFINE,
    _group_norm,
    cases=(
        Case(((2, 6, 5, 7), (6,), (6,)), {"eps": 1e-5, "groups": 3}),
        Case(((1, 5, 11), (5,), (5,)), {"eps": 1e-5, "groups": 5}),
        Case(((2, 6, 10, 10), (6,), (6,)), {"eps": 1e-5, "groups": 2}),
        Case(((3, 8), (8,), (8,)), {"eps": 1e-5, "groups": 1}),
        Case(((2, 4, 2, 3, 5), (4,), (4,)), {"eps": 1e-5, "groups": 2}),
    ),
)
