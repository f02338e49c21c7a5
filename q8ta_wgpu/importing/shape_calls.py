"""Importer functions of views, permutations, and tensors repeated along dimensions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MAX_EXTENT
from q8ta_wgpu.kernels.move.view import LEFT, REST, RIGHT, flexible, shape_of


def _view(b: Builder, x: str, shape: Sequence[int]) -> str:
    """A view of `x` as `shape`, where -1 is the extent that is left."""
    old = b.type(x).shape
    new = shape_of(old, {"shape": shape})
    rest = list(shape).index(REST) if REST in shape else None
    return x if old == new else b.emit("view", (x,), {"shape": flexible(old, new, rest)})


def _import_view(b: Builder, args: Mapping[str, Any]) -> str:
    return _view(b, args["self"], args.get("size", args.get("shape")) or ())


def _import_flatten(b: Builder, args: Mapping[str, Any]) -> str:
    shape = b.type(args["self"]).shape or (1,)
    start, end = args["start_dim"] % len(shape), args["end_dim"] % len(shape)
    if start == end and b.type(args["self"]).shape:
        return str(args["self"])
    return b.emit("view", (args["self"],), {"shape": [LEFT] * start + [REST] + [RIGHT] * (len(shape) - 1 - end)})


def _import_squeeze(b: Builder, args: Mapping[str, Any]) -> str:
    shape = b.type(args["self"]).shape
    dims = args.get("dim", range(len(shape)))
    wanted = {d % len(shape) for d in ([dims] if isinstance(dims, int) else dims) if shape}
    dropped = [i for i in sorted(wanted) if shape[i] == 1]
    if not dropped:
        return str(args["self"])
    between = [d for i, d in enumerate(shape) if dropped[0] < i < dropped[-1] and i not in dropped]
    if len(between) == 1:
        between = [REST]
    new = [LEFT] * dropped[0] + between + [RIGHT] * (len(shape) - 1 - dropped[-1])
    return b.emit("view", (args["self"],), {"shape": new})


def _import_unsqueeze(b: Builder, args: Mapping[str, Any]) -> str:
    shape = b.type(args["self"]).shape
    dim = args["dim"] % (len(shape) + 1)
    return b.emit("view", (args["self"],), {"shape": [LEFT] * dim + [1] + [RIGHT] * (len(shape) - dim)})


def _same(b: Builder, args: Mapping[str, Any]) -> str:
    """The importer of operators that change nothing at inference: their input."""
    if args.get("train"):
        raise b.refuse(
            "it is a dropout in training mode: call module.eval(), and give F.dropout training=self.training"
        )
    if args.get("dtype") is not None and str(args["dtype"]) != "torch.float32":
        raise b.refuse(f"conversions to {args['dtype']} are not supported, activations are float32")
    return str(args["self"] if "self" in args else args["input"])


_SAME = (
    "clone.default",
    "alias.default",
    "detach.default",
    "contiguous.default",
    "lift_fresh.default",
    "lift_fresh_copy.default",
    "dropout.default",
    "feature_dropout.default",
    "alpha_dropout.default",
    "to.dtype",
    "_to_copy.default",
)


_VIEWS: Mapping[str, Import] = {
    "view.default": _import_view,
    "reshape.default": _import_view,
    "_unsafe_view.default": _import_view,
    "flatten.using_ints": _import_flatten,
    "squeeze.default": _import_squeeze,
    "squeeze.dim": _import_squeeze,
    "squeeze.dims": _import_squeeze,
    "unsqueeze.default": _import_unsqueeze,
    **dict.fromkeys(_SAME, _same),
    "native_dropout.default": lambda b, args: [_same(b, args)],
}


def _onnx_reshape(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Reshape, where 0 keeps the dimension of the same index."""
    x, old = args["inputs"][0], b.type(args["inputs"][0]).shape
    shape = onnx_calls.integers(b, args, 1, "shape") or []
    if not args.get("allowzero"):
        if any(n == 0 and i >= len(old) for i, n in enumerate(shape)):
            raise b.refuse(f"its shape {shape} keeps a dimension that {old} does not have")
        shape = [old[i] if n == 0 else n for i, n in enumerate(shape)]
    return _view(b, x, shape)


