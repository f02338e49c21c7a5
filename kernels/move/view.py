"""view: the same elements in the same order, in another shape. reshape, flatten, squeeze and others are imported as
it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MAX_EXTENT, Attr, Builder, Import
from q8ta_wgpu.kernels.lib import onnx_calls
from q8ta_wgpu.kernels.move.strided import Digit, move

LEFT, REST, RIGHT = 0, -1, -2
"""Entries of the attribute `shape` that are no extents. LEFT: the extent of the input's dimension of the same index.
REST: the extent that is left. RIGHT: the extent of the input's dimension at the same distance from the end."""


def _shape(x: Shape, attrs: Attrs) -> Shape:
    shape = list(attrs["shape"])
    missing = len(shape) - len(x)
    lost = any((d == LEFT and i >= len(x)) or (d == RIGHT and i < missing) for i, d in enumerate(shape))
    if lost or shape.count(REST) > 1:
        raise GraphError(f"view of {x} as {shape}: 0 and -2 keep dimensions of the input, -1 may stand once")
    found = [x[i] if d == LEFT else x[i - missing] if d == RIGHT else d for i, d in enumerate(shape)]
    if REST in found:
        known = -math.prod(found)
        if math.prod(x) % known:
            raise GraphError(f"view of {x} as {shape}: {math.prod(x)} elements are no multiple of {known}")
        found[found.index(REST)] = math.prod(x) // known
    if math.prod(found) != math.prod(x):
        raise GraphError(f"view of {x} as {shape}: {math.prod(x)} elements cannot become {math.prod(found)}")
    return tuple(found)


def flexible(x: Shape, y: Shape, rest: int | None = None) -> list[int]:
    """The attribute `shape` of a view from shape `x` to shape `y`, with as few fixed extents as possible, so that the
    view is also correct for other input sizes.

    Leading dimensions that stay the same are LEFT, trailing ones RIGHT. A single dimension that changes is REST. Of
    several, one is REST and the others are fixed, as heads and groups of a network are: REST is `rest`, the dimension
    that the network gave as -1, or the first one, which may be a batch.
    """
    first = next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
    last = 0
    while last < min(len(x), len(y)) - first and x[-1 - last] == y[-1 - last]:
        last += 1
    changed = range(first, len(y) - last)
    large = [i for i in changed if y[i] != 1]
    found = [LEFT] * first + [y[i] for i in changed] + [RIGHT] * last
    if rest is not None and rest in changed:
        found[rest] = REST
    elif len(large) == 1 or (large and not first):
        found[large[0]] = REST
    return found


def _view(b: Builder, x: str, shape: Sequence[int]) -> str:
    """A view of `x` as `shape`, where -1 is the extent that is left."""
    old = b.type(x).shape
    new = _shape(old, {"shape": shape})
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


def _import_unflatten(b: Builder, args: Mapping[str, Any]) -> str:
    shape = b.type(args["self"]).shape
    dim = args["dim"] % len(shape)
    trailing = [RIGHT] * (len(shape) - 1 - dim)
    return b.emit("view", (args["self"],), {"shape": [LEFT] * dim + list(args["sizes"]) + trailing})


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

_IMPORTS: Mapping[str, Import] = {
    "view.default": _import_view,
    "reshape.default": _import_view,
    "_unsafe_view.default": _import_view,
    "flatten.using_ints": _import_flatten,
    "unflatten.int": _import_unflatten,
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


_ONNX: Mapping[str, Import] = {
    "Reshape": _onnx_reshape,
    "Flatten": _onnx_flatten,
    "Squeeze": _onnx_squeeze,
    "Unsqueeze": _onnx_unsqueeze,
    "Identity": lambda b, args: str(args["inputs"][0]),
}


def _digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    return [(math.prod(y), 1)], 0


def _reference(x: Array, y: Shape, attrs: Attrs) -> Array:
    return x.reshape(y)


view = move(
    "view",
    shape=_shape,
    digits=_digits,
    reference=_reference,
    schema={"shape": Attr("ints", low=RIGHT, high=MAX_EXTENT)},
    aten={f"aten.{name}": rule for name, rule in _IMPORTS.items()},
    onnx=_ONNX,
    cases=(
        ((2, 5, 3, 7), {"shape": (0, -1)}),
        ((2, 6, 5), {"shape": (0, 2, 3, -2)}),
        ((13, 6), {"shape": (78,)}),
        ((2, 3, 2, 3, 5), {"shape": (-1, 3, 10)}),
        ((1, 1, 1), {"shape": ()}),
        ((3, 8, 4, 4), {"shape": (2, -1, 2, 2, 3)}),
    ),
)
