"""Importer functions of norms and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.layout import Shape


def _gamma_and_beta(b: Builder, args: Mapping[str, Any], shape: Shape) -> tuple[str, str]:
    """The names of gamma and beta of an aten call. Where the module has none, they are ones and zeros of `shape`."""
    gamma = args["weight"] or b.constant(np.ones(shape, np.float32), "gamma")
    return gamma, args["bias"] or b.constant(np.zeros(shape, np.float32), "beta")


def _import_layer_norm(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit(
        "layer_norm",
        (args["input"], *_gamma_and_beta(b, args, tuple(args["normalized_shape"]))),
        {"eps": float(args["eps"])},
    )


def _import_native_layer_norm(b: Builder, args: Mapping[str, Any]) -> list[str]:
    return [_import_layer_norm(b, args)]


def _import_rms_norm(b: Builder, args: Mapping[str, Any]) -> str:
    gamma = args["weight"] or b.constant(np.ones(tuple(args["normalized_shape"]), np.float32), "gamma")
    eps = float(np.finfo(np.float32).eps) if args["eps"] is None else float(args["eps"])
    return b.emit("rms_norm", (args["input"], gamma), {"eps": eps})


def _import_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    affine = _gamma_and_beta(b, args, b.type(args["input"]).shape[1:2])
    return b.emit("group_norm", (args["input"], *affine), {"groups": args["num_groups"], "eps": float(args["eps"])})


def _import_instance_norm(b: Builder, args: Mapping[str, Any]) -> str:
    if not args["use_input_stats"]:
        return str(b.aten("aten.batch_norm.default", {**args, "training": False}))
    return _import_group_norm(b, {**args, "num_groups": b.type(args["input"]).shape[1]})


def _onnx_layer_norm(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's LayerNormalization and RMSNormalization over the last dimensions. gamma and beta may broadcast."""
    x, gamma, beta = (*args["inputs"], None)[:3]
    shape = b.type(x).shape
    normalized = shape[onnx_calls.axis(b, args, len(shape)) :]
    parameters = [name and _expanded(b, name, normalized) for name in (gamma, beta)]
    arguments = {"input": x, "normalized_shape": normalized, "weight": parameters[0], "bias": parameters[1]}
    rms = args["operator"] == "RMSNormalization"
    return b.aten(f"aten.{'rms' if rms else 'layer'}_norm.default", {**arguments, "eps": float(args["epsilon"])})


def _expanded(b: Builder, name: str, size: Shape) -> str:
    """A value that broadcasts to a shape, in that shape. It may have dimensions of one element before."""
    shape = b.type(name).shape
    if len(shape) > len(size):
        name = b.aten("aten.view.default", {"self": name, "size": shape[len(shape) - len(size) :]})
    found: str = b.aten("aten.expand.default", {"self": name, "size": size})
    return found


def _onnx_group_norm(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's GroupNormalization, and InstanceNormalization, which has a group for each channel."""
    names = dict(zip(("input", "weight", "bias"), args["inputs"], strict=True))
    groups = int(args.get("num_groups") or b.type(names["input"]).shape[1])
    return b.aten("aten.group_norm.default", {**names, "num_groups": groups, "eps": args["epsilon"]})


def _import_batch_norm(b: Builder, args: Mapping[str, Any]) -> str:
    if args.get("training"):
        raise b.refuse("it uses the batch's own statistics: export the module in eval mode")
    if args["running_mean"] is None or args["running_var"] is None:
        raise b.refuse("it has no running statistics: train it with track_running_stats=True, or use an instance norm")
    affine = _gamma_and_beta(b, args, b.type(args["running_mean"]).shape)
    operands = (args["input"], *affine, args["running_mean"], args["running_var"])
    return b.emit("batch_norm", operands, {"eps": float(args["eps"])})


def _onnx_batch_norm(b: Builder, args: Mapping[str, Any]) -> str:
    names = ("input", "weight", "bias", "running_mean", "running_var")
    more = {"training": args.get("training_mode"), "eps": args["epsilon"]}
    return b.aten("aten.batch_norm.default", {**dict(zip(names, args["inputs"], strict=True)), **more})


def _import_softmax(op: str) -> Import:
    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        if str(args.get("dtype") or "torch.float32") != "torch.float32" or args.get("half_to_float"):
            raise b.refuse(f"its result must be float32, found {args.get('dtype')}: leave out its dtype")
        shape = b.type(args["self"]).shape
        if not shape:
            raise b.refuse("it takes a tensor of at least one dimension, found a scalar")
        return b.emit(op, (args["self"],), {"dim": args["dim"] % len(shape)})

    return rule


def _onnx_softmax(op: str) -> Import:
    """The importer of ONNX's Softmax or LogSoftmax. Before opset 13 they are over the attribute's dimension and all
    later ones together."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, shape = args["inputs"][0], b.type(args["inputs"][0]).shape
        axis = onnx_calls.axis(b, args, len(shape))
        if args["opset"] >= 13 or axis == len(shape) - 1:
            return b.emit(op, (x,), {"dim": axis})
        flat = b.emit("view", (x,), {"shape": (math.prod(shape[:axis]), -1)})
        return b.emit("view", (b.emit(op, (flat,), {"dim": 1}),), {"shape": shape})

    return rule


ATEN: Rules = {
    "layer_norm": {
        "aten.layer_norm.default": _import_layer_norm,
        "aten.native_layer_norm.default": _import_native_layer_norm,
    },
    "rms_norm": {"aten.rms_norm.default": _import_rms_norm},
    "group_norm": {
        "aten.group_norm.default": _import_group_norm,
        "aten.instance_norm.default": _import_instance_norm,
    },
    "batch_norm": {
        "aten.batch_norm.default": _import_batch_norm,
        "aten._native_batch_norm_legit_no_training.default": lambda b, args: [_import_batch_norm(b, args)],
    },
    **{
        op: dict.fromkeys((f"aten.{op}.int", f"aten._{op}.default", f"aten._safe_{op}.default"), _import_softmax(op))
        for op in ("softmax", "log_softmax")
    },
}
ONNX: Rules = {
    "layer_norm": {"LayerNormalization": _onnx_layer_norm},
    "rms_norm": {"RMSNormalization": _onnx_layer_norm},
    "group_norm": {"GroupNormalization": _onnx_group_norm, "InstanceNormalization": _onnx_group_norm},
    "batch_norm": {"BatchNormalization": _onnx_batch_norm},
    "softmax": {"Softmax": _onnx_softmax("softmax")},
    "log_softmax": {"LogSoftmax": _onnx_softmax("log_softmax")},
}
