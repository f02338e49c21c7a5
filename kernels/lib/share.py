"""Kernels whose loops grow with a call: one thread computes a result, or a team of threads where one thread would take
too many loop turns (`Kernel.turns`).

The WGSL of such a kernel defines three functions:

* `partial_result(p, first)` runs its loops from the indices `first` on, in steps of STEPS, and returns a Partial;
* `merge(a, b)` merges two Partials;
* `finish(p, merged)` computes the result.

They are linked with a main that has one thread for each result, where all steps are 1, or with a main whose teams merge
the Partials of their threads (`shared_*.wgsl`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from q8ta_wgpu.ir.graph import RANGES, Call
from q8ta_wgpu.ir.kernel import Kernel, Names
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib.thresholds import FEW_RESULTS, LARGE_WINDOW

Extents = tuple[int, ...]
"""Turns of at most four nested loops, the innermost last. It steps by STEPS.w, the loops around it by z, y and x."""

THREADS = 256
"""Threads of a workgroup: one team for a float32 result, or four teams for the four elements of an int8 word."""

MAINS = ("map", "direct")
"""Files with a main of one thread for each result: an element, or four channels. `shared_*` have the mains of teams."""


def nested(extents: Sequence[int]) -> int:
    """Loop turns of nested loops, with one more turn for the end of each loop."""
    return sum(math.prod(extents[:i]) * (extents[i] + 1) for i in range(len(extents)))


def _steps(extents: Extents, lanes: int) -> Extents:
    """The steps of each loop for `lanes` threads, a power of two: the longest loops are shared by most threads."""
    steps = [1] * len(extents)
    for _ in range(lanes.bit_length() - 1):
        longest = max(range(len(extents)), key=lambda i: -(-extents[i] // steps[i]))
        steps[longest] *= 2
    return tuple(steps)


def pays_for_few(extents: Callable[[Call], Extents]) -> Callable[[Call, Target], bool]:
    """A predicate for reductions with so few results that one thread for each leaves most of a GPU idle."""

    def pays(call: Call, target: Target) -> bool:
        few = call.output.numel <= FEW_RESULTS and math.prod(extents(call)) >= LARGE_WINDOW
        return few and target.shares_memory

    return pays


def kernels(
    kernel: Kernel,
    extents: Callable[[Call], Extents],
    pays: Callable[[Call, Target], bool] = lambda call, target: False,
) -> tuple[Kernel, Kernel]:
    """A kernel with one thread for each result, and one with a team of threads, for calls with too many loop turns for
    one thread.

    Args:
        kernel: the kernel with one thread for each result. One of its stems is in MAINS.
        extents: the turns of its loops in a call.
        pays: whether a team is faster where one thread is possible.
    """

    def teams(call: Call) -> int:
        """Elements of a result: a workgroup has a team for each. Without teams a thread computes them one by one."""
        return 4 if call.output.dtype in RANGES and kernel.by_element else 1

    def constants(call: Call, lanes: int) -> dict[str, int]:
        steps = (*(1,) * 4, *_steps(extents(call), lanes))[-4:]
        return {**kernel.constants(call), **{f"STEP_{i}": step for i, step in enumerate(steps)}}

    def shared_constants(call: Call) -> dict[str, int]:
        lanes = THREADS // teams(call)
        return {**constants(call, lanes), "THREADS": THREADS, "LANES": lanes}

    def shared_turns(call: Call) -> int:
        found = extents(call)
        steps = _steps(found, THREADS // teams(call))
        return nested([-(-extent // step) for extent, step in zip(found, steps, strict=True)])

    def shared_threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return kernel.threads(call, layout)[0] * THREADS, 1, 1

    def alone_turns(call: Call) -> int:
        return teams(call) * nested(extents(call))

    def needed(call: Call, target: Target) -> bool:
        """Whether teams are needed or faster. Where they were not measured, one thread is preferred if possible."""
        return alone_turns(call) > target.loop_turns or pays(call, target)

    def linked(files: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Names:
        source = kernel.source
        return files(source) if isinstance(source, tuple) else lambda call: files(source(call))

    def of_teams(source: tuple[str, ...]) -> tuple[str, ...]:
        return *(f"shared_{stem}" if stem in MAINS else stem for stem in source), "share", "rows"

    return (
        replace(
            kernel,
            source=linked(lambda source: (*source, "share")),
            preferred=lambda call, target: kernel.preferred(call, target) and not pays(call, target),
            constants=lambda call: constants(call, 1),
            turns=alone_turns,
        ),
        replace(
            kernel,
            name=f"{kernel.name}_shared" if "." in kernel.name else f"{kernel.name}.shared",
            source=linked(of_teams),
            constants=shared_constants,
            turns=shared_turns,
            preferred=needed,
            threads=shared_threads,
            workgroup=(THREADS, 1, 1),
        ),
    )
