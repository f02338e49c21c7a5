"""What a kernel is: one way to compute an operator in a single dispatch, with its layouts and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.layout import ANY_INT8, ROW_MAJOR, Layout, word_count
from q8ta_wgpu.ir.target import Target

LayoutSet = frozenset[Layout]
FLOAT: LayoutSet = frozenset({ROW_MAJOR})
ONLY_4C: LayoutSet = frozenset({Layout.PACKED_INT8_4C})
ONLY_4W: LayoutSet = frozenset({Layout.PACKED_INT8_4W})
ANY: LayoutSet = ANY_INT8 | FLOAT
"""Every layout; the linker takes those that fit the operand's dtype."""

Params = Mapping[str, "np.uint32 | np.int32 | np.float32 | tuple[int, int, int, int]"]
"""Uniform fields of a dispatch by name; a 4-tuple is a vec4<u32>. The WGSL struct and its bytes are made from it."""

Names = tuple[str, ...] | Callable[[Call], tuple[str, ...]]
"""Names that are the same for every call, or a function that gives them for a call."""


def no_params(call: Call) -> Params:
    """`Kernel.params` of kernels without fields of their own."""
    return {}


def _no_constants(call: Call) -> Mapping[str, int]:
    return {}


def no_turns(call: Call) -> int:
    """`Kernel.turns` of kernels whose loops have a fixed number of turns."""
    return 0


def _always(call: Call, target: Target) -> bool:
    return True


def _never(target: Target) -> bool:
    return False


def where_loops_are_slow(target: Target) -> bool:
    """`Kernel.unrolled` of kernels whose loops GPU drivers unroll themselves."""
    return target.unroll


def output_words(call: Call, layout: Layout) -> tuple[int, int, int]:
    """`Kernel.threads` by default: one thread for each word of the output."""
    return word_count(call.output.shape, layout), 1, 1


def four_words(call: Call, layout: Layout) -> tuple[int, int, int]:
    """`Kernel.threads` of a kernel with the main of `words` that makes four words: one for four words of the output."""
    return -(-word_count(call.output.shape, layout) // 4), 1, 1


def eight_words(call: Call, layout: Layout) -> tuple[int, int, int]:
    """`Kernel.threads` of a synced kernel with the main of `words`: one for eight words of the output."""
    return -(-word_count(call.output.shape, layout) // 8), 1, 1


def grid(threads: tuple[int, int, int], workgroup: tuple[int, int, int], limit: int) -> tuple[int, int, int]:
    """Workgroups in x, y, z; a one-dimensional grid beyond `limit` continues in y."""
    x, y, z = (-(-t // w) for t, w in zip(threads, workgroup, strict=True))
    if x > limit and y == 1:
        y = -(-x // limit)
        x = -(-x // y)
    return max(x, 1), max(y, 1), max(z, 1)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One way to compute an operator in a single dispatch. Kernels are compared as objects, never by name.

    Attributes:
        name: `operator` for the kernel that takes any call, else `operator.method` or `operator.method_tile`. Unique.
        source: WGSL files: the entry, which has `main`, and for names that several files define the file whose
            definition counts. `name=meaning` binds one name to another function or type. Other definitions are found by
            name.
        inputs: allowed layouts of each activation operand; the last entry repeats.
        output: allowed layouts of the result.
        synced: whether activation operands and result must share packed dimension and block size.
        supports: (call, target) -> whether the kernel is made for them. Limits are checked elsewhere.
        turns: the most loop turns of one thread in a call, without loops that are fixed in the WGSL. Beyond the
            target's limit a kernel that shares the loops among threads takes the call (kernels/lib/share.py).
        preferred: whether, by measurements, no kernel after it in the table is faster where it can run.
        wide: operands, or the result `y`, bound as vectors of four words. They have no index functions. `wide` and
            `source` may depend on the call: a kernel takes vectors where rows are whole ones.
        params: uniform fields beyond those of the linker (`words`, `<operand>_dims`).
        constants: integers linked as WGSL `const`: sizes of local arrays and what selects code.
        prepack: by operand position, a function from (call, canonical array) to the array to upload.
        threads: the grid in threads; the linker divides by the workgroup.
        workgroup: threads of a workgroup in x, y, z, as in the WGSL.
        workgroup_memory: bytes of workgroup memory, if they may exceed WebGPU's minimum of 16 KiB.
        unrolled: target -> whether loops of a known number of turns are unrolled (q8ta_wgpu/program/unroll.py).
        cost: estimated work beyond moving its tensors once, in bytes moved.
    """

    name: str
    source: Names
    inputs: tuple[LayoutSet, ...]
    output: LayoutSet
    synced: bool = False
    supports: Callable[[Call, Target], bool] = _always
    turns: Callable[[Call], int] = no_turns
    preferred: Callable[[Call, Target], bool] = _always
    wide: Names = ()
    params: Callable[[Call], Params] = no_params
    constants: Callable[[Call], Mapping[str, int]] = _no_constants
    prepack: Mapping[int, Callable[[Call, Array], Array]] = field(default_factory=dict)
    threads: Callable[[Call, Layout], tuple[int, int, int]] = output_words
    workgroup: tuple[int, int, int] = (64, 1, 1)
    workgroup_memory: int = 0
    unrolled: Callable[[Target], bool] = _never
    cost: Callable[[Call], float] = lambda call: 0.0

    @property
    def by_element(self) -> bool:
        """Whether each element of the result is computed by itself, in any layout."""
        return isinstance(self.source, tuple) and not {"map", "shared_map"}.isdisjoint(self.source)

    def linked(self, call: Call) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`source` and `wide` for a call."""
        source, wide = (names if isinstance(names, tuple) else names(call) for names in (self.source, self.wide))
        return source, wide

    def runs(self, call: Call, target: Target) -> bool:
        """Whether the kernel can run a call on a target in some layouts."""
        return self.supports(call, target) and not self.exceeds(call, target)

    def exceeds(self, call: Call, target: Target) -> str:
        """Which limit of a target a call exceeds in any layout, and by how much; empty if none."""
        for what, need, have in (
            ("loop turns of a thread", self.turns(call), target.loop_turns),
            ("storage buffers", len(call.inputs) + 1, target.storage_buffers),
            ("threads a workgroup", math.prod(self.workgroup), target.invocations),
            ("bytes of workgroup memory", self.workgroup_memory, target.workgroup_memory),
        ):
            if need > have:
                return f"{self.name} needs {need} {what}, {target.name} has {have}"
        return ""

    def grid(self, call: Call, out: Layout, target: Target) -> tuple[int, int, int]:
        """Workgroups in x, y, z."""
        return grid(self.threads(call, out), self.workgroup, target.workgroups)


@dataclass(frozen=True)
class Variant:
    """One way to run a call: the kernel, the layout in which it reads each input (None for constants), and the result's
    layout."""

    kernel: Kernel
    reads: tuple[Layout | None, ...]
    out: Layout

    def __str__(self) -> str:
        reads = " ".join(layout.short for layout in self.reads if layout is not None)
        return f"{self.kernel.name} ({reads} -> {self.out.short})"
