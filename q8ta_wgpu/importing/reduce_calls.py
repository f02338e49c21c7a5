"""Importer functions of reductions, running results and sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.graph import INT32


def _import_index(op: str) -> Import:
    """The importer. Without a dimension, the result is the index among all elements."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, dim = args["self"], args["dim"]
        shape = b.type(x).shape
        if dim is None or not shape:
            flat = b.emit("view", (x,), {"shape": (-1,)})
            index = b.emit(op, (flat,), {"dim": 0, "keepdim": False})
            return b.emit("view", (index,), {"shape": (1,) * len(shape)}) if args["keepdim"] and shape else index
        dim %= len(shape)
        if len(shape) > 4 and dim < len(shape) - 3:  # for the kernel the leading dimensions are one
            x = b.emit("permute", (x,), {"dims": (*(d for d in range(len(shape)) if d != dim), dim)})
            y = b.emit(op, (x,), {"dim": len(shape) - 1, "keepdim": False})
            return b.aten("aten.unsqueeze.default", {"self": y, "dim": dim}) if args["keepdim"] else y
        return b.emit(op, (x,), {"dim": dim, "keepdim": bool(args["keepdim"])})

    return rule


def _onnx_index(op: str) -> Import:
    """The importer of ONNX's ArgMax or ArgMin. For the last of equal elements, x is flipped."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, shape = str(args["inputs"][0]), b.type(args["inputs"][0]).shape
        dim, last = onnx_calls.axis(b, args, len(shape)), bool(args.get("select_last_index"))
        if last:
            x = b.aten("aten.flip.default", {"self": x, "dims": [dim]})
        y = str(_import_index(op)(b, {"self": x, "dim": dim, "keepdim": bool(args["keepdims"])}))
        return b.emit("affine", (y,), {"factor": -1.0, "term": float(shape[dim] - 1)}) if last else y

    return rule


def _import_rank(count: Callable[[Mapping[str, Any]], int], largest: str) -> Any:
    """The importer of topk or sort: the first elements in sorted order, and their indices.

    Args:
        count: the number of elements of a call; 0 for all.
        largest: name of the argument that says whether the largest come first.
    """

    def rule(b: Builder, args: Mapping[str, Any]) -> list[str]:
        x, shape = args["self"], b.type(args["self"]).shape
        if not shape:
            return [x, b.constant(np.zeros((), np.int32))]
        if len(shape) > 4:
            raise b.refuse(f"it orders a tensor of at most 4 dimensions, found {shape}")
        dim = args["dim"] % len(shape)
        ranks = b.emit("rank", (x,), {"dim": dim, "largest": bool(args[largest])})
        indices = b.emit("ranked", (ranks,), {"dim": dim, "count": count(args)})
        return [b.emit("gather", (x, indices), {"dim": dim, "from_end": False}), indices]

    return rule


def _onnx_topk(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """ONNX's TopK. The result is always sorted."""
    x, rank = args["inputs"][0], len(b.type(args["inputs"][0]).shape)
    (count,) = onnx_calls.integers(b, args, 1, "k") or [0]
    dim, extent = onnx_calls.axis(b, args, rank), b.type(x).shape[onnx_calls.axis(b, args, rank)]
    if not 1 <= count <= extent:
        raise b.refuse(f"it takes 1 to {extent} elements, found {count}")
    found: list[str] = _import_rank(lambda _: count, "largest")(b, {"self": x, "dim": dim, "largest": args["largest"]})
    return found


_SORT = _import_rank(lambda args: 0, "descending")


def _check_dtype(b: Builder, args: Mapping[str, Any]) -> None:
    if str(args.get("dtype") or "torch.float32").removeprefix("torch.") not in ("float32", "int64", "int32"):
        raise b.refuse(f"its result must be float32 or integers, found {args['dtype']}")


def _import_running(op: str) -> Callable[[Builder, Mapping[str, Any]], str]:
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


def _onnx_running(op: str) -> Import:
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


