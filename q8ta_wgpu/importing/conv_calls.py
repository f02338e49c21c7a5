"""Importer functions of convolutions and transposed convolutions, of sequences, images and volumes.

The slices along depth that a 3-D kernel reads for one output slice become channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.importing import onnx_calls
from q8ta_wgpu.importing.builder import Builder, Rules
from q8ta_wgpu.ir.graph import Array

_Rule = Callable[[Builder, Mapping[str, Any]], str]
"""An importer function of one result."""


def _gathered(b: Builder, x: str, slices: Array) -> str:
    """One image for each output slice, whose channels are the input slices that the kernel reads for it.

    Args:
        x: volumes (N, C, D, H, W).
        slices: int (taps, outputs): the index along depth that a tap reads for an output slice.

    Returns:
        Images (N * outputs, C * taps, H, W).
    """
    _, channels, depth = b.type(x).shape[:3]
    taps, outputs = slices.shape
    index = b.constant(slices.reshape(-1).astype(np.int32), "index")
    x = b.emit("index_select", (x, index), {"dim": 2, "extent": depth})
    x = b.emit("view", (x,), {"shape": (0, channels * taps, outputs, -2, -2)})
    x = b.emit("permute", (x,), {"dims": (0, 2, 1, 3, 4)})
    return b.emit("view", (x,), {"shape": (-1, -2, -2, -2)})


def _stacked(b: Builder, y: str, depth: int) -> str:
    """Images (N * depth, C, H, W) as volumes (N, C, depth, H, W)."""
    y = b.emit("view", (y,), {"shape": (-1, depth, b.type(y).shape[1], -2, -2)})
    return b.emit("permute", (y,), {"dims": (0, 2, 1, 3, 4)})


def _padded(b: Builder, x: str, before: int, after: int) -> str:
    """Volumes padded along depth with `before` and `after` slices of zeros."""
    if not (before or after):
        return x
    found: str = b.aten("aten.constant_pad_nd.default", {"self": x, "pad": [0, 0, 0, 0, before, after], "value": 0.0})
    return found


_HEIGHT_ONE = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


def _one_dimensional(op: str, rule: _Rule) -> _Rule:
    """The importer of the 1-D convolution `op`, from `rule`, the importer of the 2-D one: images have height 1. It
    raises the builder's refusal unless the input is (N, C, W)."""

    def imported(b: Builder, args: Mapping[str, Any]) -> str:
        x = b.type(args["input"]).shape
        if len(x) != 3:
            raise b.refuse(f"{op} takes a 3-D input, found shape {x}")
        views = {name: b.emit("view", (args[name],), {"shape": (0, 0, 1, -2)}) for name in ("input", "weight")}
        heights = {name: n for name, n in _HEIGHT_ONE.items() if name in args and not isinstance(args[name], str)}
        numbers = {name: (height, args[name][0]) for name, height in heights.items()}
        return b.emit("view", (rule(b, {**args, **views, **numbers}),), {"shape": (0, 0, -2)})

    return imported


