"""Importer functions of slices, concatenations, padding, and channels that become pixels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Import, Rules
from q8ta_wgpu.ir.op import (
    FLOAT_MAX,
    MAX_EXTENT,
)


def _slice(b: Builder, x: str, dim: int, start: int, end: int, step: int = 1, extent: int = 0) -> str:
    """A slice, or `x` itself if everything is selected. Negative bounds stay negative, so that they are also correct
    for other input sizes."""
    shape = b.type(x).shape
    dim %= max(len(shape), 1)
    if start == 0 and end >= shape[dim] and step == 1:
        return x
    bounds = {"start": max(start, -MAX_EXTENT), "end": min(max(end, -MAX_EXTENT), MAX_EXTENT)}
    return b.emit("slice", (x,), {"dim": dim, **bounds, "step": step, "extent": extent})


def _fixed(b: Builder, x: str, dim: int, end: int) -> int:
    """The attribute `extent` of a slice that ends at `end`. If the end is the input's extent, it could mean a number or
    the end of the dimension, so that the slice is only defined for this extent."""
    count = b.type(x).shape[dim]
    return count if end == count else 0


def _import_slice(b: Builder, args: Mapping[str, Any]) -> str:
    x, dim, start = args["self"], args["dim"], args["start"] or 0
    end = MAX_EXTENT if args["end"] is None else args["end"]
    return _slice(b, x, dim, start, end, args["step"], _fixed(b, x, dim, end))


def _select(b: Builder, x: str, dim: int, index: int, extent: int = 0) -> str:
    shape = b.type(x).shape
    dim %= len(shape)
    row = _slice(b, x, dim, index, index + 1 if index != -1 else MAX_EXTENT, extent=extent)
    # In the shape of a view, 0 keeps the dimension of the same index, -2 that at the same distance from the end.
    return b.emit("view", (row,), {"shape": [0] * dim + [-2] * (len(shape) - 1 - dim)})


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    return _select(b, args["self"], args["dim"], args["index"])


def _import_unbind(b: Builder, args: Mapping[str, Any]) -> list[str]:
    count = b.type(args["self"]).shape[args["dim"]]
    return [_select(b, args["self"], args["dim"], i, count) for i in range(count)]


def _slices(b: Builder, x: str, dim: int, sizes: Sequence[int]) -> list[str]:
    count, ends = b.type(x).shape[dim], list(itertools.accumulate(sizes))
    return [_slice(b, x, dim, end - size, end, extent=count) for size, end in zip(sizes, ends, strict=True)]


def _import_split(b: Builder, args: Mapping[str, Any]) -> list[str]:
    x, dim = args["self"], args["dim"]
    count = b.type(x).shape[dim]
    if isinstance(args.get("split_sizes", args.get("split_size")), list):
        return _slices(b, x, dim, args.get("split_sizes", args.get("split_size")) or ())
    size = args["split_size"] if "split_size" in args else -(-count // args["chunks"])
    return _slices(b, x, dim, [min(size, count - start) for start in range(0, count, size)])


_SLICES: Mapping[str, Import] = {
    "slice.Tensor": _import_slice,
    "select.int": _import_select,
    "unbind.int": _import_unbind,
    "split.Tensor": _import_split,
    "split.sizes": _import_split,
    "split_with_sizes.default": _import_split,
    "chunk.default": _import_split,
}


def _onnx_slice(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Slice. A negative step is a flip and a slice."""
    x, rank = args["inputs"][0], len(b.type(args["inputs"][0]).shape)
    starts = onnx_calls.integers(b, args, 1, "starts") or []
    ends = onnx_calls.integers(b, args, 2, "ends") or []
    axes = onnx_calls.axes(b, args, rank, 3)
    steps = onnx_calls.integers(b, args, 4, "steps") or [1] * len(starts)
    for dim, start, end, step in zip(range(rank) if axes is None else axes, starts, ends, steps, strict=False):
        extent = b.type(x).shape[dim]
        first, last, step = slice(start, end, step).indices(extent)
        if not range(first, last, step):
            raise b.refuse(f"it takes no element of dimension {dim}, {start}:{end}:{step} of {extent}")
        if step > 0:
            x = _slice(b, x, dim, first, last, step, extent)
        else:
            x = b.aten("aten.flip.default", {"self": x, "dims": [dim]})
            x = _slice(b, x, dim, extent - 1 - first, extent - 1 - last, -step, extent)
    return str(x)