def _import(op: str) -> Import:
    """The importer of a reduction with aten's `dim`, where none or an empty list is all dimensions, and `keepdim`."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x = args["self"]
        wanted = ("None", "torch.float32", *(("torch.int32", "torch.int64") if b.type(x).dtype == INT32 else ()))
        if str(args.get("dtype")) not in wanted:
            raise b.refuse(f"its result must be float32, found {args['dtype']}")
        shape = b.type(x).shape
        found = args.get("dim")
        found = [found] if isinstance(found, int) else found
        reduced = {d % len(shape) for d in found} if found and shape else set(range(len(shape)))
        keepdim = bool(args.get("keepdim", False))
        lead = set(range(len(shape) - 3))
        if len(shape) <= 4 or not lead & reduced or lead <= reduced:
            return b.emit(op, (x,), {"dims": tuple(sorted(reduced)), "keepdim": keepdim})
        # For the kernel the leading dimensions are one, so the reduced ones are moved to the end.
        others = [d for d in range(len(shape)) if d not in reduced]
        x = b.emit("permute", (x,), {"dims": (*others, *sorted(reduced))})
        x = b.emit("view", (x,), {"shape": (*(0 for _ in others), -1)})
        y = b.emit(op, (x,), {"dims": (len(others),), "keepdim": False})
        if not keepdim:
            return y
        return b.emit("view", (y,), {"shape": (-1, *(1 if d in reduced else shape[d] for d in range(1, len(shape))))})

    return rule


def _product(b: Builder, args: Mapping[str, Any]) -> str:
    """A product along several dimensions, one after another."""
    for dim in sorted(args["dim"], reverse=True):
        args = {**args, "self": _import_product(b, {**args, "dim": dim})}
    return str(args["self"])


_ONNX = {
    "mean": ("ReduceMean",),
    "sum": ("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"),
    "amax": ("ReduceMax", "GlobalMaxPool"),
    "amin": ("ReduceMin",),
    "cumprod": ("ReduceProd",),
}
"""The operators of ONNX that are imported with each reduction."""


def _onnx(op: str) -> Mapping[str, Import]:
    """The importers of ONNX's reductions with `op`. Some apply a function to the elements before it, and another one to
    the result."""
    reduction = _product if op == "cumprod" else _import(op)

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, name = str(args["inputs"][0]), args["operator"]
        rank, keepdim = len(b.type(x).shape), bool(args.get("keepdims", 1))
        axes = list(range(2, rank)) if name == "GlobalMaxPool" else onnx_calls.axes(b, args, rank)
        if not axes and (args.get("noop_with_empty_axes") or not rank):
            axes = []
        elif not axes:
            axes = list(range(rank))
        highest = ""
        match name:
            case "ReduceL1":
                x = b.emit("abs", (x,))
            case "ReduceL2" | "ReduceSumSquare":
                x = b.emit("pow", (x,), {"exponent": 2.0})
            case "ReduceLogSumExp":
                highest = str(_import("amax")(b, {"self": x, "dim": axes, "keepdim": True})) if axes else ""
                x = b.emit("exp", (b.aten("aten.sub.Tensor", {"self": x, "other": highest}) if highest else x,))
        y = str(reduction(b, {"self": x, "dim": axes, "keepdim": keepdim})) if axes else x
        match name:
            case "ReduceL2":
                y = b.emit("sqrt", (y,))
            case "ReduceLogSum" | "ReduceLogSumExp":
                y = b.emit("log", (y,))
        if highest:
            highest = b.emit("view", (highest,), {"shape": b.type(y).shape})
            y = b.aten("aten.add.Tensor", {"self": y, "other": highest})
        return y

    return dict.fromkeys(_ONNX[op], rule)


def _import_truth(op: str) -> Import:
    """The importer of any or all: whether any, or all, elements are not 0, as the largest or smallest of bools."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        bools = b.truth(b.emit("ne_scalar", (args["self"],), {"number": 0.0}))
        return str(_import(op)(b, {**args, "self": bools}))

    return rule


def _of_extreme(op: str, truth: str) -> Mapping[str, Import]:
    """The importers of amax or amin, of max or min, and of any or all."""

    def along(b: Builder, args: Mapping[str, Any]) -> list[str]:
        return [str(_import(op)(b, args)), str(b.aten(f"aten.arg{op[1:]}.default", args))]

    return {
        f"aten.{op}.default": _import(op),
        f"aten.{op[1:]}.default": _import(op),
        f"aten.{op[1:]}.dim": along,
        **{f"aten.{truth}.{overload}": _import_truth(op) for overload in ("default", "dim", "dims")},
    }


ATEN: Rules = {
    **{op: {f"aten.{op}.default": _import_index(op)} for op in ("argmax", "argmin")},
    "rank": {
        "aten.topk.default": _import_rank(lambda args: int(args["k"]), "largest"),
        "aten.sort.default": _SORT,
        "aten.sort.stable": _SORT,
    },
    "cumsum": {"aten.cumsum.default": _import_running("cumsum")},
    "cumprod": {
        "aten.cumprod.default": _import_running("cumprod"),
        "aten.prod.default": _import_product,
        "aten.prod.dim_int": _import_product,
    },
    "mean": {f"aten.mean.{overload}": _import("mean") for overload in ("dim", "default")},
    "sum": {f"aten.sum.{overload}": _import("sum") for overload in ("dim_IntList", "default")},
    "amax": _of_extreme("amax", "any"),
    "amin": _of_extreme("amin", "all"),
}
ONNX: Rules = {
    "argmax": {"ArgMax": _onnx_index("argmax")},
    "argmin": {"ArgMin": _onnx_index("argmin")},
    "rank": {"TopK": _onnx_topk},
    "cumsum": {"CumSum": _onnx_running("cumsum")},
    "cumprod": {"CumProd": _onnx_running("cumprod"), **_onnx("cumprod")},
    **{op: _onnx(op) for op in ("mean", "sum", "amax", "amin")},
}
