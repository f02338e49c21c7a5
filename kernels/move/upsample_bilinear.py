"""upsample_bilinear: bilinear interpolation by torch's rule, with and without align_corners.

For int8 and int16 inputs, weights are fixed-point numbers with 18 fraction bits, and sums are integers. Before
rounding, a result differs from exact arithmetic by at most 2^-9 steps of an int8 input, or 2^-2 steps of an int16
input.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Case, Op, Operand
from q8ta_wgpu.kernels.lib import channels
from q8ta_wgpu.kernels.move.upsample_nearest import SIZES, resized

FRACTION = 18
"""Fraction bits of an input coordinate."""

FINER = 13
"""Additional fraction bits of the step, so that the last coordinate is still exact to FRACTION bits."""

ROW_BITS = {INT8X4: 14, INT16X4: 8}
"""Fraction bits of an interpolation along a row, by the operand's dtype."""

LARGEST = 1 << 13
"""The largest extent of input and result: with it, coordinates with FRACTION bits and products with FINER fit int32."""

SCHEMA = {**SIZES, "align_corners": Attr("bool")}


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = resized("upsample_bilinear", types[0].shape, attrs)
    if max(*types[0].shape[-2:], *shape[-2:]) > LARGEST:
        raise GraphError(f"upsample_bilinear of {types[0].shape} to {shape}: no side may pass {LARGEST}")
    return shape, FLOAT32


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return _infer(types, attrs)[0], INT8X4


def _line(call: Call, axis: int) -> tuple[float, float]:
    """(step, start) along H (0) or W (1), in input elements: result element i is interpolated at start + i * step."""
    extent, size = call.inputs[0].shape[axis - 2], call.output.shape[axis - 2]
    if call.attrs["align_corners"]:
        return ((extent - 1) / (size - 1) if size > 1 else 0.0), 0.0
    step = extent / size if call.attrs["size"][axis] else 1.0 / call.attrs["scale"][axis]
    return step, 0.5 * step - 0.5


def _fixed(call: Call, axis: int) -> tuple[int, int, int]:
    """(step in 2^-FRACTION, its remainder in 2^-(FRACTION + FINER), start in 2^-FRACTION)."""
    step, start = _line(call, axis)
    coarse = int(step * 2.0**FRACTION)
    return coarse, int(np.rint((step * 2.0**FRACTION - coarse) * 2.0**FINER)), int(np.rint(start * 2.0**FRACTION))


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0].astype(np.float64)
    for axis in (0, 1):
        step, start = _line(call, axis)
        extent = x.shape[axis - 2]
        position = np.maximum(np.arange(call.output.shape[axis - 2]) * step + start, 0.0)
        first = np.minimum(position.astype(np.int64), extent - 1)
        weight = (position - first).reshape((-1, 1) if axis == 0 else (-1,))
        pair = (np.take(x, indices, axis - 2) for indices in (first, np.minimum(first + 1, extent - 1)))
        a, b = pair
        with np.errstate(invalid="ignore"):
            x = a * (1.0 - weight) + b * weight
    return x.astype(np.float32)


