"""The kernels of q8ta_attention: blocks of queries in workgroup memory, or one thread for each query."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir.graph import Call
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, where_loops_are_slow
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels.attention.shared import (
    COARSE_HOOKS,
    FINE_HOOKS,
    biased,
    distances,
    fine,
    has_vectors,
    loads_of,
    macs,
    needed,
    pack_bias,
    params_of,
    row_hooks,
)
from q8ta_wgpu.kernels.attention.sizes import STRIDES, Sizes, sizes
from q8ta_wgpu.kernels.lib.thresholds import FEW_QUERIES, MACS_A_BYTE
from q8ta_wgpu.kernels.product.units import NVIDIA


@dataclass(frozen=True)
class Block:
    """The tile of a workgroup.

    Attributes:
        rows: queries of a workgroup.
        keys: keys, and then values, that workgroup memory holds at a time.
        threads: threads of a workgroup. With dot products, rows * keys / 16.
        unit: the matrix unit for products; None for packed dot products.
    """

    rows: int
    keys: int
    threads: int
    unit: MatrixUnit | None = None

    def depth(self, found: Sizes) -> int:
        """Words of a row of queries and keys, padding included."""
        words = self.unit.k // 4 if self.unit else 4
        return -(-found.depth // (4 * words)) * words

    def width(self, found: Sizes) -> int:
        """Columns of the context, padding included."""
        return -(-found.width // 16) * 16

    def steps(self, found: Sizes) -> int:
        """Number of times that keys are loaded."""
        return -(-found.keys // self.keys)

    def memory(self, call: Call) -> int:
        """Bytes of workgroup memory."""
        found = sizes(call)
        depth, width = self.depth(found), self.width(found)
        if self.unit:
            sums = self.threads // self.unit.lanes * self.unit.m * (self.unit.n + 4)
            others = max(self.keys * (depth + 4), self.keys * (width // 4 + 4), sums)
        else:
            others = max(self.keys * (depth + 4), width * (self.keys // 4 + 4)) + max(self.keys, width)
        row = depth + 4 + self.steps(found) * (self.keys // 4 + 1) + 4
        if fine(call):  # the lower halves of weights, and the zero points' terms of their sums
            row += self.steps(found) * self.keys // 4 + 4 + 1
        return 4 * (self.rows * (row + 4) + others + self.threads + 1)

    def fits(self, call: Call, target: Target) -> bool:
        """Whether a target can run the block: it needs workgroup memory for all scores, and the matrix unit, which
        multiplies weights of eight bits only."""
        has_unit = not self.unit or (self.unit in target.matrix_units and not fine(call))
        return has_unit and self.memory(call) <= target.workgroup_memory

    def groups(self, found: Sizes) -> int:
        """Workgroups of a call."""
        return found.batch * found.heads * -(-found.queries // self.rows)

    def constants(self, call: Call) -> dict[str, int]:
        """The constants of its WGSL."""
        found = sizes(call)
        unit = self.unit
        units = {"UNIT_M": unit.m, "UNIT_N": unit.n, "UNIT_K": unit.k, "LANES": unit.lanes} if unit else {}
        return {
            "ROWS": self.rows,
            "KEYS": self.keys,
            "THREADS": self.threads,
            "DEPTH": self.depth(found),
            "WIDTH": self.width(found),
            "LENGTH": self.steps(found) * self.keys,
            "DEPTH_FULL": int(4 * self.depth(found) == found.depth),
            "BIASED": biased(call),
            "DISTANCES": distances(call),
            "FINE": int(fine(call)),
            **units,
        }


BLOCKS = {
    "units_16x64": Block(16, 64, 128, NVIDIA),
    "dots_32x64": Block(32, 64, 128),
    "dots_16x64": Block(16, 64, 64),
}
"""All blocks by name: the product, the queries of a workgroup, and the keys that it loads at a time. The fastest comes
first (H200, 32 times 12 heads of 197 x 64: 98, 186 and 191 microseconds)."""

TEAM = 256
"""Threads that share the keys of a query."""

MOST_COLUMNS = 16
"""The most words of the context that a thread of the kernel without workgroup memory computes."""

WRITTEN_OUT = 32
"""The most iterations of a fixed loop that software adapters do not count (q8ta_wgpu/ir/target.py)."""


def choose(call: Call, target: Target) -> str:
    """The name of the kernel for a call: "query" or a key of BLOCKS. Empty where workgroup memory is too small, and on
    software, where blocks are no faster."""
    if not target.shares_memory:
        return ""
    if sizes(call).queries <= FEW_QUERIES and _query_fits(call, target):
        return "query"
    return next((label for label, block in BLOCKS.items() if block.fits(call, target)), "")


def _kernel(label: str, block: Block) -> Kernel:
    body = "attention_units" if block.unit else "attention_dots"

    def source(call: Call) -> tuple[str, ...]:
        loads = loads_of(call, STRIDES)
        hooks = FINE_HOOKS if fine(call) else COARSE_HOOKS
        return body, "attention", f"{needed(call)}_steps", "scores", "mask", "dot", *loads, *hooks

    def wide(call: Call) -> tuple[str, ...]:
        return ("q", "k", "v")[: 3 if block.unit else 2] if has_vectors(call) else ()

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return block.groups(sizes(call)) * block.threads, 1, 1

    def turns(call: Call) -> int:
        found = sizes(call)
        inner = 64 + 2 * block.depth(found) + block.keys + 4 * block.width(found)
        return block.steps(found) * (inner + 1) + 3 * block.steps(found) * block.keys // 4

    return Kernel(
        f"q8ta_attention.{label}",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=block.fits,
        preferred=lambda call, target: label == choose(call, target),
        turns=turns,
        wide=wide,
        params=params_of,
        constants=block.constants,
        prepack={4: pack_bias},
        threads=threads,
        workgroup=(block.threads, 1, 1),
        unrolled=lambda target: block.unit is not None,
        cost=lambda call: macs(call) / MACS_A_BYTE["tiled"],
    )


def _slices(call: Call) -> int:
    """The number of threads that compute the context of a query, each a slice of its channels."""
    return -(-sizes(call).width // (4 * MOST_COLUMNS))


def row_iterations(found: Sizes) -> int:
    """The most loop iterations of a thread of the kernel without workgroup memory."""
    inner = sum(
        n + 1 for n in (found.depth // 4, found.depth // 4, min(found.width // 4, MOST_COLUMNS)) if n > WRITTEN_OUT
    )
    return (-(-found.keys // 4) + 1) * (3 + inner)


def _by_rows() -> Kernel:
    return Kernel(
        "q8ta_attention",
        lambda call: ("attention_rows", "scores", "mask", "dot", *row_hooks(call)),
        (ONLY_4W,),
        ONLY_4W,
        turns=lambda call: row_iterations(sizes(call)),
        params=lambda call: {**params_of(call), "slices": np.uint32(_slices(call))},
        constants=lambda call: {
            "DEPTH": sizes(call).depth // 4,
            "COLUMNS": min(sizes(call).width // 4, MOST_COLUMNS),
            "BIASED": biased(call),
            "QUERY_ZERO": int(call.zeros[0] != 0),
            "DISTANCES": distances(call),
            "FINE": int(fine(call)),
        },
        prepack={4: pack_bias},
        threads=lambda call, layout: (math.prod(sizes(call).scores[:3]) * _slices(call), 1, 1),
        unrolled=where_loops_are_slow,
        cost=lambda call: macs(call) / MACS_A_BYTE["direct"],
    )


def _across(found: Sizes) -> int:
    """Threads that share the channels of a context, 16 each, rounded up to a power of two."""
    return 1 << ((found.width - 1) // 16).bit_length()


def _length(found: Sizes) -> int:
    return -(-found.keys // 4) * 4


def _query_fits(call: Call, target: Target) -> bool:
    """Whether workgroup memory holds all scores of a query, and the threads of a workgroup cover its channels."""
    found = sizes(call)
    memory = 4 * (_length(found) + 16 * _across(found) * (1 + fine(call)) + 3)
    return found.width <= 16 * TEAM and memory <= target.workgroup_memory and target.invocations >= TEAM


def _by_query() -> Kernel:
    def source(call: Call) -> tuple[str, ...]:
        loads = loads_of(call, ("key", "value"))
        return "attention_query", "scores", "mask", "dot", *loads, *row_hooks(call)

    return Kernel(
        "q8ta_attention.query",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=_query_fits,
        preferred=lambda call, target: choose(call, target) == "query",
        turns=lambda call: sizes(call).keys,
        wide=lambda call: ("k", "v") if has_vectors(call) else (),
        params=params_of,
        constants=lambda call: {
            "DEPTH": -(-sizes(call).depth // 16) * 4,
            "LENGTH": _length(sizes(call)),
            "THREADS": TEAM,
            "ACROSS": _across(sizes(call)),
            "DEPTH_FULL": int(sizes(call).depth % 16 == 0),
            "BIASED": biased(call),
            "QUERY_ZERO": int(call.zeros[0] != 0),
            "DISTANCES": distances(call),
            "FINE": int(fine(call)),
        },
        prepack={4: pack_bias},
        threads=lambda call, layout: (math.prod(sizes(call).scores[:3]) * TEAM, 1, 1),
        workgroup=(TEAM, 1, 1),
        unrolled=lambda target: True,
        cost=lambda call: macs(call) / MACS_A_BYTE["shared"],
    )


KERNELS = (_by_query(), *(_kernel(label, block) for label, block in BLOCKS.items()), _by_rows())
