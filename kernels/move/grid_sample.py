"""grid_sample: images sampled at computed coordinates, in float32 as in torch. Outside of the image it reads 0, the
border or a reflection, by the padding mode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Case, Op, Operand

MODES = ("bilinear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
"""Padding modes. Their indices are torch's numbers for them."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, grid = types[0].shape, types[1].shape
    if len(x) != 4 or len(grid) != 4 or grid[3] != 2 or x[0] != grid[0]:
        raise GraphError(f"grid_sample takes images and as many grids (height, width, 2), found {x} and {grid}")
    return (*x[:2], *grid[1:3]), FLOAT32


def _line(call: Call, axis: int) -> tuple[float, float]:
    """(factor, offset) along H or W: coordinate v in -1..1 is the position (v + 1) * factor + offset, in elements."""
    extent, corners = call.inputs[0].shape[axis], call.attrs["align_corners"]
    return (extent - corners) / 2, 0.0 if corners else -0.5


def _positions(call: Call, grid: Array, axis: int) -> Array:
    factor, offset = _line(call, axis)
    finite = np.clip(np.nan_to_num(grid.astype(np.float64), nan=-1.0), -1e30, 1e30)
    reach, at = 2.0 if call.attrs["padding"] == "zeros" else 0.0, (finite + 1) * factor
    if call.attrs["padding"] == "reflection":
        turns, rest = np.divmod(np.abs(at), 2 * factor) if factor else (0 * at, 0 * at)
        at = np.where(turns % 2 == 1, 2 * factor - rest, rest)
    at = at + offset
    return np.asarray(np.clip(at, -reach, call.inputs[0].shape[axis] - 1 + reach))


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, grid = arrays
    height, width = x.shape[2:]
    across, down = _positions(call, grid[..., 0], 3), _positions(call, grid[..., 1], 2)
    images = np.arange(x.shape[0])[:, None, None]

    def tap(rows: Array, columns: Array, weight: Array) -> Array:
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        at = [np.clip(v, 0, n - 1).astype(np.int64) for v, n in ((rows, height), (columns, width))]
        values = x[images, :, at[0], at[1]]
        with np.errstate(invalid="ignore"):
            return np.where(inside[..., None], values * weight[..., None], 0.0)

    if call.attrs["mode"] == "nearest":
        y = tap(np.rint(down), np.rint(across), np.ones_like(down))
    else:
        top, left = np.floor(down), np.floor(across)
        lower, right = down - top, across - left
        with np.errstate(invalid="ignore"):
            y = tap(top, left, (1 - lower) * (1 - right)) + tap(top, left + 1, (1 - lower) * right)
            y = y + tap(top + 1, left, lower * (1 - right)) + tap(top + 1, left + 1, lower * right)
    return np.moveaxis(y, -1, 1).astype(np.float32)


def _params(call: Call) -> Params:
    (factor_h, offset), (factor_w, _) = _line(call, 2), _line(call, 3)
    return {
        "factor_h": np.float32(factor_h),
        "factor_w": np.float32(factor_w),
        "offset": np.float32(offset),
        "nearest": np.uint32(MODES.index(call.attrs["mode"])),
        "padding": np.uint32(PADDINGS.index(call.attrs["padding"])),
    }


def _case(x: Shape, grid: Shape, mode: str, padding: str, align_corners: bool) -> Case:
    return Case((x, grid), {"mode": mode, "padding": padding, "align_corners": align_corners})


OPS = (
    Op(
        name="grid_sample",
        operands=(Operand("x"), Operand("grid")),
        infer=_infer,
        reference=_reference,
        schema={
            "mode": Attr("enum", choices=MODES),
            "padding": Attr("enum", choices=PADDINGS),
            "align_corners": Attr("bool"),
        },
        kernels=(Kernel("grid_sample", ("grid_sample", "map"), (FLOAT,), FLOAT, params=_params),),
        cases=(
            _case((2, 5, 3, 7), (2, 11, 4, 2), "bilinear", "zeros", False),
            _case((1, 3, 6, 5), (1, 13, 3, 2), "bilinear", "border", True),
            _case((1, 3, 6, 5), (1, 13, 3, 2), "nearest", "zeros", True),
            _case((2, 2, 1, 9), (2, 17, 3, 2), "nearest", "border", False),
            _case((1, 1, 1, 3), (1, 5, 5, 2), "bilinear", "zeros", True),
            _case((2, 3, 1, 5), (2, 7, 3, 2), "bilinear", "reflection", True),
            _case((1, 2, 4, 3), (1, 11, 4, 2), "nearest", "reflection", False),
        ),
        tolerance=2e-5,
    ),
)
