"""What average pooling and reductions share: how a windowed sum of integers is lowered, its reference and kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT16X4, Array, Attrs, Call
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import ANY, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Layout
from q8ta_wgpu.ir.op import WIDE_RANGE, Attr, dims
from q8ta_wgpu.ir.target import LOOP_TURNS, Target
from q8ta_wgpu.kernels.lib import channels, share

CHANNELS = ("average_channels", "channels", "channel_lanes")
"""WGSL files of averages over windows of 4C, for `channels.kernel`."""

WORKGROUP = 128
ENOUGH_WORKGROUPS = 512
"""Threads of a workgroup that averages whole images, and the number of such workgroups that keeps a large GPU busy."""

LARGEST_RATIO = 1e36
"""Of the scales of operand and result: 256 times as much is a float32."""

UNROLLED = 4
"""Pixels that a thread adds in a turn."""

RATIO: Mapping[str, Attr] = {**WIDE_RANGE, "ratio": Attr("float", low=0, high=LARGEST_RATIO)}
"""Attributes for a divisor that follows from the input size: `ratio` is s_x/s_y, the multiplier f32(ratio/divisor)."""


def ratio_of(call: QuantizedCall, count: int) -> float | str:
    """s_x/s_y in float64, or why a sum of `count` elements has no int8 form."""
    x, y = call.q[0], call.out
    if x is None or y is None:
        return "it needs a quantized input and a quantized result"
    if text := too_many(count):
        return text
    ratio = x.scale / y.scale
    return ratio if ratio <= LARGEST_RATIO else f"the ratio {ratio:.3g} of its scales is past {LARGEST_RATIO:g}"


def too_many(count: int) -> str:
    """Why a sum of `count` differences of int8, or of the high bytes of int16, could pass int32; empty if it cannot."""
    return f"a sum of {count} elements could pass int32" if count * 256 > arithmetic.INT32_MAX else ""


def _is_short(call: Call, extents: share.Extents) -> bool:
    """Whether sums of as many elements fit int32."""
    q = call.inputs[0].q
    return q is None or math.prod(extents) * q.span <= arithmetic.INT32_MAX


def lower(call: QuantizedCall, op: str, attrs: Attrs, count: int) -> Int8Form | str:
    """The int8 form whose multiplier follows from `ratio` and the input size."""
    ratio = ratio_of(call, count)
    if isinstance(ratio, str):
        return ratio
    return Int8Form(op, (0,), {**attrs, "lo": call.lo, "hi": call.hi, "ratio": ratio})


def kernels(
    op: str, window: str, params: Callable[[Call], Params], extents: Callable[[Call], share.Extents]
) -> tuple[Kernel, ...]:
    """The kernels of an average by elements: `window` is the file of its windows, of `extents`. Integers have two more,
    for sums that may pass int32."""
    short = Kernel(op, (window, "windows", "average", "map"), (ANY,), ANY, params=params)
    if not op.startswith("q8ta_"):
        return share.kernels(short, extents, share.pays_for_few(extents))
    short = replace(short, supports=lambda call, target: _is_short(call, extents(call)))
    long = Kernel(f"{op}.long", (window, "windows", "average_long", "map"), (ANY_INT8,), ANY_INT8, params=params)

    def pays(call: Call, target: Target) -> bool:
        """Of int16, which has no kernel for whole images: one thread a result took 1.7 ms of an H200 for 100 MB."""
        large = math.prod(extents(call)) >= share.SHARED_FROM
        return large and target.shares_memory and call.inputs[0].dtype == INT16X4

    return *share.kernels(short, extents, pays), *share.kernels(long, extents, pays)


def multiplier(ratio: float, divisor: Any) -> Any:
    """f32(ratio/divisor), divided in float64: the same on every host."""
    return np.asarray(ratio / np.asarray(divisor, np.float64), np.float32)


def requantize(call: Call, sums: Array, factor: Array) -> Array:
    """Sums of (q - z_x) times a float32 multiplier, as stored in the output. Sums past int32 lose their 8 low bits."""
    fits = sums == sums.astype(np.int32)
    sums, factor = np.where(fits, sums, sums >> 8), np.where(fits, factor, factor * np.float32(256))
    return arithmetic.stored(call, arithmetic.scaled_steps(sums, factor))


def params(call: Call) -> Params:
    """Uniform fields of kernels/pool/average_packed.wgsl; none for a float32 result."""
    return {"x_zero": np.int32(call.zeros[0]), **arithmetic.stored_fields(call)} if call.output.q else {}


def _run_bits(call: Call) -> int:
    """log2 of the adjacent Words that a workgroup averages: runs of 128 bytes, shorter for few images or for images so
    large that a thread would take too many turns."""
    count, bits = channels.groups(call), 3 if channels.whole_vectors(call) else 5
    least = bits - 2
    while bits > 0 and (1 << bits) > count:
        bits -= 1
    while bits > least and dims(call.inputs[0])[0] * -(-count // (1 << bits)) < ENOUGH_WORKGROUPS:
        bits -= 1
    while bits > 0 and _turns(call, bits) > LOOP_TURNS:
        bits -= 1
    return bits


def _turns(call: Call, bits: int) -> int:
    """Turns of a thread, of UNROLLED pixels each."""
    _, _, h, w = dims(call.inputs[0])
    return -(-h * w // (UNROLLED * (WORKGROUP >> bits)))


def _shares_work(call: Call, target: Target) -> bool:
    """Whether threads share an image: not on a CPU, where they gain nothing and barriers are slow."""
    return target.shares_memory


def image_kernel(
    name: str,
    params_of: Callable[[Call], Params],
    multiplier_of: Callable[[Call], Array],
    supports: Callable[[Call, Target], bool],
    output: LayoutSet,
) -> Kernel:
    """A kernel for averages of whole images in 4C, with many threads for each image. 4C of 1x1 and 4W of (N, C) are the
    same bytes."""

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
        supports,
        threads=threads,
        output=output,
        workgroup=(WORKGROUP, 1, 1),
        preferred=_shares_work,
        turns=lambda call: _turns(call, _run_bits(call)),
    )
