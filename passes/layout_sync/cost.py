"""The cost model of layout sync: what a dispatch costs, by kernel and layouts.

Costs are estimates in bytes of memory traffic, so that a transition and a slower kernel can be compared. Every tensor
counts with the bytes it takes in its layout, padding included.

| part of a dispatch                                           | cost                                         |
|--------------------------------------------------------------|----------------------------------------------|
| the launch                                                   | DISPATCH, and the bytes of its constants     |
| result                                                       | its bytes                                    |
| operand of a kernel that reads whole words                   | its bytes                                    |
| the same, synced with a result in another layout             | its bytes times MIXED                        |
| operand read element by element (`map` kernels)              | its bytes times ELEMENT                      |
| the same, with the result in another layout                  | its bytes times ELEMENT times 2              |
| the same, with another packed dimension in the result        | its bytes times GATHER                       |
| anything else a kernel does                                  | `Kernel.cost(call)`                          |
| transition                                                   | that of one q8ta_clone dispatch for each copy|
| free view; constant in any layout                            | 0                                            |
| a call that was measured                                     | only its measured variants, `Measurements`   |
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from q8ta_wgpu.ir.graph import DTYPES, Call, TensorType
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, ROW_MAJOR, Layout, packed_axis
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.tensor_repr import LAYOUT_ORDER

AXIS = {layout: packed_axis(layout) for layout in (*INT8_LAYOUTS, ROW_MAJOR)}
"""The packed axis of every layout a kernel may see."""


DISPATCH = float(1 << 20)
"""Bytes that a GPU moves in the time of an empty dispatch: 5.5 MB on an H200 (1.9 microseconds), 0.25 MB on a GPU of
50 GB/s (5 microseconds). The value suits a GPU of 300 GB/s."""

MIXED, ELEMENT, GATHER = 3.0, 8.0, 20.0
"""Factors of an int8 operand's bytes. For int16 operands the last two are half of that, for float32 a quarter.

Measured on an H200 with kernels of 150 to 300 MB. A kernel that reads whole words in one layout reaches 3.9 TB/s, and
between two layouts 1.8 to 2.9. q8ta_clone element by element reaches 0.84 within a layout, 0.46 within a packed
dimension, 0.37 from 4C to 4W and 0.49 from 4W to 4C. Tiled clones and quantizes between 4C and rows reach 2.5 to 3.4,
which their own `cost` tells."""

TIE = 2.0**-10
"""Cost of one position in LAYOUT_ORDER. It breaks ties, so that layouts are uniform and shaders fewer."""

_RANK = {layout: rank for rank, layout in enumerate(LAYOUT_ORDER)}


@functools.lru_cache(maxsize=1 << 16)
def size(t: TensorType, layout: Layout) -> int:
    """Bytes an activation takes in a layout, padding included."""
    return t.stored_bytes(layout)


def read_cost(kernel: Kernel, t: TensorType, layout: Layout, out: Layout) -> float:
    """Cost of one activation operand read in `layout` by a dispatch that writes `out`."""
    bytes_read, same_axis = size(t, layout), AXIS[layout] == AXIS[out]
    if not kernel.by_element:
        return bytes_read * (MIXED if kernel.synced and layout != out else 1.0)
    factor = GATHER if not same_axis else ELEMENT * (1.0 if layout == out else 2.0)
    return bytes_read * max(factor / np.dtype(DTYPES[t.dtype]).itemsize, 1.0)


def write_cost(t: TensorType, layout: Layout) -> float:
    """Cost of a result written in a layout."""
    return size(t, layout) + TIE * _RANK[layout]


def base_cost(kernel: Kernel, call: Call) -> float:
    """Cost of a dispatch in any layout: the launch, its constants and the kernel's own estimate."""
    op = OPS[call.op]
    constants = [t for position, t in enumerate(call.inputs) if op.operand(position, call.attrs).constant]
    return DISPATCH + sum(t.numel * np.dtype(DTYPES[t.dtype]).itemsize for t in constants) + kernel.cost(call)


def dispatch_cost(variant: Variant, call: Call) -> float:
    """Cost of one dispatch: a call run in a variant."""
    kernel, out = variant.kernel, variant.out
    pairs = zip(call.inputs, variant.reads, strict=True)
    reads = sum(read_cost(kernel, t, layout, out) for t, layout in pairs if layout is not None)
    return base_cost(kernel, call) + reads + write_cost(call.output, out)


Measurements = Mapping[Call, Mapping[Variant, float]]
"""Measured costs on one adapter, by call and variant, in bytes that a copy moves there in the same time.

Measured and estimated costs of one call are never compared: a measured call runs in one of its measured variants,
preferred or not. Calls that were not measured keep their estimates. A transition that was not measured costs only
`copy_cost`, the least possible, so that no plan avoids it because of a guess. Tuning then measures the transitions of
the plan and plans again."""

UNMEASURED: Measurements = {}


def copy_cost(t: TensorType, source: Layout, out: Layout) -> float:
    """The least possible cost of a transition: the bytes that it reads and writes, at the rate of a copy."""
    return float(size(t, source) + size(t, out))
