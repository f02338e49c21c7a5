"""Code that average pooling and reductions share: lowering, reference and kernels of integer sums over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Array, Attrs, Call
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import ANY, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.op import WIDE_RANGE, Attr, dims
from q8ta_wgpu.ir.target import LOOP_TURNS, Target
from q8ta_wgpu.kernels.lib import channels, share
from q8ta_wgpu.kernels.lib.thresholds import MANY_THREADS

CHANNELS = ("average_channels", "channels", "channel_lanes")
"""WGSL files of averages over windows in 4C, for `channels.kernel`."""

INT16 = (
    "average_channels",
    "Lanes=LanesInt16",
    "lanes_sum=lanes_sum_int16",
    "added=added_int16",
    "averaged=averaged_int16",
)
"""Bindings of sums of int16."""

WORKGROUP = 128
"""Threads of a workgroup that averages whole images."""

LARGEST_RATIO = 1e36
"""The largest ratio of the scales of operand and result. 256 times as much still fits float32."""

UNROLLED = 4
"""Pixels that a thread adds in a turn."""

RATIO: Mapping[str, Attr] = {**WIDE_RANGE, "ratio": Attr("float", low=0, high=LARGEST_RATIO)}
"""Attributes of an average whose divisor depends on the input's size: `ratio` is s_x / s_y, and the multiplier is
f32(ratio / divisor)."""


def ratio_of(call: QuantizedCall, count: int) -> float:
    """s_x / s_y in float64. Raises NoInt8Form where a sum of `count` elements has no int8 form."""
    ratio = call.quantized().scale / call.result.scale
    if text := too_many(count):
        raise NoInt8Form(text)
    if ratio > LARGEST_RATIO:
        raise NoInt8Form(f"the ratio {ratio:.3g} of its scales is past {LARGEST_RATIO:g}")
    return ratio


def too_many(count: int) -> str:
    """Why a sum of `count` elements could pass int32; empty if it cannot. Elements are differences of int8 values from
    their zero point, or high bytes of such differences of int16."""
    return f"a sum of {count} elements could pass int32" if count * 256 > arithmetic.INT32_MAX else ""


def lower(call: QuantizedCall, op: str, attrs: Attrs, count: int) -> Int8Form:
    """The int8 form with the attribute `ratio`.

    Args:
        call: the quantized call.
        op: name of the int8 operator.
        attrs: its other attributes.
        count: elements of the largest window.

    Raises NoInt8Form where there is none.
    """
    return Int8Form(op, (0,), {**attrs, "lo": call.lo, "hi": call.hi, "ratio": ratio_of(call, count)})


def kernels(
    op: str, window: str, params: Callable[[Call], Params], extents: Callable[[Call], share.Extents]
) -> tuple[Kernel, ...]:
    """The kernels of an average that compute element by element.

    Args:
        op: name of the operator.
        window: WGSL file that defines its windows.
        params: uniform fields.
        extents: extents of the largest window of a call.
    """
    kernel = Kernel(op, (window, "windows", "average", "map"), (ANY,), ANY, params=params)
    return share.kernels(kernel, extents, share.pays_for_few(extents))


def multiplier(ratio: float, divisor: Any) -> Any:
    """f32(ratio / divisor) for one or more divisors. It is divided in float64, so that all hosts get the same
    number."""
    return np.asarray(ratio / np.asarray(divisor, np.float64), np.float32)


def requantize(call: Call, sums: Array, factor: Array) -> Array:
    """The stored result of an average: sums of (q - z_x), int64, times float32 multipliers. Sums past int32 lose their
    8 low bits."""
    fits = sums == sums.astype(np.int32)
    sums, factor = np.where(fits, sums, sums >> 8), np.where(fits, factor, factor * np.float32(256))
    return arithmetic.stored(call, arithmetic.scaled_steps(sums, factor))


def params(call: Call) -> Params:
    """Uniform fields of kernels/pool/average_packed.wgsl; none for a float32 result."""
    return {"x_zero": np.int32(call.zeros[0]), **arithmetic.stored_fields(call)} if call.output.q else {}


def _run_bits(call: Call) -> int:
    """log2 of the number of adjacent Words that a workgroup averages: a run of 128 bytes. It is less for few images,
    and for images so large that a thread would take too many turns."""
    narrow = 4 if call.inputs[0].dtype == INT16X4 else 5
    count, bits = channels.groups(call), 3 if channels.whole_vectors(call) else narrow
    least = bits - 2
    while bits > 0 and (1 << bits) > count:
        bits -= 1
    while bits > least and dims(call.inputs[0])[0] * -(-count // (1 << bits)) < MANY_THREADS // WORKGROUP:
        bits -= 1
    while bits > 0 and _turns(call, bits) > LOOP_TURNS:
        bits -= 1
    return bits


def _turns(call: Call, bits: int) -> int:
    """The loop turns of a thread. In each it adds UNROLLED pixels."""
    _, _, h, w = dims(call.inputs[0])
    return -(-h * w // (UNROLLED * (WORKGROUP >> bits)))


def _fits(call: Call) -> bool:
    """Whether sums of whole images fit int32."""
    q = call.inputs[0].q
    return q is not None and math.prod(dims(call.inputs[0])[2:]) * q.span <= arithmetic.INT32_MAX


def image_kernel(
    name: str,
    params_of: Callable[[Call], Params],
    multiplier_of: Callable[[Call], Array],
    supports: Callable[[Call, Target], bool],
    output: LayoutSet,
) -> Kernel:
    """The kernel for averages of whole images in 4C, with many threads for each image.

    Args:
        name: of the kernel.
        params_of: uniform fields.
        multiplier_of: the multiplier of a call.
        supports: as for Kernel.
        output: layout of the result: 4C of 1x1 images, or 4W of (N, C), which has the same bytes.
    """

    def fields(call: Call) -> Params:
        n, _, h, w = dims(call.inputs[0])
        return {
            **params_of(call),
            "images": np.uint32(n),
            "pixels": np.uint32(h * w),
            "run_bits": np.uint32(_run_bits(call)),
            "image_multiplier": np.float32(multiplier_of(call)),
        }

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        bits = _run_bits(call)
        return dims(call.inputs[0])[0] * -(-channels.groups(call) // (1 << bits)) * WORKGROUP, 1, 1

    return channels.kernel(
        name,
        ("average_image", "channel_lanes"),
        fields,
        lambda call, target: _fits(call) and supports(call, target),
        INT16,
        threads=threads,
        output=output,
        workgroup=(WORKGROUP, 1, 1),
        preferred=lambda call, target: target.shares_memory,  # on CPUs barriers are slow
        turns=lambda call: _turns(call, _run_bits(call)),
    )
