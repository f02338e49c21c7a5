"""pad: a constant before and after each dimension. In int8 it is the constant, quantized like the tensor.

Padding with the tensor's own elements is imported as a cat with slices of it, which are flipped or repeated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import (
    FLOAT_MAX,
    MAX_EXTENT,
    MOVED,
    Attr,
    Builder,
    Case,
    Import,
    Op,
    Operand,
    number,
    one_dtype,
)
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib import channels, onnx_calls
from q8ta_wgpu.kernels.move.strided import eight

MAX_RANK = 8


def _pairs(attrs: Attrs) -> list[tuple[int, int]]:
    padding = attrs["padding"]
    return list(zip(padding[::2], padding[1::2], strict=True))


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, padding = types[0].shape, list(attrs["padding"])
    if len(padding) != 2 * len(x) or len(x) > MAX_RANK:
        raise GraphError(f"pad of {x} needs two numbers for each of at most {MAX_RANK} dimensions, found {padding}")
    shape = tuple(d + before + after for d, (before, after) in zip(x, _pairs(attrs), strict=True))
    if any(d + min(ends) < 0 or new < 1 for d, new, ends in zip(x, shape, _pairs(attrs), strict=True)):
        raise GraphError(f"pad of {x} by {padding} cuts more than there is")
    return shape, one_dtype(types, {"value": attrs["value"]})


def _fill(t: TensorType, value: float) -> np.float32 | np.int32:
    if t.dtype == INT32:
        return number(value, INT32)
    if (q := t.q) is None:
        return np.float32(value if abs(value) < FLOAT_MAX else np.copysign(np.inf, value))
    return np.int32(arithmetic.quantize(np.array([value], np.float32), q, *q.range)[0])


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    fill = _fill(call.inputs[0], call.attrs["value"])
    result = np.full(call.output.shape, fill, arrays[0].dtype)
    source, target = [], []
    for extent, (before, after) in zip(arrays[0].shape, _pairs(call.attrs), strict=True):
        source.append(slice(max(-before, 0), extent - max(-after, 0)))
        target.append(slice(max(before, 0), max(before, 0) + source[-1].stop - source[-1].start))
    result[tuple(target)] = arrays[0][tuple(source)]
    return result


def _params(call: Call) -> Params:
    before = [pair[0] for pair in _pairs(call.attrs)]
    return {
        **eight("size", call.output.shape[::-1]),
        **eight("extent", call.inputs[0].shape[::-1]),
        **eight("before", before[::-1]),
        "digits": np.uint32(len(before)),
        "fill": _fill(call.inputs[0], call.attrs["value"]),
    }


def _pads_images(call: Call, target: Target) -> bool:
    """Whether only rows and columns are padded or cropped."""
    return len(call.output.shape) <= 4 and not any(n for pair in _pairs(call.attrs)[:-2] for n in pair)


def _image_params(call: Call) -> Params:
    rows, columns = [0, 0, *(pair[0] & 0xFFFFFFFF for pair in _pairs(call.attrs))][-2:]
    return {"before": (rows, columns, 0, 0), "fill": _fill(call.inputs[0], call.attrs["value"])}


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    if len(call.output.shape) != 4:
        return None
    before = _pairs(call.attrs)[axis][0]
    return first - before, last - before


def _slice(b: Builder, x: str, dim: int, start: int, end: int) -> str:
    return b.emit("slice", (x,), {"dim": dim, "start": start, "end": end, "step": 1, "extent": 0})


def _edges(b: Builder, x: str, dim: int, before: int, after: int, mode: str) -> tuple[str | None, str | None]:
    """The values to add before and after `x` along a dimension; None for none. Their slices are also correct for other
    input sizes."""
    match mode:
        case "reflect":
            first = _slice(b, x, dim, 1, before + 1) if before else None
            last = _slice(b, x, dim, -after - 1, -1) if after else None
            first, last = (e and b.emit("flip", (e,), {"dims": [dim]}) for e in (first, last))
        case "replicate":
            rank = len(b.type(x).shape)
            first = _slice(b, x, dim, 0, 1) if before else None
            last = _slice(b, x, dim, -1, MAX_EXTENT) if after else None
            first, last = (
                e and b.emit("expand", (e,), {"shape": [n if i == dim else -1 for i in range(rank)]})
                for e, n in ((first, before), (last, after))
            )
        case _:
            first = _slice(b, x, dim, -before, MAX_EXTENT) if before else None
            last = _slice(b, x, dim, 0, after) if after else None
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
    return lambda b, args: _import(b, {"self": args["self"], "pad": args["padding"], "mode": mode})


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def _onnx(b: Builder, args: Mapping[str, Any]) -> str:
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
                x = _slice(b, x, dim, max(-before, 0), extent - max(-after, 0))
    pad = [n if mode == "constant" else max(n, 0) for d in reversed(range(rank)) for n in pairs.get(d, (0, 0))]
    value = args["value"] if args.get("value") is not None else onnx_calls.number(b, fill, "constant_value", 0.0)
    return _import(b, {"self": x, "pad": pad, "mode": _MODES[mode], "value": value})


def _import(b: Builder, args: Mapping[str, Any]) -> str:
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


OPS = (
    Op(
        name="pad",
        operands=(Operand("x", dtypes=MOVED),),
        infer=_infer,
        reference=_reference,
        schema={
            "padding": Attr("ints", low=-MAX_EXTENT, high=MAX_EXTENT),
            "value": Attr("float", low=-FLOAT_MAX, high=FLOAT_MAX),
        },
        kernels=(
            channels.kernel(
                "pad.channels",
                ("pad", "channels", "channel_lanes"),
                _image_params,
                _pads_images,
                threads=channels.two_items,
            ),
            Kernel("pad", ("pad", "map"), (ANY,), ANY, params=_params),
        ),
        aten={
            "aten.pad.default": _import,
            "aten.constant_pad_nd.default": _import,
            **{f"aten.reflection_pad{n}d.default": _mode("reflect") for n in (1, 2, 3)},
            **{f"aten.replication_pad{n}d.default": _mode("replicate") for n in (1, 2, 3)},
        },
        onnx={"Pad": _onnx},
        int8=Moves(fill=lambda attrs: float(attrs["value"])),
        reads=_reads,
        cases=(
            Case(((2, 5, 3, 7),), {"padding": (0, 0, 0, 0, 1, 2, 3, 1), "value": 0.0}),
            Case(((2, 5, 3, 7),), {"padding": (0, 1, 2, 1, 0, 0, 0, 0), "value": 0.7}),
            Case(((1, 5, 6, 7),), {"padding": (0, 0, -1, 2, 1, -2, -3, 4), "value": -100.0}),
            Case(((13,),), {"padding": (3, 2), "value": 0.25}),
            Case(((2, 16, 3, 5),), {"padding": (0, 0, 0, 0, 1, 2, -1, 3), "value": 0.6}),
            Case(((2, 3, 2, 3, 5),), {"padding": (1, 0, 0, 1, 2, 0, 0, 0, 0, 3), "value": 0.0}),
        ),
    ),
)
