"""What average pooling and reductions share: int8 lowering of a windowed sum, its reference, its uniform fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import ANY, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.op import RANGE, Attr, dims
from q8ta_wgpu.ir.target import LOOP_TURNS, Target
from q8ta_wgpu.kernels.lib import channels, share

CHANNELS = ("average_channels", "channels", "channel_lanes")
"""WGSL files of averages over windows of 4C, for `channels.kernel`."""

WORKGROUP = 128
ENOUGH_WORKGROUPS = 512
"""Threads of a workgroup that averages whole images, and the number of such workgroups that keeps a large GPU busy."""

UNROLLED = 4
"""Pixels that a thread adds in a turn."""

RATIO: Mapping[str, Attr] = {**RANGE, "ratio": Attr("float", low=0, high=3e38)}
"""Attributes for a divisor that follows from the input size: `ratio` is s_x/s_y, the multiplier f32(ratio/divisor)."""


def ratio_of(call: QuantizedCall, count: int) -> float | str:
    """s_x/s_y in float64, or why a sum of `count` elements has no int8 form."""
    x, y = call.q[0], call.out
    if x is None or y is None:
        return "it needs a quantized input and a quantized result"
    if text := too_many(count):
        return text
    ratio = x.scale / y.scale
    return ratio if ratio <= 3e38 else f"the ratio {ratio:.3g} of its scales is not a finite float32"


def too_many(count: int) -> str:
    """Why a sum of `count` differences of int8 could pass int32; empty if it cannot."""
    return f"a sum of {count} elements could pass int32" if count * 255 > arithmetic.INT32_MAX else ""


def lower(call: QuantizedCall, op: str, attrs: Attrs, count: int) -> Int8Form | str:
    """The int8 form whose multiplier follows from `ratio` and the input size."""
    ratio = ratio_of(call, count)
    if isinstance(ratio, str):
        return ratio
    return Int8Form(op, (0,), {**attrs, "lo": call.lo, "hi": call.hi, "ratio": ratio})


def kernels(
    op: str, window: str, params: Callable[[Call], Params], extents: Callable[[Call], share.Extents]
) -> tuple[Kernel, Kernel]:
    """The kernels of an average by elements, in float32 or int8: `window` is the file of its windows, of `extents`."""
    return share.kernels(Kernel(op, (window, "windows", "average", "map"), (ANY,), ANY, params=params), extents)


def multiplier(ratio: float, divisor: Any) -> Any:
    """f32(ratio/divisor), divided in float64: the same on every host."""
    return np.asarray(ratio / np.asarray(divisor, np.float64), np.float32)


def requantize(call: Call, sums: Array, factor: Array) -> Array:
    """Sums of (q - z_x) times a float32 multiplier, as int8 of the output."""
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
