"""Importer functions of the operators of quantized_decomposed and q8ta_wgpu that quantize and dequantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from q8ta_wgpu.frontend.nodes import QDQ, named_arguments
from q8ta_wgpu.importing.builder import Builder, RefusedError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import DTYPES, INT8X4, INT16X4, RANGES, Node, QParams, TensorType


def import_call(b: Builder, name: str, args: Mapping[str, Any]) -> str | list[str]:
    """Imports a call of the operator `name` of these namespaces. Returns the name of its value, or a list of them.
    Raises RefusedError if it is not supported."""
    if name not in _IMPORTS:
        raise RefusedError("this quantization is not supported: scales of a tensor, of channels and of rows are")
    return _IMPORTS[name](b, args)


def quantized_input(node: torch.fx.Node) -> QParams | None:
    """The scale and zero point of a quantized input, from the dequantize that reads it; None for other inputs."""
    for user in node.users:
        if str(user.target) == f"{QDQ}.dequantize_per_tensor.default" and user.args[0] is node:
            return _qparams(named_arguments(user))[0]
    return None


def _qparams(args: Mapping[str, Any]) -> tuple[QParams, int, int, int]:
    """(QParams, lo, hi, shift) of a call's arguments. uint8 is shifted by 128 to int8, which is exact."""
    dtype = args["dtype"]
    if dtype not in (torch.int8, torch.uint8, torch.int16):
        raise RefusedError(f"activations must be int8, uint8 or int16, found {dtype}")
    shift = 128 if dtype == torch.uint8 else 0
    lo, hi = args["quant_min"] - shift, args["quant_max"] - shift
    stored = INT16X4 if dtype == torch.int16 else INT8X4
    low, high = RANGES[stored]
    if not low <= lo <= hi <= high:
        raise RefusedError(
            f"quant_min {args['quant_min']} and quant_max {args['quant_max']} are not a range of {dtype}"
        )
    return QParams(float(args["scale"]), int(args["zero_point"]) - shift, stored), lo, hi, shift


def _quantize(b: Builder, args: Mapping[str, Any]) -> str:
    q, lo, hi, shift = _qparams(args)
    x = b.operand(args["input"])
    name = b.graph.fresh(b.hint)
    if shift:
        b.shifted.add(name)
    b.graph.types[name] = TensorType(b.graph.types[x].shape, q.dtype, q)
    b.append(Node("quantize", (x,), name, {"lo": lo, "hi": hi}, b.source))
    return name


def _dequantize(b: Builder, args: Mapping[str, Any]) -> str:
    q, _, _, shift = _qparams(args)
    x = args["input"]
    if x in b.raw:
        values = (b.raw[x].astype(np.int64) - shift).astype(DTYPES[q.dtype])
        if values.size == 1:
            return b.constant(arithmetic.dequantize(values, q), b.hint)
        x = b.graph.add_constant(x, values, q.dtype, q)
    elif b.graph.types[x].q != q:
        raise RefusedError(
            f"it dequantizes with scale {q.scale} and zero point {q.zero}, found {b.graph.types[x]}: both must be "
            "those that the value was quantized with"
        )
    return b.emit("dequantize", (x,))


_CHOSEN = "scale chosen at run time"
"""Stands for a scale or zero point that a program chooses at run time, for a tensor or for each row. Here each row has
its own scale, and the zero point 0."""


def _choose(b: Builder, args: Mapping[str, Any]) -> list[str]:
    return [_CHOSEN, _CHOSEN]


def _quantize_rows(b: Builder, args: Mapping[str, Any]) -> str:
    if args.get("scale", args.get("scales")) != _CHOSEN:
        raise RefusedError("its scale must be known at compile time, or chosen by choose_qparams")
    if args["dtype"] not in (torch.int8, torch.uint8) or args["quant_max"] - args["quant_min"] < 2 * 63:
        found = f"{args['dtype']} of {args['quant_min']}..{args['quant_max']}"
        raise RefusedError(f"values whose scale is chosen at run time are rounded to 7 or 8 bits, found {found}")
    return b.rows(args["input"])


def _dequantize_rows(b: Builder, args: Mapping[str, Any]) -> str:
    rows = args["input"]
    made = next((node for node in reversed(b.graph.nodes) if node.output == rows), None)
    if made is None or made.op != "quantize_rows":
        raise RefusedError("it must read what was quantized with the scale that was chosen, unmoved")
    return b.real_rows(rows, made.inputs[1])


def _round_rows(b: Builder, args: Mapping[str, Any]) -> str:
    return b.rounded_rows(args["x"])


_WEIGHTS: Mapping[Any, type[np.generic]] = {torch.int8: np.int8, torch.int16: np.int16}
"""Dtypes of weights. int16 holds the products of 4-bit weights and the factor of a group of inputs."""


def _quantize_channel(b: Builder, args: Mapping[str, Any]) -> str:
    w, scale, zero = (b.raw.get(args[k]) for k in ("input", "scales", "zero_points"))
    if w is None or scale is None or zero is None or args["dtype"] not in _WEIGHTS:
        raise RefusedError(
            f"per-channel quantization is supported for constant int8 and int16 weights alone, found {args['dtype']}"
        )
    shape = [-1 if i == args["axis"] else 1 for i in range(w.ndim)]
    steps = np.rint(w * (np.float32(1.0) / scale.astype(np.float32)).reshape(shape)) + zero.reshape(shape)
    b.raw[b.hint] = np.clip(steps, args["quant_min"], args["quant_max"]).astype(_WEIGHTS[args["dtype"]])
    return b.hint


def _dequantize_channel(b: Builder, args: Mapping[str, Any]) -> str:
    w, scale = b.raw.get(args["input"]), b.raw.get(args["scales"])
    if w is None or scale is None or w.dtype not in _WEIGHTS.values():
        raise RefusedError("per-channel dequantization is supported for constant int8 and int16 weights alone")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise RefusedError(f"scales must be finite and > 0, found {scale.min()} to {scale.max()}")
    zero = b.raw.get(args["zero_points"] or "")
    zero = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32)
    operands = (
        b.operand(args["input"]),
        b.graph.add_constant(f"{b.hint}.scale", scale.astype(np.float32)),
        b.graph.add_constant(f"{b.hint}.zero", zero),
    )
    return b.emit("dequantize_weight", operands, {"axis": args["axis"] % w.ndim})


_IMPORTS: Mapping[str, Callable[[Builder, Mapping[str, Any]], str | list[str]]] = {
    "quantize_per_tensor.default": _quantize,
    "dequantize_per_tensor.default": _dequantize,
    "quantize_per_channel.default": _quantize_channel,
    "dequantize_per_channel.default": _dequantize_channel,
    "round_rows.default": _round_rows,
    "choose_qparams.tensor": _choose,
    "choose_qparams_symmetric.tensor": _choose,
    "choose_qparams_per_token.default": _choose,
    "choose_qparams_per_token_asymmetric.default": _choose,
    "_choose_qparams_per_token_asymmetric_impl.default": _choose,
    "quantize_per_tensor.tensor": _quantize_rows,
    "quantize_per_token.default": _quantize_rows,
    "dequantize_per_tensor.tensor": _dequantize_rows,
    "dequantize_per_token.default": _dequantize_rows,
}
