"""Loops whose length grows with a call: each result by one thread, or by a group of threads where one would take too
many turns (`Kernel.turns`).

The WGSL of such a kernel has three functions. `part(p, first)` computes what its loops find from the indices `first` on
in steps of STEPS. `merge(a, b)` merges two Partials. `finish(p, whole)` makes the result. It is linked with a main of
one thread for each result, where all steps are 1, or with one of a team that merges its parts (`shared_*.wgsl`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from q8ta_wgpu.ir.graph import RANGES, Call
from q8ta_wgpu.ir.kernel import Kernel, Names
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target

Extents = tuple[int, ...]
"""Turns of at most four nested loops, the innermost last. It steps by STEPS.w, those around it by z, y, x."""

THREADS = 256
"""Threads of a workgroup: one group for a float32 result, one for each of an int8 word's four elements."""

SHARED_FROM, FEW_RESULTS = 256, 1 << 13
"""Elements of a window from which threads share it, on devices where that pays, and the most results where there is
nothing else to keep them busy."""


MAINS = ("map", "direct")
"""Mains of one thread for each result, an element or four channels. `shared_*` are those of groups."""


def nested(extents: Sequence[int]) -> int:
    """Turns that nested loops take together, one more for each end of a loop."""
    return sum(math.prod(extents[:i]) * (extents[i] + 1) for i in range(len(extents)))


def _steps(extents: Extents, lanes: int) -> Extents:
    """How `lanes` threads, a power of two, share the loops: the longest loops are shared by most."""
    steps = [1] * len(extents)
    for _ in range(lanes.bit_length() - 1):
        longest = max(range(len(extents)), key=lambda i: -(-extents[i] // steps[i]))
        steps[longest] *= 2
    return tuple(steps)


def pays_for_few(extents: Callable[[Call], Extents]) -> Callable[[Call, Target], bool]:
    """Whether a reduction leaves so few results that one thread for each leaves most of a GPU idle."""

    def pays(call: Call, target: Target) -> bool:
        few = call.output.numel <= FEW_RESULTS and math.prod(extents(call)) >= SHARED_FROM
        return few and target.shares_memory

    return pays


def kernels(
    kernel: Kernel,
    extents: Callable[[Call], Extents],
    pays: Callable[[Call, Target], bool] = lambda call, target: False,
) -> tuple[Kernel, Kernel]:
    """A kernel with one thread for each result, and one with a group of threads for calls with too many turns for one.

    Args:
        kernel: its stem in MAINS names the main.
        extents: the turns of its loops in a call.
        pays: whether a group is faster though one thread may do it.
    """

    def teams(call: Call) -> int:
        """Results that a workgroup computes, and elements that a thread computes one after another otherwise."""
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
        """Where teams were not measured, the kernels for one thread are chosen as long as one may do it."""
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
