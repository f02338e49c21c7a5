"""How calls of aten and ONNX become conv_transpose2d: transposed convolutions of one to three dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.op import Builder
from q8ta_wgpu.kernels.lib import onnx_calls, volumes
from q8ta_wgpu.kernels.lib.numbers import repeated


def two_dimensional(b: Builder, args: Mapping[str, Any]) -> str:
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


one_dimensional = volumes.one_dimensional("conv_transpose1d", two_dimensional)
"""conv_transpose1d."""


def onnx(b: Builder, args: Mapping[str, Any]) -> str:
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


def three_dimensional(b: Builder, args: Mapping[str, Any]) -> str:
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
        "input": volumes.gathered(b, volumes.padded(b, args["input"], 0, 1), slices),
        "weight": b.emit("view", (weight,), {"shape": (inputs * taps, outputs, -2, -2)}),
    }
    return volumes.stacked(b, two_dimensional(b, {**args, **plane}), outputs_depth)
