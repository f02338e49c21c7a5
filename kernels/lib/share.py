"""Loops whose length grows with a call, shared by threads: an element by one thread, or by a team where one would take
too many turns (`Kernel.turns`).

The WGSL of such a kernel gives `part(p, first)`, what its loops find from the places `first` on in steps of STEPS;
`merge(a, b)` of two Partials; and `finish(p, whole)`. It is linked with a main that takes one thread a result, all
steps 1, or with one that takes a team and merges its parts (`shared_*.wgsl`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from q8ta_wgpu.ir.graph import RANGES, Call
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target

Extents = tuple[int, ...]
"""Turns of at most four loops, one in another, the innermost last: it steps by STEPS.w, those around it by z, y, x."""

THREADS = 256
"""Threads of a workgroup: a team for a float32 result, a team for each of an int8 word's four elements."""


MAINS = ("map", "direct")
"""Mains of one thread a result, an element or four channels; `shared_*` are those of teams."""


def nested(extents: Sequence[int]) -> int:
    """Turns that loops in each other take together, one more for each end of one."""
    return sum(math.prod(extents[:i]) * (extents[i] + 1) for i in range(len(extents)))


def _steps(extents: Extents, lanes: int) -> Extents:
    """How `lanes` threads, a power of two, go through the loops side by side: the longest are shared by most."""
    steps = [1] * len(extents)
    for _ in range(lanes.bit_length() - 1):
        longest = max(range(len(extents)), key=lambda i: -(-extents[i] // steps[i]))
        steps[longest] *= 2
    return tuple(steps)


def kernels(kernel: Kernel, extents: Callable[[Call], Extents]) -> tuple[Kernel, Kernel]:
    """A kernel by one thread a result, and by teams for calls with too many turns for one.

    Args:
        kernel: its stem of MAINS names the main.
        extents: the turns of its loops in a call.
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
        """Teams were not measured where one thread may do it: there the kernels for one are chosen as ever."""
        return alone_turns(call) > target.loop_turns

    source = kernel.source
    assert isinstance(source, tuple), f"{kernel.name}: the files of what teams share are those of every call"
    return (
        replace(
            kernel,
            source=(*source, "share"),
            constants=lambda call: constants(call, 1),
            turns=alone_turns,
        ),
        replace(
            kernel,
            name=f"{kernel.name}_shared" if "." in kernel.name else f"{kernel.name}.shared",
            source=(*(f"shared_{stem}" if stem in MAINS else stem for stem in source), "share", "rows"),
            constants=shared_constants,
            turns=shared_turns,
            preferred=needed,
            threads=shared_threads,
            workgroup=(THREADS, 1, 1),
        ),
    )