def _taps(call: Call, axis: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(first input index, second input index, weight of the second in 2^-FRACTION) for each index of the result."""
    extent, index = call.inputs[0].shape[axis - 2], np.arange(call.output.shape[axis - 2], dtype=np.int64)
    coarse, fine, start = _fixed(call, axis)
    at = np.maximum(index * coarse + (index * fine >> FINER) + start, 0)
    first = np.minimum(at >> FRACTION, extent - 1)
    return first, np.minimum(first + 1, extent - 1), at & (2**FRACTION - 1)


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x = arrays[0].astype(np.int64) - call.zeros[0]
    left, right, weight = _taps(call, 1)
    bits = ROW_BITS[call.inputs[0].dtype]
    a, b = x[..., left], x[..., right]
    rows = (a * 2**18 + (b - a) * weight + (1 << (17 - bits))) >> (18 - bits)
    top, bottom, weight = _taps(call, 0)
    difference, weight = rows[..., bottom, :] - rows[..., top, :], weight[:, None]
    v = rows[..., top, :] * 64 + (difference * weight >> 12)
    return arithmetic.stored(call, arithmetic.scaled_steps(v, call.attrs["multiplier"]))


def _lower(call: QuantizedCall) -> Int8Form:
    x, y = call.quantized(), call.result
    multiplier = np.float32(x.scale / y.scale * 2.0 ** -(ROW_BITS[x.dtype] + 6))
    if not np.isfinite(multiplier):
        raise NoInt8Form(f"the ratio {x.scale / y.scale:.3g} of its scales is not a finite float32")
    attrs = {**call.attrs, "multiplier": float(multiplier), "lo": call.lo, "hi": call.hi}
    return Int8Form("q8ta_upsample_bilinear", (0,), attrs)


def _params(call: Call) -> Params:
    (coarse_h, fine_h, start_h), (coarse_w, fine_w, start_w) = _fixed(call, 0), _fixed(call, 1)
    fields: Params = {
        "steps": (coarse_h, fine_h, coarse_w, fine_w),
        "start_h": np.int32(start_h),
        "start_w": np.int32(start_w),
    }
    if call.output.q is None:
        return fields
    return {
        **fields,
        **arithmetic.stored_fields(call),
        "x_zero": np.int32(call.zeros[0]),
        "multiplier": np.float32(call.attrs["multiplier"]),
    }


def _constants(call: Call) -> dict[str, int]:
    return {"ROW_BITS": ROW_BITS[call.inputs[0].dtype]}


def _case(
    shape: Shape, scale: Sequence[float], size: Sequence[int], align_corners: bool, values: str = "random"
) -> Case:
    attrs = {"scale": tuple(scale), "size": tuple(size), "align_corners": align_corners}
    return Case((shape,), attrs, values)


OPS = (
    Op(
        name="upsample_bilinear",
        operands=(Operand("x"),),
        infer=_infer,
        reference=_reference,
        schema=SCHEMA,
        kernels=(
            Kernel(
                "upsample_bilinear",
                ("upsample_bilinear", "map", "compute=upsample_bilinear"),
                (FLOAT,),
                FLOAT,
                params=_params,
            ),
        ),
        int8=Arithmetic(_lower, reads_int16=True, gives_int16=True),
        cases=(
            _case((2, 5, 3, 7), (2.0, 2.0), (0, 0), False),
            _case((1, 6, 4, 5), (1.0, 1.0), (7, 13), True),
            _case((2, 30, 5, 3), (1.0, 1.0), (10, 12), False, "ties"),
            _case((1, 5, 9, 11), (0.4, 2.3), (0, 0), False, "saturate"),
            _case((2, 5, 7), (1.0, 3.0), (0, 0), False),
            _case((1, 17, 1, 6), (1.0, 1.0), (4, 1), True),
            _case((1, 3, 2, 11), (1.0, 1.0), (401, 5), False),
        ),
        tolerance=2e-5,
    ),
    Op(
        name="q8ta_upsample_bilinear",
        operands=(Operand("x", dtypes=INTEGERS),),
        infer=_infer_int8,
        reference=_reference_int8,
        results=(INT16X4,),
        schema={**SCHEMA, **WIDE_RANGE, "multiplier": Attr("float", low=0, high=3.4e38)},
        kernels=(
            channels.kernel(
                "q8ta_upsample_bilinear.channels",
                ("upsample_bilinear", "channels", "channel_lanes"),
                _params,
                constants=_constants,
            ),
            Kernel(
                "q8ta_upsample_bilinear",
                (
                    "upsample_bilinear",
                    "map",
                    "compute=q8ta_upsample_bilinear",
                    *channels.NARROW[INT8X4],
                ),
                (ANY_INT8,),
                ANY_INT8,
                params=_params,
                constants=_constants,
            ),
        ),
    ),
)
