"""Convolutions of volumes as those of images: the images that a kernel reads at once become channels of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.op import Builder

Rule = Callable[[Builder, Mapping[str, Any]], str]
"""An importer function of one result."""


def gathered(b: Builder, x: str, places: Array) -> str:
    """For each depth of the result, one image with the images that the kernel reads as channels: from (N, C, D, H, W)
    to (N * made, C * taps, H, W). `places` (taps, made) says which image a tap reads."""
    _, channels, depth = b.type(x).shape[:3]
    taps, made = places.shape
    index = b.constant(places.reshape(-1).astype(np.int32), "index")
    x = b.emit("index_select", (x, index), {"dim": 2, "extent": depth})
    x = b.emit("view", (x,), {"shape": (0, channels * taps, made, -2, -2)})
    x = b.emit("permute", (x,), {"dims": (0, 2, 1, 3, 4)})
    return b.emit("view", (x,), {"shape": (-1, -2, -2, -2)})


def stacked(b: Builder, y: str, made: int) -> str:
    """(N * made, C, H, W) as volumes (N, C, made, H, W)."""
    y = b.emit("view", (y,), {"shape": (-1, made, b.type(y).shape[1], -2, -2)})
    return b.emit("permute", (y,), {"dims": (0, 2, 1, 3, 4)})


def padded(b: Builder, x: str, before: int, after: int) -> str:
    """Volumes with images of zeros in front and behind."""
    if not (before or after):
        return x
    found: str = b.aten("aten.constant_pad_nd.default", {"self": x, "pad": [0, 0, 0, 0, before, after], "value": 0.0})
    return found


_HEIGHT_ONE = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


def one_dimensional(op: str, rule: Rule) -> Rule:
    """The import of a 1-D convolution `op` by the rule of a 2-D one, as of an image of height 1."""

    def wide(b: Builder, args: Mapping[str, Any]) -> str:
        x = b.type(args["input"]).shape
        if len(x) != 3:
            raise b.refuse(f"{op} takes a 3-D input, found shape {x}")
        views = {name: b.emit("view", (args[name],), {"shape": (0, 0, 1, -2)}) for name in ("input", "weight")}
        given = {name: one for name, one in _HEIGHT_ONE.items() if name in args and not isinstance(args[name], str)}
        numbers = {name: (one, args[name][0]) for name, one in given.items()}
        return b.emit("view", (rule(b, {**args, **views, **numbers}),), {"shape": (0, 0, -2)})

    return wide
