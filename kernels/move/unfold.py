"""unfold: windows along a dimension, as a new last dimension. Elements in several windows are repeated."""

from __future__ import annotations

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, extent
from q8ta_wgpu.kernels.move.strided import Digit, move, strides


def _shape(x: Shape, attrs: Attrs) -> Shape:
    dim, size, step = attrs["dim"], attrs["size"], attrs["step"]
    if dim >= len(x) or x[dim] < size:
        raise GraphError(f"unfold of {x} along dimension {dim} needs at least {size} elements there")
    return (*x[:dim], (x[dim] - size) // step + 1, *x[dim + 1 :], size)


def _digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    dim, steps = attrs["dim"], strides(x)
    window = steps[dim]
    steps[dim] *= attrs["step"]
    return list(zip(y, (*steps, window), strict=True)), 0


def _reference(x: Array, y: Shape, attrs: Attrs) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, attrs["size"], attrs["dim"])
    return np.take(windows, range(0, windows.shape[attrs["dim"]], attrs["step"]), attrs["dim"])


unfold = move(
    "unfold",
    shape=_shape,
    digits=_digits,
    reference=_reference,
    schema={"dim": Attr("int", low=0, high=63), "size": extent(), "step": extent()},
    cases=(
        ((2, 5, 7), {"dim": 2, "size": 3, "step": 2}),
        ((2, 9, 3, 7), {"dim": 1, "size": 4, "step": 3}),
        ((3, 5, 64), {"dim": 2, "size": 32, "step": 16}),
        ((13,), {"dim": 0, "size": 5, "step": 1}),
    ),
)
