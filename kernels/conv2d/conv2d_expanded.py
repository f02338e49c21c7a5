"""q8ta_conv2d_expanded: the depthwise q8ta_conv2d of an image that a 1x1 q8ta_conv2d makes, as in inverted residuals.

It has the bytes of the two, with one dispatch and one round trip through memory less. Neighbouring workgroups make the
rows and columns between them twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8, INT8X4, INT32, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import INT8_RANGE, Op, Operand
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.conv2d import conv2d_sums
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.kernels.lib.thresholds import MACS_A_BYTE
from q8ta_wgpu.kernels.product import weighted

POINTWISE: Attrs = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
"""Attributes of the convolution that makes the image."""

WINDOW = (3, 3)
"""The window of the depthwise convolution."""

ROWS, THREADS, SLICE = 7, 256, 16
"""Of a workgroup: rows of the result, threads, and channels, as in the WGSL."""


def numbers(multiplier: Array, offset: Array, correction: Array) -> Array:
    """The operand `inner_numbers`, int32 (3, channels): multipliers as their bits, offsets and corrections."""
    return np.stack([multiplier.view(np.int32), offset, correction])


def _inner(call: Call) -> Call:
    """The convolution that makes the image."""
    attrs, types = call.attrs, (call.inputs[0], call.inputs[5])
    rounds = Epilogue((Requantize(attrs["x_lo"], attrs["x_hi"]),))
    shape, _ = conv2d_sums.infer(types, POINTWISE)
    image = TensorType(shape, INT8X4, QParams(1.0, attrs["x_zero"]))
    return Call("q8ta_conv2d", {**POINTWISE, "epilogue": rounds}, types, image)


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = conv2d_sums.infer((types[0], types[5]), POINTWISE)
    if types[6].shape != (3, shape[1]):
        raise GraphError(f"inner_numbers are three for each of {shape[1]} channels, found {types[6].shape}")
    if attrs["groups"] != shape[1] or types[1].shape != (shape[1], 1, *WINDOW) or attrs["dilation"] != (1, 1):
        found = f"{types[1].shape} in {attrs['groups']} groups with dilation {attrs['dilation']}"
        raise GraphError(
            f"the convolution of {shape[1]} channels must be depthwise with a window of 3x3, found {found}"
        )
    return epilogue.check(types, attrs, conv2d_sums.infer((TensorType(shape), *types[1:5]), attrs)[0])


def _valid_numbers(call: Call, arrays: Sequence[Array | None]) -> str:
    weight, stored = arrays[5:7]
    assert weight is not None and stored is not None
    given = (None, weight, stored[0].view(np.float32), *stored[1:])
    wrong = ((operand.name, operand.valid(_inner(call), given)) for operand in weighted.OPERANDS[2:] if operand.valid)
    return next((f"have a row for the {name}, which {text}" for name, text in wrong if text), "")


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, multiplier, offset, _, inner_weight, (inner_multiplier, inner_offset, _), *more = arrays
    inner, zero = _inner(call), call.attrs["x_zero"]
    acc = conv2d_sums.sums(x.astype(np.int64) - call.zeros[0], inner_weight, POINTWISE).astype(np.int64)
    image = epilogue.apply(inner, acc, 1, (inner_multiplier.view(np.float32), inner_offset))
    acc = conv2d_sums.sums(image.astype(np.int64) - zero, weight, call.attrs).astype(np.int64)
    return epilogue.apply(call, acc, 1, (multiplier, offset, *more))


def macs(call: Call) -> int:
    """The multiply-accumulates of both convolutions."""
    return weighted.macs(call) + weighted.macs(_inner(call))


def _vectors(call: Call) -> int:
    """Vectors of 16 channels of a pixel of x."""
    return -(-call.inputs[0].shape[1] // 16)


def _is_wide(call: Call) -> bool:
    return -(-call.inputs[0].shape[1] // 4) % 4 == 0


def _columns(call: Call) -> int:
    """Columns of the result of a workgroup: with those beside them, they read 16 or 12 columns of the image."""
    return 7 if call.attrs["stride"][1] == 2 or epilogue.extents(call)[3] <= 7 else 14


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    n, c, h, w = epilogue.extents(call)
    return THREADS * n * -(-h // ROWS) * -(-w // _columns(call)) * -(-c // SLICE), 1, 1


def _supports(call: Call, target: Target) -> bool:
    return target.shares_memory and target.packed_dot and call.attrs["stride"] in ((1, 1), (2, 2))


def _params(call: Call) -> Params:
    words, zero = -(-call.inputs[0].shape[1] // 4), call.attrs["x_zero"]
    padding = {"padding": tuple(call.attrs["padding"])}
    return {**epilogue.params(call), **padding, "row_words": np.uint32(words), "image_zero": np.int32(zero)}


def _pack_taps(call: Call, weight: Array) -> Array:
    """Words in order (channel quad, row, channel in the quad): a row of the window, and 0."""
    taps = np.pad(weight[:, 0], ((0, -len(weight) % 4), (0, 0), (0, 1)))
    return np.ascontiguousarray(taps.reshape(-1, 4, 3, 4).transpose(0, 2, 1, 3)).reshape(-1).view("<u4")


def _pack_weight(call: Call, weight: Array) -> Array:
    """Vectors in order (16 channels, vector of k, channel in the quad, quad)."""
    channels, depth, vectors = *weight.shape[:2], _vectors(call)
    rows = np.pad(weight.reshape(channels, depth), ((0, -channels % SLICE), (0, 16 * vectors - depth)))
    split = rows.reshape(-1, SLICE // 4, 4, vectors, 16).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(split).reshape(-1).view("<u4")


def _pack_numbers(call: Call, inner_numbers: Array) -> Array:
    """For each channel quad six vectors: start of the sums, multiplier, and four for rounding by additions."""
    inner = _inner(call)
    multiplier, offset, correction = (weighted.pad4(inner, row).reshape(-1, 1, 4) for row in inner_numbers)
    rounds = epilogue.pack_offset(inner, offset.reshape(-1))
    return np.concatenate([-correction, multiplier, rounds], axis=1)


def _source(call: Call) -> tuple[str, ...]:
    vectors = "vectors_whole" if _is_wide(call) else "vectors_of_words"
    return "q8ta_conv2d_expanded", vectors, "dot", "halves_int8", "sums_planes", *epilogue.source(call)


KERNEL = Kernel(
    "q8ta_conv2d_expanded",
    _source,
    (ONLY_4C,),
    ONLY_4C | FLOAT,
    supports=_supports,
    wide=lambda call: (
        *weighted.PER_CHANNEL,
        "weight",
        "inner_weight",
        "inner_numbers",
        *(("x",) if _is_wide(call) else ()),
    ),
    params=_params,
    constants=lambda call: {"STRIDE": call.attrs["stride"][0], "COLUMNS": _columns(call)},
    prepack={1: _pack_taps, **weighted.PAD_CHANNELS, 5: _pack_weight, 6: _pack_numbers},
    threads=_threads,
    turns=lambda call: 4 * _vectors(call),
    workgroup=(THREADS, 1, 1),
    cost=lambda call: macs(call) / MACS_A_BYTE["shared"],
)


q8ta_conv2d_expanded = Op(
    name="q8ta_conv2d_expanded",
    operands=(
        *weighted.OPERANDS,
        Operand("inner_weight", constant=True, dtypes=(INT8,)),
        Operand("inner_numbers", constant=True, valid=_valid_numbers, dtypes=(INT32,)),
    ),
    infer=_infer,
    reference=_reference,
    macs=macs,
    schema={
        **conv2d_sums.SCHEMA,
        "epilogue": epilogue.EPILOGUE,
        **{name: INT8_RANGE for name in ("x_zero", "x_lo", "x_hi")},
    },
    kernels=(KERNEL,),
)
