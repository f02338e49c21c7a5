"""Convolutions of volumes and of sequences, imported as convolutions of images.

The slices along depth that a 3-D kernel reads for one output slice become channels of one image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.importing.builder import Builder
from q8ta_wgpu.ir.graph import Array

Rule = Callable[[Builder, Mapping[str, Any]], str]
"""An importer function of one result."""


def gathered(b: Builder, x: str, slices: Array) -> str:
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


def stacked(b: Builder, y: str, depth: int) -> str:
    """Images (N * depth, C, H, W) as volumes (N, C, depth, H, W)."""
    y = b.emit("view", (y,), {"shape": (-1, depth, b.type(y).shape[1], -2, -2)})
    return b.emit("permute", (y,), {"dims": (0, 2, 1, 3, 4)})


def padded(b: Builder, x: str, before: int, after: int) -> str:
    """Volumes padded along depth with `before` and `after` slices of zeros."""
    if not (before or after):
        return x
    found: str = b.aten("aten.constant_pad_nd.default", {"self": x, "pad": [0, 0, 0, 0, before, after], "value": 0.0})
    return found


_HEIGHT_ONE = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


def one_dimensional(op: str, rule: Rule) -> Rule:
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
