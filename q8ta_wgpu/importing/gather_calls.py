"""Importer functions of gather, embedding and updates of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from q8ta_wgpu.importing.builder import Builder, Rules
from q8ta_wgpu.kernels.move.view import flexible


def along(b: Builder, x: str, dim: int, indices: str, from_end: bool = False) -> str:
    """The rows of `x` along `dim` at computed indices of any shape. The dimensions of the indices replace `dim`."""
    shape, found = b.type(x).shape, b.type(indices).shape
    trailing = len(shape) - dim - 1
    flat = b.emit("view", (indices,), {"shape": (*[1] * dim, -1, *[1] * trailing)})
    y = b.emit("gather", (x, flat), {"dim": dim, "from_end": from_end})
    if len(found) == 1:
        return y
    return b.emit("view", (y,), {"shape": (*[0] * dim, *([-1, *found[1:]] if found else []), *[-2] * trailing)})


def elements(b: Builder, x: str, dim: int, indices: str) -> str:
    """torch.gather with computed indices. In dimensions other than `dim`, `x` is sliced to the extents of the
    indices."""
    for i, (extent, count) in enumerate(zip(b.type(x).shape, b.type(indices).shape, strict=True)):
        if i != dim and count < extent:
            x = b.aten("aten.slice.Tensor", {"self": x, "dim": i, "start": 0, "end": count, "step": 1})
    return b.emit("gather", (x, indices), {"dim": dim, "from_end": False})


def _import_embedding(b: Builder, args: Mapping[str, Any]) -> str:
    return along(b, args["weight"], 0, args["indices"])


def write(b: Builder, x: str, dim: int, indices: str, values: str, from_end: bool) -> str:
    """`x` with values written at computed indices of a dimension. The indices may have any shape, which replaces the
    dimension in the shape of the values. Negative ones count from the end if `from_end` is set."""
    shape, count, old = b.type(x).shape, b.type(indices).shape, b.type(values).shape
    if len(shape) > 4:
        raise b.refuse(f"it writes at computed indices into {shape}: up to 4 dimensions are supported")
    dim %= len(shape)
    wanted = (*shape[:dim], *count, *shape[dim + 1 :])
    if lead := (1,) * (len(wanted) - len(old)):
        values = b.emit("view", (values,), {"shape": flexible(old, (*lead, *old))})
    if (*lead, *old) != wanted:
        values = b.emit("expand", (values,), {"shape": wanted})
    if len(count) != 1:
        indices = b.emit("view", (indices,), {"shape": (-1,)})
        values = b.emit("view", (values,), {"shape": (*[0] * dim, math.prod(count), *[-2] * (len(shape) - dim - 1))})
    return b.emit("update", (x, values, indices), {"dim": dim, "from_end": from_end})


def _import_copy(b: Builder, args: Mapping[str, Any]) -> str:
    return write(b, args["self"], args["dim"], args["index"], args["source"], from_end=False)


ATEN: Rules = {
    "gather": {"aten.embedding.default": _import_embedding},
    "update": {"aten.index_copy.default": _import_copy},
}
ONNX: Rules = {}