def repeated(numbers: Sequence[Any], count: int) -> tuple[Any, ...]:
    """`numbers` repeated to `count` entries: in aten a number may stand for all dimensions, or for both sides of
    one."""
    return tuple(numbers) * (count // len(numbers))


def _onnx_conv(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Conv of one to three dimensions. Padding that aten's convolutions do not have becomes a Pad before it."""
    x, weight, bias = args["inputs"]
    size, shape = b.type(x).shape, b.type(weight).shape
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(size) != rank + 2:
        raise b.refuse(f"it takes images of one to three dimensions, found {size} and a weight {shape}")
    found = onnx_calls.window(b, args, list(shape[2:]), size[2:])
    pads = found.pop("pads")
    attrs = {**found, "groups": int(args["group"])}
    if min(pads) < 0 or (rank != 2 and pads[:rank] != pads[rank:]):
        x, pads = b.onnx("Pad", (x,), pads=[0, 0, *pads[:rank], 0, 0, *pads[rank:]], mode="constant"), [0] * 2 * rank
    arguments = {"input": x, "weight": weight, "bias": bias, **attrs, "padding": pads if rank == 2 else pads[:rank]}
    return b.aten(f"aten.conv{rank}d.default", arguments)


def _around(padding: str | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    """(top, left, bottom, right) of aten's padding. A number is for both sides. 'valid' is no padding. 'same' keeps the
    extent; an odd element is added at the end."""
    if not isinstance(padding, str):
        return repeated(padding, 4)
    totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
    before = [total // 2 for total in totals]
    return (*before, *(total - first for total, first in zip(totals, before, strict=True)))


def _import_conv2d(b: Builder, args: Mapping[str, Any]) -> str:
    shape = b.type(args["weight"]).shape
    bias = args["bias"] or b.constant(np.zeros(shape[0], np.float32), "bias")
    dilation = repeated(args["dilation"], 2)
    attrs = {
        "stride": repeated(args["stride"], 2),
        "padding": _around(args["padding"], shape[2:], dilation),
        "dilation": dilation,
        "groups": args["groups"],
    }
    return b.emit("conv2d", (args["input"], args["weight"], bias), attrs)


_TRANSPOSED = {1: "1d.default", 2: "2d.input", 3: "3d.input"}


def _import_convolution(b: Builder, args: Mapping[str, Any]) -> str:
    if args["transposed"]:
        return b.aten(f"aten.conv_transpose{_TRANSPOSED[len(args['stride'])]}", args)
    rules = {3: _import_conv1d, 5: _import_conv3d}
    return rules.get(len(b.type(args["weight"]).shape), _import_conv2d)(b, args)


_import_conv1d = _one_dimensional("conv1d", _import_conv2d)


def _import_conv3d(b: Builder, args: Mapping[str, Any]) -> str:
    """conv3d as conv2d. A dimension along which the kernel has extent 1 becomes part of the batch. If there is none,
    slices along depth become channels."""
    shape, kernel = b.type(args["input"]).shape, b.type(args["weight"]).shape[2:]
    padding = [args["padding"]] * 3 if isinstance(args["padding"], str) else args["padding"]
    numbers = {"kernel": kernel, "stride": args["stride"], "dilation": args["dilation"], "padding": padding}
    three = {name: repeated(value, 3) for name, value in numbers.items()}
    flat = [i for i in range(3) if kernel[i] == three["stride"][i] == 1 and three["padding"][i] in (0, "same", "valid")]
    if len(shape) != 5:
        raise b.refuse(f"conv3d takes a 5-D input, found shape {shape}")
    if not flat:
        return _import_deep_conv3d(b, args, three)
    deep, rows, columns = flat[0] + 2, *(d for d in (2, 3, 4) if d != flat[0] + 2)
    weight = [0, 0, *(kernel[d - 2] for d in (rows, columns))]
    images = b.emit("permute", (args["input"],), {"dims": (0, deep, 1, rows, columns)})
    plane = {name: [three[name][d - 2] for d in (rows, columns)] for name in ("stride", "dilation", "padding")}
    flat_args = {
        **args,
        **plane,
        "padding": args["padding"] if isinstance(args["padding"], str) else plane["padding"],
        "input": b.emit("view", (images,), {"shape": (-1, -2, -2, -2)}),
        "weight": b.emit("view", (args["weight"],), {"shape": weight}),
    }
    y = b.emit(
        "view", (_import_conv2d(b, flat_args),), {"shape": (-1, shape[deep], *b.type(args["weight"]).shape[:1], -2, -2)}
    )
    order = (0, deep, 1, rows, columns)
    return b.emit("permute", (y,), {"dims": tuple(order.index(d) for d in range(5))})


def _import_deep_conv3d(b: Builder, args: Mapping[str, Any], three: Mapping[str, Any]) -> str:
    """conv3d as conv2d. The slices along depth that the kernel reads for an output slice are channels of one image."""
    (taps, *_), (step, *stride), (spacing, *dilation) = (three[name] for name in ("kernel", "stride", "dilation"))
    span, padding = spacing * (taps - 1), three["padding"]
    before = {"same": span // 2, "valid": 0}.get(padding[0], padding[0])
    after = span - before if padding[0] == "same" else before
    x = _padded(b, args["input"], before, after)
    depth = b.type(x).shape[2]
    slices = (depth - span - 1) // step + 1
    if slices < 1:
        raise b.refuse(f"its kernel spans {span + 1} images, found {depth}")
    outputs, deep = b.type(args["weight"]).shape[:2]
    plane = {
        "stride": stride,
        "dilation": dilation,
        "padding": args["padding"] if isinstance(args["padding"], str) else list(padding[1:]),
        "input": _gathered(b, x, np.arange(taps)[:, None] * spacing + np.arange(slices) * step),
        "weight": b.emit("view", (args["weight"],), {"shape": (outputs, deep * taps, -2, -2)}),
    }
    return _stacked(b, _import_conv2d(b, {**args, **plane}), slices)


def _transposed_2d(b: Builder, args: Mapping[str, Any]) -> str:
    """conv_transpose2d. torch's weight is (inputs, outputs / groups, ...), with the groups along the inputs. It becomes
    (outputs, inputs / groups, ...), with the groups along the outputs."""
    groups, (inputs, outputs, *kernel) = args["groups"], b.type(args["weight"]).shape
    if inputs % groups:
        raise b.refuse(f"its weight's {inputs} inputs do not split into {groups} groups")
    weight = b.emit("view", (args["weight"],), {"shape": (groups, inputs // groups, outputs, *kernel)})
    weight = b.emit("permute", (weight,), {"dims": (0, 2, 1, 3, 4)})
    weight = b.emit("view", (weight,), {"shape": (groups * outputs, inputs // groups, *kernel)})
    bias = args["bias"] or b.constant(np.zeros(groups * outputs, np.float32), "bias")
    attrs = {name: repeated(args[name], 2) for name in ("stride", "padding", "output_padding", "dilation")}
    return b.emit("conv_transpose2d", (args["input"], weight, bias), {**attrs, "groups": groups})


_transposed_1d = _one_dimensional("conv_transpose1d", _transposed_2d)
"""conv_transpose1d."""


def _onnx_transposed(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's ConvTranspose of one to three dimensions. aten's padding is equal on both sides: the difference is sliced
    off the result."""
    x, weight, bias = args["inputs"]
    size, shape, groups = b.type(x).shape, b.type(weight).shape, int(args["group"])
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(size) != rank + 2:
        raise b.refuse(f"it takes images of one to three dimensions, found {size} and a weight {shape}")
    found = onnx_calls.window(b, {**args, "auto_pad": "NOTSET"}, list(shape[2:]), size[2:])
    pads, stride, dilation = found["pads"], found["stride"], found["dilation"]
    more = list(args.get("output_padding") or [0] * rank)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, shape[2:], strict=True)]
    full = [(n - 1) * s + span + m for n, s, span, m in zip(size[2:], stride, spans, more, strict=True)]
    mode = args.get("auto_pad") or "NOTSET"
    wanted = args.get("output_shape") or (
        [n * s for n, s in zip(size[2:], stride, strict=True)] if "SAME" in mode else None
    )
    if wanted is not None:
        pads, beyond = _pads_for(list(wanted)[-rank:], full, mode == "SAME_LOWER")
        more = [m + n for m, n in zip(more, beyond, strict=True)]
    elif mode == "VALID":
        pads = [0] * (2 * rank)
    if min(pads) < 0:
        raise b.refuse(f"its pads must not be negative, found {pads}")
    even = [min(pads[i], pads[rank + i]) for i in range(rank)]
    arguments = {"input": x, "weight": weight, "bias": bias, "stride": stride, "dilation": dilation, "groups": groups}
    name = "aten.conv_transpose1d.default" if rank == 1 else f"aten.conv_transpose{rank}d.input"
    y = str(b.aten(name, {**arguments, "padding": even, "output_padding": more}))
    for i, padding in enumerate(even):
        before, after = pads[i] - padding, pads[rank + i] - padding
        if before or after:
            extent = b.type(y).shape[2 + i]
            y = b.aten(
                "aten.slice.Tensor", {"self": y, "dim": 2 + i, "start": before, "end": extent - after, "step": 1}
            )
    return y


def _pads_for(wanted: Sequence[int], full: Sequence[int], more_before: bool) -> tuple[list[int], list[int]]:
    """What makes a result of the wanted sizes of one of the full sizes: pads, all before and then all after, and output
    padding. Of an odd number the larger half is before or after."""
    cut = [max(size - less, 0) for size, less in zip(full, wanted, strict=True)]
    half, rest = [c // 2 for c in cut], [c - c // 2 for c in cut]
    pads = rest + half if more_before else half + rest
    return pads, [max(greater - size, 0) for size, greater in zip(full, wanted, strict=True)]


def _transposed_3d(b: Builder, args: Mapping[str, Any]) -> str:
    """conv_transpose3d as conv_transpose2d. The slices along depth that the taps of an output slice read are channels
    of one image. A tap that reads none gets a slice of zeros, which is appended to the input."""
    names = ("stride", "padding", "output_padding", "dilation")
    three = {name: repeated(args[name], 3) for name in names}
    step, before, more, spacing = (three[name][0] for name in names)
    inputs, outputs, taps = b.type(args["weight"]).shape[:3]
    x = b.type(args["input"]).shape
    if len(x) != 5:
        raise b.refuse(f"conv_transpose3d takes a 5-D input, found shape {x}")
    depth = x[2]
    outputs_depth = (depth - 1) * step - 2 * before + spacing * (taps - 1) + more + 1
    if outputs_depth < 1:
        raise b.refuse(f"its result would have {outputs_depth} images")
    at = np.arange(outputs_depth) + before - spacing * np.arange(taps)[:, None]
    slices = np.where((at % step == 0) & (at >= 0) & (at < depth * step), at // step, depth)
    weight = b.emit("permute", (args["weight"],), {"dims": (0, 2, 1, 3, 4)})
    plane = {
        **{name: three[name][1:] for name in names},
        "input": _gathered(b, _padded(b, args["input"], 0, 1), slices),
        "weight": b.emit("view", (weight,), {"shape": (inputs * taps, outputs, -2, -2)}),
    }
    return _stacked(b, _transposed_2d(b, {**args, **plane}), outputs_depth)


ATEN: Rules = {
    "conv2d": {
        "aten.conv2d.default": _import_conv2d,
        "aten.conv2d.padding": _import_conv2d,
        "aten.convolution.default": _import_convolution,
        "aten.conv1d.default": _import_conv1d,
        "aten.conv1d.padding": _import_conv1d,
        "aten.conv3d.default": _import_conv3d,
        "aten.conv3d.padding": _import_conv3d,
    },
    "conv_transpose2d": {
        "aten.conv_transpose2d.input": _transposed_2d,
        "aten.conv_transpose1d.default": _transposed_1d,
        "aten.conv_transpose3d.input": _transposed_3d,
    },
}
ONNX: Rules = {"conv2d": {"Conv": _onnx_conv}, "conv_transpose2d": {"ConvTranspose": _onnx_transposed}}
