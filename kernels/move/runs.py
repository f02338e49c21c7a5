"""Kernels of cat and slice that copy runs of whole words. A run has the elements of the cut dimension and of all
dimensions inside it, which are contiguous."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.kernel import Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, packing_of, word_count, word_grid
from q8ta_wgpu.ir.op import INTEGERS
from q8ta_wgpu.ir.target import Target

LAYOUTS = (Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W)

WORDS = {1: "Word", 4: "vec4<u32>"}
"""WGSL types by number of words."""

Runs = Callable[[Call, Layout], "Sequence[int] | None"]
"""(call, layout) -> lengths of all runs, and offsets, in words; None where a run would begin within a word."""


def axis_of(shape: Shape, dim: int) -> int | None:
    """The canonical axis (0 to 3) of a dimension; None for a dimension that is folded into N with others."""
    axis = dim - len(shape) + 4
    return None if axis < 0 or (axis == 0 and len(shape) > 4) else axis


def run_words(shape: Shape, layout: Layout, axis: int) -> int:
    """The number of words of a run: all words of canonical `axis` and of the axes inside it."""
    order = packing_of(layout).order
    grid = word_grid(shape, layout)
    return math.prod(grid["NCHW".index(letter)] for letter in order[order.index("NCHW"[axis]) :])


def kernels(
    name: str,
    stem: str,
    runs: Runs,
    params: Callable[[Call, Sequence[int]], Params],
    wide: Sequence[str],
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
) -> tuple[Kernel, ...]:
    """A kernel for every layout of LAYOUTS. An item is a vector of four words if all of `runs` are multiples of four,
    otherwise a word.

    Args:
        name: of the kernels, without the layout.
        stem: WGSL file that defines `load` and `result` of an item.
        runs: see `Runs`.
        params: uniform fields, from the call and `runs` counted in items.
        wide: names of the operands and of the result.
        constants: as for Kernel.
    """

    def size_of(call: Call, layout: Layout) -> int:
        """The number of words of an item."""
        vectors = call.output.dtype == INT8X4 and not any(n % 4 for n in runs(call, layout) or (1,))
        return 4 if vectors else 1

    def supports(call: Call, target: Target, layout: Layout) -> bool:
        return call.output.dtype in INTEGERS and runs(call, layout) is not None

    def fields(call: Call, layout: Layout) -> Params:
        found, size = runs(call, layout), size_of(call, layout)
        assert found is not None
        items = word_count(call.output.shape, layout) // size
        return {**params(call, [n // size for n in found]), "words": np.uint32(items)}

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return -(-word_count(call.output.shape, layout) // (4 * size_of(call, layout))), 1, 1

    def kernel(layout: Layout) -> Kernel:
        return Kernel(
            f"{name}_{layout.short}",
            lambda call: (stem, f"Loaded={WORDS[size_of(call, layout)]}", "words"),
            (frozenset({layout}),),
            frozenset({layout}),
            supports=functools.partial(supports, layout=layout),
            wide=lambda call: tuple(wide) if size_of(call, layout) == 4 else (),
            params=functools.partial(fields, layout=layout),
            constants=constants,
            threads=threads,
        )

    return tuple(kernel(layout) for layout in LAYOUTS)
