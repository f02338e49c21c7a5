"""q8ta_conv2d_parts: q8ta_conv2d whose image is a prologue, parts of tensors that are read in place.

It has the bytes of the moves that the prologue stands for and of q8ta_conv2d, without their dispatches and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import ONLY_4C, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels.conv2d import conv2d_sums
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.product import gemm, tiled, weighted
from q8ta_wgpu.kernels.prologue.prologue import PROLOGUE, Prologue

OWN = len(weighted.OPERANDS)


def _prologue(call: Call) -> tuple[Prologue, tuple[TensorType, ...]]:
    """The prologue of a call, and the types of its tensors."""
    found: Prologue = call.attrs["prologue"]
    return found, found.tensors(call.inputs, OWN)


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x = replace(types[0], shape=attrs["prologue"].shape(attrs["prologue"].tensors(types, OWN)))
    return epilogue.check(types, attrs, conv2d_sums.infer((x, *types[1:]), attrs)[0])


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    prologue, tensors = _prologue(call)
    given = zip(prologue.tensors(arrays, OWN), prologue.tensors(call.zeros, OWN), strict=True)
    x = prologue.read([array.astype(np.int64) - zero for array, zero in given])
    acc = conv2d_sums.sums(x, arrays[1], call.attrs).astype(np.int64)
    return epilogue.apply(call, acc, 1, (*arrays[2:4], *arrays[OWN + len(tensors) - 1 :]))


def _is_pointwise(call: Call) -> bool:
    """Whether a row of the product is one pixel, the same in all tensors."""
    shifts = any(part.shift for part in call.attrs["prologue"].parts)
    return call.inputs[1].shape[2:] == (1, 1) and not any(call.attrs["padding"]) and not shifts


def _sizes(call: Call) -> tuple[int, int, int]:
    n, c, h, w = epilogue.extents(call)
    return n * h * w, c, call.inputs[1].numel // (4 * c)


def _params(call: Call) -> Params:
    prologue, tensors = _prologue(call)
    kernel, image = call.inputs[1].shape[2:], prologue.shape(tensors)
    fields = {**weighted.zero_words(call), **prologue.params(tensors, math.prod(kernel))}
    if not _is_pointwise(call):
        return {**fields, **weighted.window_params(call)}
    grids = {"row_grid": epilogue.extents(call)[2:], "x_grid": image[2:], "step_grid": call.attrs["stride"]}
    return {**fields, "row_words": np.uint32(1), **{name: (*grid, 0, 0) for name, grid in grids.items()}}


def _reads(call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
    if stage := call.attrs["prologue"].stage:
        return *stage.source, "gemm_pixels", "sums_planes"
    order = "rows_in_order" if call.attrs["stride"] == (1, 1) else "rows_with_strides"
    reads = ("gemm_rows", "parts_pixels", order) if _is_pointwise(call) else ("parts_window",)
    return *reads, "gemm_pixels", "sums_planes"


def _constants(call: Call, tile: gemm.AnyTile) -> dict[str, int]:
    prologue, tensors = _prologue(call)
    width = {} if _is_pointwise(call) else {"KERNEL_WIDTH": call.inputs[1].shape[3]}
    return {**width, "VECTOR_ITEMS": 1 if prologue.wide(tensors) else 4}


PRODUCT = tiled.Product(
    name="q8ta_conv2d_parts.tiled",
    layouts=ONLY_4C,
    sizes=_sizes,
    weights=lambda call, weight: call.attrs["prologue"].rows(weight),
    reads=_reads,
    params=_params,
    has_vectors=lambda call: _prologue(call)[0].wide(_prologue(call)[1]),
    divisors=_constants,
)


q8ta_conv2d_parts = Op(
    name="q8ta_conv2d_parts",
    operands=weighted.OPERANDS,
    infer=_infer,
    reference=_reference,
    macs=weighted.macs,
    schema={**conv2d_sums.SCHEMA, "epilogue": epilogue.EPILOGUE, "prologue": PROLOGUE},
    kernels=tuple(tiled.kernels(PRODUCT)),
)
