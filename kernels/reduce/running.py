"""cumsum, cumprod, cummax and cummin: running results along a dimension. A team of threads computes a row.

prod is imported as the last of the running products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import NUMBERS, Attr, Builder, Case, Import, Op, Operand, number, reads_beside_dim
from q8ta_wgpu.kernels.lib import onnx_calls, rows

TURNS = 12
"""The most loop turns of a thread for each item of a row: one for each doubling up to 256 threads, and some more."""


def _rows(call: Call) -> rows.Rows:
    return replace(rows.along(call), vectors=1)


def _check_dtype(b: Builder, args: Mapping[str, Any]) -> None:
    if str(args.get("dtype") or "torch.float32").removeprefix("torch.") not in ("float32", "int64", "int32"):
        raise b.refuse(f"its result must be float32 or integers, found {args['dtype']}")


def _import(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        _check_dtype(b, args)
        rank = len(b.type(args["self"]).shape)
        return b.emit(op, (args["self"],), {"dim": args["dim"] % rank}) if rank else str(args["self"])

    return rule


def _import_product(b: Builder, args: Mapping[str, Any]) -> str:
    x, shape, dim = args["self"], b.type(args["self"]).shape, args.get("dim")
    _check_dtype(b, args)
    if not shape:
        return str(x)
    if dim is None:
        x, dim = b.emit("view", (x,), {"shape": (-1,)}), 0
    dim %= len(shape)
    running = b.emit("cumprod", (x,), {"dim": dim})
    last: str = b.aten("aten.select.int", {"self": running, "dim": dim, "index": -1})
    return str(b.aten("aten.unsqueeze.default", {"self": last, "dim": dim})) if args.get("keepdim") else last


def _import_extreme(op: str) -> Import:
    """The importer of cummax or cummin: the running extremes, and for each the last index where it, or NaN, occurs."""

    def rule(b: Builder, args: Mapping[str, Any]) -> list[str]:
        x, shape = args["self"], b.type(args["self"]).shape
        found = _import(op)(b, args)
        if not shape:
            return [found, b.emit("affine", (x,), {"factor": 0.0, "term": 0.0})]
        dim = args["dim"] % len(shape)
        nan = b.truth(b.emit("isnan", (x,)))
        occurs, ones = (b.emit("maximum", (b.truth(b.emit("eq", (x, other))), nan)) for other in (found, x))
        indices = b.emit("affine", (b.emit("cumsum", (ones,), {"dim": dim}),), {"factor": 1.0, "term": -1.0})
        selected = b.aten("aten.where.self", {"condition": occurs, "self": indices, "other": 0.0})
        return [found, b.emit("cummax", (selected,), {"dim": dim})]

    return rule


def _onnx(op: str) -> Import:
    """The importer of ONNX's CumSum or CumProd. `reverse` starts at the end, and `exclusive` leaves out the element
    itself."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, shape = str(args["inputs"][0]), b.type(args["inputs"][0]).shape
        dim = int(onnx_calls.number(b, args["inputs"][1], "axis") or 0) % max(len(shape), 1)
        if args["reverse"]:
            x = b.aten("aten.flip.default", {"self": x, "dims": [dim]})
        if args["exclusive"]:
            pads = [0] * (2 * len(shape))
            pads[dim], pads[len(shape) + dim] = 1, -1
            first = b.constant(np.asarray(float(op == "cumprod"), np.float32))
            x = b.onnx("Pad", (x, None, first), pads=pads, mode="constant")
        y = b.emit(op, (x,), {"dim": dim})
        return str(b.aten("aten.flip.default", {"self": y, "dims": [dim]})) if args["reverse"] else y

    return rule


def _onnx_prod(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's ReduceProd, one dimension after another."""
    y, shape = str(args["inputs"][0]), b.type(args["inputs"][0]).shape
    axes = onnx_calls.axes(b, args, len(shape))
    if not axes and args.get("noop_with_empty_axes"):
        return y
    reduced = sorted(axes or range(len(shape)))
    for dim in reduced:
        y = _import_product(b, {"self": y, "dim": dim, "keepdim": True})
    others = [n for d, n in enumerate(shape) if d not in reduced]
    return y if args["keepdims"] else str(b.aten("aten.view.default", {"self": y, "size": others}))


def _op(
    index: int, name: str, function: Callable[..., Array], neutral: float, aten: Mapping[str, Import], *more: Shape
) -> Op:
    def params(call: Call, item: int) -> Params:
        return {"inner": np.uint32(_rows(call).inner), "neutral": number(neutral, call.output.dtype)}

    def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        return rows.infer(types, attrs)[0], types[0].dtype

    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if call.output.dtype == INT32:
            return function(arrays[0].astype(np.int64), call.attrs["dim"]).astype(np.int32)
        with np.errstate(all="ignore"):
            return function(arrays[0].astype(np.float64), call.attrs["dim"]).astype(np.float32)

    names = {text.upper(): i for i, text in enumerate(_NAMES)}
    return Op(
        name=name,
        operands=(Operand("x", dtypes=NUMBERS),),
        infer=infer,
        reference=reference,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, ("running", "extremes"), (), _rows, params, TURNS, {"RUNNING": index, **names}),),
        aten=aten,
        onnx=_ONNX.get(name, {}),
        cases=(
            Case(((2, 21, 5, 7),), {"dim": 1}),
            Case(((13,),), {"dim": 0}),
            *(Case((shape,), {"dim": 1}) for shape in more),
        ),
        tolerance=1e-5,
        reads=reads_beside_dim,
        work=lambda call: TURNS * call.output.numel,
    )


_ONNX: Mapping[str, Mapping[str, Import]] = {
    "cumsum": {"CumSum": _onnx("cumsum")},
    "cumprod": {"CumProd": _onnx("cumprod"), "ReduceProd": _onnx_prod},
}

_NAMES = ("cumsum", "cumprod", "cummax", "cummin")

OPS = (
    _op(0, "cumsum", np.cumsum, 0.0, {"aten.cumsum.default": _import("cumsum")}, (3, 1100), (2, 2, 3, 2, 9)),
    _op(
        1,
        "cumprod",
        np.cumprod,
        1.0,
        {
            "aten.cumprod.default": _import("cumprod"),
            "aten.prod.default": _import_product,
            "aten.prod.dim_int": _import_product,
        },
    ),
    _op(2, "cummax", np.maximum.accumulate, -np.inf, {"aten.cummax.default": _import_extreme("cummax")}),
    _op(3, "cummin", np.minimum.accumulate, np.inf, {"aten.cummin.default": _import_extreme("cummin")}),
)
