"""im2col: the windows a convolution reads side by side, so that a 1x1 convolution of the result is the convolution.

Channels of the result are (tap, channel), every tap's channels padded to a multiple of 4. What lies outside the image
and in the padded channels is 0, in int8 the zero point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import EITHER, Attr, Case, Op, Operand, check_padded, dims, pair

ONLY_4C = frozenset({Layout.PACKED_INT8_4C})
SCHEMA: Mapping[str, Attr] = {
    "kernel": pair(),
    "stride": pair(),
    "padding": Attr("ints", low=0, length=4),  # top, left, bottom, right
    "dilation": pair(),
}


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, (top, left, bottom, right) = types[0].shape, attrs["padding"]
    if len(x) != 4:
        raise GraphError(f"im2col takes a 4-D input, found {x}")
    size = []
    for axis, around in ((0, top + bottom), (1, left + right)):
        span = attrs["dilation"][axis] * (attrs["kernel"][axis] - 1) + 1
        size.append((x[2 + axis] + around - span) // attrs["stride"][axis] + 1)
    if min(size) < 1:
        raise GraphError(f"im2col's kernel {attrs['kernel']} does not fit the padded input {x}")
    check_padded(x[0], x[1], x[2] + top + bottom, x[3] + left + right)
    return (x[0], attrs["kernel"][0] * attrs["kernel"][1] * (-(-x[1] // 4) * 4), *size), types[0].dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    attrs, (n, _, h, w) = call.attrs, call.output.shape
    top, left, bottom, right = attrs["padding"]
    channels = -arrays[0].shape[1] % 4
    around = ((0, 0), (0, channels), (top, bottom), (left, right))
    padded = np.pad(arrays[0], around, constant_values=call.zeros[0])
    (sy, sx), (dy, dx), (ky, kx) = attrs["stride"], attrs["dilation"], attrs["kernel"]
    taps = [
        padded[:, :, y * dy : y * dy + sy * (h - 1) + 1 : sy, x * dx : x * dx + sx * (w - 1) + 1 : sx]
        for y in range(ky)
        for x in range(kx)
    ]
    return np.stack(taps, 1).reshape(n, -1, h, w)


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int]:
    i = axis - 2
    stride, before = call.attrs["stride"][i], call.attrs["padding"][i]
    return first * stride - before, last * stride - before + call.attrs["dilation"][i] * (call.attrs["kernel"][i] - 1)


def _params(call: Call) -> Params:
    attrs, q = call.attrs, call.inputs[0].q
    return {
        "fill": np.int32(q.zero) if q else np.float32(0.0),
        "kernel": (*attrs["kernel"], 0, 0),
        "stride": (*attrs["stride"], 0, 0),
        "padding": tuple(attrs["padding"]),
        "dilation": (*attrs["dilation"], 0, 0),
    }


def _is_wide(call: Call) -> bool:
    return call.inputs[0].shape[1] % 16 == 0


def _word_params(call: Call) -> Params:
    channels = call.inputs[0].shape[1]
    units = -(-channels // 4) // (4 if _is_wide(call) else 1)
    return {
        **_params(call),
        "x_zeros": ((call.zeros[0] & 0xFF) * 0x01010101,) * 4,
        "units": np.uint32(units),
        "used": np.uint32((1 << 8 * ((channels - 1) % 4 + 1)) - 1),
    }


def _units(call: Call, layout: Layout) -> tuple[int, int, int]:
    n, c, h, w = dims(call.output)
    return n * h * w * c // (16 if _is_wide(call) else 4), 1, 1


WORDS = Kernel(
    "im2col.words",
    lambda call: ("im2col_words", "im2col_wide" if _is_wide(call) else "im2col_narrow"),
    (ONLY_4C,),
    ONLY_4C,
    supports=lambda call, target: call.inputs[0].dtype == INT8X4,
    wide=lambda call: ("x", "y") if _is_wide(call) else (),
    params=_word_params,
    threads=_units,
)


def _case(x: Shape, kernel: Any, stride: Any = 1, padding: int | tuple[int, ...] = 0, dilation: Any = 1) -> Case:
    pairs = {"kernel": kernel, "stride": stride, "dilation": dilation}
    attrs = {name: v if isinstance(v, tuple) else (v, v) for name, v in pairs.items()}
    return Case((x,), {**attrs, "padding": padding if isinstance(padding, tuple) else (padding,) * 4})


im2col = Op(
    name="im2col",
    operands=(Operand("x", dtypes=EITHER),),
    infer=_infer,
    reference=_reference,
    reads=_reads,
    schema=SCHEMA,
    kernels=(WORDS, Kernel("im2col", ("im2col", "map"), (ANY,), ANY, params=_params)),
    int8=Moves(fill=lambda attrs: 0.0),
    cases=(
        _case((2, 5, 6, 7), 3, padding=1),
        _case((1, 16, 5, 7), (3, 2), (1, 2), (0, 1, 2, 0), (2, 1)),
        _case((1, 3, 11, 9), 7, 2, 3),
        _case((2, 32, 4, 3), 1),
        _case((1, 1, 3, 5), 2, 3, 4),
    ),
)