def _onnx_split(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """ONNX's Split, into slices of the sizes in its input, or into equal slices for all outputs."""
    x, shape = args["inputs"][0], b.type(args["inputs"][0]).shape
    dim = onnx_calls.axis(b, args, len(shape))
    sizes = onnx_calls.integers(b, args, 1, "split")
    if sizes is None:
        count = int(args.get("num_outputs") or args["outputs"])
        each = -(-shape[dim] // max(count, 1))
        sizes = [min(each, shape[dim] - start) for start in range(0, shape[dim], max(each, 1))]
    if sum(sizes) != shape[dim] or min(sizes, default=0) < 1:
        raise b.refuse(f"its parts {sizes} are not those of {shape[dim]} elements")
    return _slices(b, x, dim, sizes)


def _cat(b: Builder, names: Sequence[str], dim: int) -> str:
    rank = len(b.type(names[0]).shape)
    return names[0] if len(names) == 1 else b.emit("cat", names, {"dim": dim % max(rank, 1)})


def _import_cat(b: Builder, args: Mapping[str, Any]) -> str:
    return _cat(b, args["tensors"], args["dim"])


def _import_stack(b: Builder, args: Mapping[str, Any]) -> str:
    rank = len(b.type(args["tensors"][0]).shape)
    dim = args["dim"] % (rank + 1)
    # In the shape of a view, 0 keeps the dimension of the same index, -2 that at the same distance from the end.
    shape = [0] * dim + [1] + [-2] * (rank - dim)
    return _cat(b, [b.emit("view", (name,), {"shape": shape}) for name in args["tensors"]], dim)


def _border(b: Builder, x: str, dim: int, start: int, end: int) -> str:
    return b.emit("slice", (x,), {"dim": dim, "start": start, "end": end, "step": 1, "extent": 0})


def _edges(b: Builder, x: str, dim: int, before: int, after: int, mode: str) -> tuple[str | None, str | None]:
    """The values to add before and after `x` along a dimension; None for none. Their slices are also correct for other
    input sizes."""
    match mode:
        case "reflect":
            first = _border(b, x, dim, 1, before + 1) if before else None
            last = _border(b, x, dim, -after - 1, -1) if after else None
            first, last = (e and b.emit("flip", (e,), {"dims": [dim]}) for e in (first, last))
        case "replicate":
            rank = len(b.type(x).shape)
            first = _border(b, x, dim, 0, 1) if before else None
            last = _border(b, x, dim, -1, MAX_EXTENT) if after else None
            first, last = (
                e and b.emit("expand", (e,), {"shape": [n if i == dim else -1 for i in range(rank)]})
                for e, n in ((first, before), (last, after))
            )
        case _:
            first = _border(b, x, dim, -before, MAX_EXTENT) if before else None
            last = _border(b, x, dim, 0, after) if after else None
    return first, last


def _extended(b: Builder, x: str, pairs: Sequence[tuple[int, int]], mode: str) -> str:
    """`x` padded with copies of its own elements. `pairs` are (before, after) of each dimension, the last one first, as
    in torch."""
    rank = len(b.type(x).shape)
    for i, (before, after) in enumerate(pairs):
        if before < 0 or after < 0:
            raise b.refuse(f"padding mode {mode!r} cannot cut, found {before} and {after}: slice instead")
        dim = rank - 1 - i
        first, last = _edges(b, x, dim, before, after, mode)
        values = [value for value in (first, x, last) if value]
        x = b.emit("cat", values, {"dim": dim}) if len(values) > 1 else x
    return x


def _mode(mode: str) -> Import:
    return lambda b, args: _import_pad(b, {"self": args["self"], "pad": args["padding"], "mode": mode})


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _onnx_pad(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Pad. In modes that copy elements, negative padding is sliced off first."""
    x, fill = args["inputs"][0], (*args["inputs"], None, None)[2]
    rank, mode = len(b.type(x).shape), args["mode"]
    pads = onnx_calls.integers(b, args, 1, "pads") or []
    axes = onnx_calls.axes(b, args, rank, 3)
    axes = list(range(rank)) if axes is None else axes
    if len(pads) != 2 * len(axes) or mode not in _MODES:
        raise b.refuse(f"pads {pads} in mode {mode!r} are not two numbers for each of {len(axes)} dimensions")
    pairs = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if mode != "constant":
        for dim, (before, after) in pairs.items():
            if before < 0 or after < 0:
                extent = b.type(x).shape[dim]
                x = _border(b, x, dim, max(-before, 0), extent - max(-after, 0))
    pad = [n if mode == "constant" else max(n, 0) for d in reversed(range(rank)) for n in pairs.get(d, (0, 0))]
    value = args["value"] if args.get("value") is not None else onnx_calls.number(b, fill, "constant_value", 0.0)
    return _import_pad(b, {"self": x, "pad": pad, "mode": _MODES[mode], "value": value})


def _import_pad(b: Builder, args: Mapping[str, Any]) -> str:
    rank, pad = len(b.type(args["self"]).shape), list(args["pad"])
    # torch counts dimensions from the last one.
    pairs = [(pad[2 * i], pad[2 * i + 1]) for i in range(len(pad) // 2)]
    mode = args.get("mode", "constant")
    if mode != "constant":
        return _extended(b, args["self"], pairs, mode)
    padding = [n for pair in [(0, 0)] * (rank - len(pairs)) + pairs[::-1] for n in pair]
    if not any(padding):
        return str(args["self"])
    # Attributes are finite: the lowest float stands for -inf, as torch pads before a max_pool.
    value = min(max(float(args["value"] or 0), -FLOAT_MAX), FLOAT_MAX)
    return b.emit("pad", (args["self"],), {"padding": padding, "value": value})


def _import_shuffle(op: str, factor: str) -> Import:
    """The importer. With a factor of 1 it adds no node."""
    return lambda b, args: args["self"] if args[factor] == 1 else b.emit(op, (args["self"],), {factor: args[factor]})


def _onnx_depth_to_space(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's DepthToSpace. Mode CRD is a pixel_shuffle; for mode DCR the channels are reordered first."""
    x, block = args["inputs"][0], int(args["blocksize"])
    if args.get("mode") != "CRD":
        x = _regrouped(b, x, (block * block, -1))
    return b.emit("pixel_shuffle", (x,), {"upscale_factor": block})


def _onnx_space_to_depth(b: Builder, args: Mapping[str, Any]) -> str:
    y = b.emit("pixel_unshuffle", (args["inputs"][0],), {"downscale_factor": int(args["blocksize"])})
    return y if args.get("mode") == "CRD" else _regrouped(b, y, (-1, int(args["blocksize"]) ** 2))


def _regrouped(b: Builder, x: str, groups: tuple[int, int]) -> str:
    """`x` with its channels, seen as a matrix of shape `groups`, transposed."""
    split = b.emit("view", (x,), {"shape": (0, *groups, -2, -2)})
    transposed = b.emit("permute", (split,), {"dims": (0, 2, 1, 3, 4)})
    return b.emit("view", (transposed,), {"shape": (0, -1, -2, -2)})


def _import_unfold(b: Builder, args: Mapping[str, Any]) -> str:
    rank = len(b.type(args["self"]).shape)
    attrs = {"dim": args["dimension"] % rank, "size": args["size"], "step": args["step"]}
    return b.emit("unfold", (args["self"],), attrs)


def _onnx_concat(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Concat. Constants without elements, as exporters write for what is left out, add nothing."""
    names = [name for name in args["inputs"] if (array := b.array(name)) is None or array.size]
    return _cat(b, names, onnx_calls.axis(b, args, len(b.type(names[0]).shape)))


ATEN: Rules = {
    "slice": {f"aten.{name}": rule for name, rule in _SLICES.items()},
    "cat": {
        "aten.cat.default": _import_cat,
        "aten.concat.default": _import_cat,
        "aten.concatenate.default": _import_cat,
        "aten.stack.default": _import_stack,
    },
    "pad": {
        "aten.pad.default": _import_pad,
        "aten.constant_pad_nd.default": _import_pad,
        **{f"aten.reflection_pad{n}d.default": _mode("reflect") for n in (1, 2, 3)},
        **{f"aten.replication_pad{n}d.default": _mode("replicate") for n in (1, 2, 3)},
    },
    "pixel_shuffle": {"aten.pixel_shuffle.default": _import_shuffle("pixel_shuffle", "upscale_factor")},
    "pixel_unshuffle": {"aten.pixel_unshuffle.default": _import_shuffle("pixel_unshuffle", "downscale_factor")},
    "channel_shuffle": {
        f"aten.{name}.default": _import_shuffle("channel_shuffle", "groups")
        for name in ("channel_shuffle", "native_channel_shuffle")
    },
    "unfold": {"aten.unfold.default": _import_unfold},
}
ONNX: Rules = {
    "slice": {"Slice": _onnx_slice, "Split": _onnx_split},
    "cat": {"Concat": _onnx_concat},
    "pad": {"Pad": _onnx_pad},
    "pixel_shuffle": {"DepthToSpace": _onnx_depth_to_space},
    "pixel_unshuffle": {"SpaceToDepth": _onnx_space_to_depth},
}
