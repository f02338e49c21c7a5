"""Times the variants of a call on a device, by timestamp queries.

All variants of one call are dispatches of one program. They read the same buffers and are run in turns, so that other
work on the device slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, RANGES, Array, Call, Graph, Node, TensorType
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.stopwatch import AT_ONCE, Stopwatch
from q8ta_wgpu.runtime.timestamps import SPIN_UP, runs_within

HOPELESS = 3.0
"""A variant that takes this many times as long as the best one, in two runs, is not run again."""

LONGEST = 1.0
"""Limit of seconds of one run. A variant is not run if it would take longer at the measured speed of the first
candidate, and its estimate is more than HOPELESS times that one's. Operating systems reset a GPU that does not respond
for two seconds."""

SAMPLE, SAMPLES, FEWEST, CALL = 1e-3, 9, 5, 0.25
"""Seconds of a sample; largest and smallest number of samples; seconds that all samples of a call should not exceed."""

FIRST = 3
"""Runs of a candidate before its samples. The first one compiles it."""

WARM_UP = 0.03
"""Seconds of work before every call but the first, which has SPIN_UP: clocks fall while the host packs weights."""


class Timer:
    """Times candidates on a device. Raises DeviceError if the device fails."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._spun = False

    def copy(self) -> float:
        """Microseconds of a copy that reads and writes 10^9 bytes."""
        return 1e6 / self.device.copy_rate

    def times(
        self,
        call: Call,
        constants: Mapping[int, Array],
        candidates: Sequence[Variant],
        known: Mapping[Variant, float],
    ) -> list[float]:
        """Microseconds of the candidates of one call, in order: the median of samples; of a HOPELESS one the shorter of
        two runs; of one that would take more than LONGEST its estimate.

        Args:
            call: the call.
            constants: constant inputs by position; other inputs are random.
            candidates: variants that the device can run. The first one is run however long it takes, unless others
                are known.
            known: microseconds of other variants.
        """
        executor = Executor(_program(call, constants, candidates, self.device), self.device)
        try:
            watch = Stopwatch(executor)
            self._warm(watch)
            found, ran = self._first(watch, call, candidates, known)
            limit = HOPELESS * min(*found, *known.values(), np.inf)
            for i in (i for i in ran if found[i] > limit):
                found[i] = min(found[i], _sane(watch.time_runs([], 1, only=i)[0]))
            short = {i: found[i] for i in ran if found[i] <= limit}
            medians = self._medians(watch, short) if short else {}
        finally:
            executor.close()
        return [medians.get(i, microseconds) for i, microseconds in enumerate(found)]

    def _first(
        self, watch: Stopwatch, call: Call, candidates: Sequence[Variant], known: Mapping[Variant, float]
    ) -> tuple[list[float], list[int]]:
        """Times one run of each candidate, after runs that compile it, and says which were run. Candidates that would
        take too long are estimated."""
        found, ran = list[float](), list[int]()
        base, base_us = next(iter(known.items()), (candidates[0], 0.0))
        for i, variant in enumerate(candidates):
            slower = cost.dispatch_cost(variant, call) / cost.dispatch_cost(base, call)
            if slower > HOPELESS and slower * base_us > LONGEST * 1e6:
                found.append(slower * base_us)
                continue
            ran.append(i)
            found.append(_sane(watch.time_runs([], FIRST - 1, only=i)[-1]))
            base_us = base_us or found[0]
        return found, ran

    def _medians(self, watch: Stopwatch, first: Mapping[int, float]) -> dict[int, float]:
        """Median microseconds of dispatches by index, sampled in turns. `first` has the microseconds of one run of
        each."""
        runs = {i: runs_within(SAMPLE * 1e6, us) for i, us in first.items()}
        once = sum(first[i] * runs[i] for i in runs) / 1e6
        count = int(np.clip(CALL / max(once, 1e-6), FEWEST, SAMPLES))
        samples = [{i: watch.time_runs([], 1, n, only=i)[0] for i, n in runs.items()} for _ in range(count)]
        return {i: _sane(np.median([sample[i] for sample in samples])) for i in runs}

    def _warm(self, watch: Stopwatch) -> None:
        """Runs the first dispatch until a GPU's clocks have risen, without waiting for clocks that rise slowly: all
        candidates are timed at the same ones."""
        seconds = WARM_UP if self._spun else SPIN_UP
        self._spun = True
        if self.device.software:
            return
        runs = runs_within(AT_ONCE, watch.time_runs([], 1, only=0)[0])
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            watch.time_runs([], 1, runs, only=0)


def _sane(microseconds: Any) -> float:
    """A time clipped to what is possible: coarse timestamps may differ by 0."""
    return float(np.clip(microseconds, 0.01, 1e9))


def _program(call: Call, constants: Mapping[int, Array], candidates: Sequence[Variant], device: Device) -> Program:
    """A program with one dispatch for each candidate. Activations are constants, so that they are uploaded once."""
    rng = np.random.default_rng(0)
    graph = Graph()
    names = tuple(f"x{position}" for position in range(len(call.inputs)))
    for position, (name, t) in enumerate(zip(names, call.inputs, strict=True)):
        graph.types[name] = t
        graph.constants[name] = constants[position] if position in constants else _random(rng, t)
    steps = []
    for i, variant in enumerate(candidates):
        node = Node(call.op, names, f"y{i}", call.attrs)
        graph.types[node.output] = call.output
        steps.append(Step(node, call, variant))
    return build(graph, device.target, Plan(tuple(steps), {s.node.output: s.variant.out for s in steps}))


def _random(rng: np.random.Generator, t: TensorType) -> Array:
    if t.dtype == FLOAT32:
        return rng.standard_normal(t.shape, np.float32)
    low, high = RANGES.get(t.dtype, RANGES[INT8X4])
    return rng.integers(low, high + 1, t.shape, DTYPES[t.dtype])
