"""q8ta_im2col: a convolution's windows, written out as channels, so that a 1x1 convolution of the result remains.

Channels of the result are (tap, channel). Taps outside of the image are the zero point. The pass passes/use_im2col.py
inserts it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import ONLY_4C, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, check_padded, dims, pair
from q8ta_wgpu.kernels.conv2d import conv2d_sums
from q8ta_wgpu.kernels.lib import channels
from q8ta_wgpu.kernels.lib.numbers import both

SCHEMA = {"kernel": pair(), **{name: conv2d_sums.SCHEMA[name] for name in ("stride", "padding", "dilation")}}


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, (top, left, bottom, right) = types[0].shape, attrs["padding"]
    if len(x) != 4 or x[1] % 4:
        raise GraphError(f"im2col takes a 4-D input of a multiple of 4 channels, found {x}")
    spans = [d * (k - 1) + 1 for d, k in zip(attrs["dilation"], attrs["kernel"], strict=True)]
    room = (x[2] + top + bottom - spans[0], x[3] + left + right - spans[1])
    if min(room) < 0:
        raise GraphError(f"im2col's kernel {attrs['kernel']} does not fit the padded input {x}")
    check_padded(x[0], x[1], x[2] + top + bottom, x[3] + left + right)
    rows, columns = (n // stride + 1 for n, stride in zip(room, attrs["stride"], strict=True))
    return (x[0], attrs["kernel"][0] * attrs["kernel"][1] * x[1], rows, columns), INT8X4


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    attrs, (n, _, h, w) = call.attrs, call.output.shape
    top, left, bottom, right = attrs["padding"]
    padded = np.pad(arrays[0], ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=call.zeros[0])
    (sy, sx), (dy, dx), (ky, kx) = attrs["stride"], attrs["dilation"], attrs["kernel"]
    taps = [
        padded[:, :, y * dy : y * dy + sy * (h - 1) + 1 : sy, x * dx : x * dx + sx * (w - 1) + 1 : sx]
        for y in range(ky)
        for x in range(kx)
    ]
    return np.stack(taps, 1).reshape(n, -1, h, w)


def _params(call: Call) -> Params:
    pairs = {name: (*call.attrs[name], 0, 0) for name in ("kernel", "stride", "dilation")}
    outside = np.uint32((call.zeros[0] & 0xFF) * 0x01010101)
    groups = np.uint32(channels.groups(call))
    return {**pairs, "padding": tuple(call.attrs["padding"]), "groups": groups, "outside": outside}


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    n, c, h, w = dims(call.output)
    return n * h * w * c // (16 if channels.whole_vectors(call) else 4), 1, 1


def _case(x: Shape, kernel: int | tuple[int, int], stride: int = 1, padding: object = 0, dilation: object = 1) -> Case:
    attrs = {"kernel": both(kernel), "stride": both(stride), "padding": both(padding, 4), "dilation": both(dilation)}
    return Case((x,), attrs)


OPS = (
    Op(
        name="q8ta_im2col",
        operands=(Operand("x", dtypes=(INT8X4,)),),
        infer=_infer,
        reference=_reference,
        schema=SCHEMA,
        kernels=(
            Kernel(
                "q8ta_im2col",
                lambda call: ("im2col", *channels.types(call)),
                (ONLY_4C,),
                ONLY_4C,
                wide=lambda call: ("x", "y") if channels.whole_vectors(call) else (),
                params=_params,
                threads=_threads,
            ),
        ),
        cases=(
            _case((2, 12, 6, 7), 3, padding=1),
            _case((1, 16, 5, 7), (3, 2), 1, (0, 1, 2, 0), (2, 1)),
            _case((2, 4, 3, 5), 2, 3, 4),
        ),
    ),
)
