"""What a dispatch costs in a choice of layouts: the one table that layout sync weighs.

Costs are estimates in bytes of memory traffic, so that a transition and a slower kernel compare. Every tensor counts
with the bytes it takes in its layout, padding included.

| what                                            | cost                                          |
|-------------------------------------------------|-----------------------------------------------|
| any dispatch                                    | `dispatch`, and the bytes of its constants    |
| operand of a kernel that walks whole words      | its bytes                                     |
| operand read element by element (`map` kernels) | its bytes times `elementwise_read`            |
| result                                          | its bytes                                     |
| what a kernel does beyond that                  | `Kernel.cost(call)`                           |
| transition                                      | that of the q8ta_clone dispatch, once a copy  |
| free view; constant in any layout               | 0                                             |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from q8ta_wgpu.ir import INT8, INT8X4, TensorType
from q8ta_wgpu.layout import Layout, Shape, word_count
from q8ta_wgpu.op import Call, Kernel, Op
from q8ta_wgpu.tensor_repr import LAYOUT_ORDER


@dataclass(frozen=True)
class CostModel:
    """The constants of the table above, in bytes. Assumed for a GPU of 50 GB/s until measured; the orders matter.

    Attributes:
        dispatch: a dependent dispatch that does nothing, 5 microseconds.
        elementwise_read: of an int8 operand read by `x_at`: every element loads a word and computes its address.
        tie: times the place in LAYOUT_ORDER: equal costs give uniform layouts, and so fewer distinct shaders.
    """

    dispatch: float = float(1 << 18)
    elementwise_read: float = 2.0
    tie: float = 2.0**-10


MODEL = CostModel()
_RANK = {layout: rank for rank, layout in enumerate(LAYOUT_ORDER)}


@functools.lru_cache(maxsize=1 << 16)
def _bytes(shape: Shape, layout: Layout) -> int:
    return 4 * word_count(shape, layout)


def size(t: TensorType, layout: Layout) -> int:
    """Bytes an activation takes in a layout, padding included."""
    return _bytes(t.shape, layout)


def read_cost(kernel: Kernel, t: TensorType, layout: Layout, model: CostModel = MODEL) -> float:
    """Cost of one activation operand read in a layout."""
    elementwise = t.dtype == INT8X4 and "map" in kernel.source
    return size(t, layout) * (model.elementwise_read if elementwise else 1.0)


def write_cost(t: TensorType, layout: Layout, model: CostModel = MODEL) -> float:
    """Cost of a result written in a layout."""
    return size(t, layout) + model.tie * _RANK[layout]


def base_cost(kernel: Kernel, op: Op, call: Call, model: CostModel = MODEL) -> float:
    """Cost of a dispatch in any layout: the launch, its constants and the kernel's own estimate."""
    constants = [t for position, t in enumerate(call.inputs) if op.operand(position).constant]
    return model.dispatch + sum(t.numel * (1 if t.dtype == INT8 else 4) for t in constants) + kernel.cost(call)


def dispatch_cost(
    kernel: Kernel, op: Op, call: Call, layouts: Sequence[Layout | None], out: Layout, model: CostModel = MODEL
) -> float:
    """Cost of one dispatch that reads its operands in `layouts` (None for constants) and writes `out`."""
    pairs = zip(call.inputs, layouts, strict=True)
    reads = sum(read_cost(kernel, t, layout, model) for t, layout in pairs if layout is not None)
    return base_cost(kernel, op, call, model) + reads + write_cost(call.output, out, model)