def _onnx_flatten(b: Builder, args: Mapping[str, Any]) -> str:
    x, shape, axis = args["inputs"][0], b.type(args["inputs"][0]).shape, int(args["axis"])
    if not -len(shape) <= axis <= len(shape):
        raise b.refuse(f"its axis {axis} is none of its {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return _view(b, x, (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _onnx_squeeze(b: Builder, args: Mapping[str, Any]) -> str:
    x, shape = args["inputs"][0], b.type(args["inputs"][0]).shape
    axes = onnx_calls.axes(b, args, len(shape))
    if wrong := [d for d in axes or () if shape[d] != 1]:
        raise b.refuse(f"it leaves out dimension {wrong[0]} of {shape}, which is not 1")
    return _import_squeeze(b, {"self": x} if axes is None else {"self": x, "dim": axes})


def _onnx_unsqueeze(b: Builder, args: Mapping[str, Any]) -> str:
    x, shape = args["inputs"][0], b.type(args["inputs"][0]).shape
    found = onnx_calls.integers(b, args, 1, "axes") or []
    axes = onnx_calls.axes(b, {"inputs": [x], "axes": found}, len(shape) + len(found)) or []
    extents = iter(shape)
    return _view(b, x, [1 if i in axes else next(extents) for i in range(len(shape) + len(axes))])


_ONNX_VIEWS: Mapping[str, Import] = {
    "Reshape": _onnx_reshape,
    "Flatten": _onnx_flatten,
    "Squeeze": _onnx_squeeze,
    "Unsqueeze": _onnx_unsqueeze,
    "Identity": lambda b, args: str(args["inputs"][0]),
}


def _permute(b: Builder, x: str, dims: Sequence[int]) -> str:
    rank = len(b.type(x).shape)
    order = [d % rank for d in dims]
    return x if order == list(range(rank)) else b.emit("permute", (x,), {"dims": order})


def _import_permute(b: Builder, args: Mapping[str, Any]) -> str:
    return _permute(b, args["self"], args["dims"])


def _import_transpose(b: Builder, args: Mapping[str, Any]) -> str:
    order, first, second = list(range(len(b.type(args["self"]).shape))), args["dim0"], args["dim1"]
    if order:
        order[first], order[second] = order[second], order[first]
    return _permute(b, args["self"], order)


def _import_t(b: Builder, args: Mapping[str, Any]) -> str:
    return _permute(b, args["self"], range(len(b.type(args["self"]).shape))[::-1])


def _onnx_transpose(b: Builder, args: Mapping[str, Any]) -> str:
    x = args["inputs"][0]
    rank = len(b.type(x).shape)
    order = args.get("perm") or list(range(rank))[::-1]
    if sorted(order) != list(range(rank)):
        raise b.refuse(f"its perm {list(order)} is no order of {rank} dimensions")
    return _permute(b, x, order)


_PERMUTES: Mapping[str, Import] = {
    "permute.default": _import_permute,
    "transpose.int": _import_transpose,
    "t.default": _import_t,
}


def _grow(b: Builder, x: str, shape: Shape) -> str:
    old = b.type(x).shape
    aligned = (0,) * (len(shape) - len(old)) + old
    wanted = [-1 if new in (-1, extent) else new for new, extent in zip(shape, aligned, strict=True)]
    return x if wanted == [-1] * len(old) else b.emit("expand", (x,), {"shape": wanted})


def _import_expand(b: Builder, args: Mapping[str, Any]) -> str:
    return _grow(b, args["self"], tuple(args["size"]))


def _onnx_expand(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Expand, to the broadcast of its operand's shape and a given one."""
    x, old = args["inputs"][0], b.type(args["inputs"][0]).shape
    wanted = onnx_calls.integers(b, args, 1, "shape") or []
    if any(not 1 <= n <= MAX_EXTENT for n in wanted):
        raise b.refuse(f"its shape must be numbers from 1 to {MAX_EXTENT}, found {wanted}")
    return _grow(b, x, np.broadcast_shapes(old, tuple(wanted)))


def _onnx_tile(b: Builder, args: Mapping[str, Any]) -> str:
    return b.emit("repeat", (args["inputs"][0],), {"repeats": onnx_calls.integers(b, args, 1, "repeats") or []})


def _import_expand_as(b: Builder, args: Mapping[str, Any]) -> str:
    return _grow(b, args["self"], b.type(args["other"]).shape)


def _import_flip(b: Builder, args: Mapping[str, Any]) -> str:
    rank = max(len(b.type(args["self"]).shape), 1)
    return b.emit("flip", (args["self"],), {"dims": sorted({d % rank for d in args["dims"]})})


ATEN: Rules = {
    "view": {f"aten.{name}": rule for name, rule in _VIEWS.items()},
    "permute": {f"aten.{name}": rule for name, rule in _PERMUTES.items()},
    "expand": {"aten.expand.default": _import_expand, "aten.expand_as.default": _import_expand_as},
    "repeat": {"aten.repeat.default": lambda b, a: b.emit("repeat", (a["self"],), {"repeats": list(a["repeats"])})},
    "flip": {"aten.flip.default": _import_flip},
}
ONNX: Rules = {
    "view": _ONNX_VIEWS,
    "permute": {"Transpose": _onnx_transpose},
    "expand": {"Expand": _onnx_expand},
    "repeat": {"Tile": _onnx_tile},
}
