"""GPU times of several programs, measured in turns, so that other work on the machine slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench.kernel_sets import only
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from q8ta_wgpu.runtime.stopwatch import Stopwatch
from q8ta_wgpu.runtime.timestamps import SPIN_UP, runs_within
from q8ta_wgpu.session.session import Session
from q8ta_wgpu.session.timing import Timing
from testbed.graphs import random_words

SAMPLE = 10_000
"""A sample has as many runs, up to 100, as take at least so many microseconds."""

ROUNDS, FEWEST, ENOUGH = 9, 3, 10.0
"""Samples of each program; at least FEWEST, if all ROUNDS would take more than ENOUGH seconds."""


@dataclass(frozen=True)
class Loaded:
    """A program on a device with random inputs."""

    executor: Executor
    words: list[Array]

    @property
    def program(self) -> Program:
        """The program."""
        return self.executor.program

    def microseconds(self, runs: int = 1) -> float:
        """GPU time of one run, the mean of `runs` back to back."""
        return float(Stopwatch(self.executor).time_runs(self.words, 1, runs)[0])


def load(
    graph: Graph,
    device: Device,
    plan: Plan | None = None,
    keep: Callable[[Kernel], bool] | None = None,
    target: Target | None = None,
) -> Loaded:
    """Loads a graph's program with the layouts of `plan` (by default optimal ones), only with kernels that `keep`
    accepts, for the device's target or another one that it can run."""
    target = target or device.target
    with only(keep or (lambda kernel: True)):
        if plan is None:
            graph = lower(graph, target)
            plan = sync_layouts(graph, target)
        program = build(graph, target, plan)
    return Loaded(Executor(program, device), random_words(graph, plan))


def interleaved(programs: Mapping[str, Loaded]) -> dict[str, float]:
    """Median microseconds of a run of each program."""
    runs = {}
    for name, loaded in programs.items():
        loaded.microseconds()
        runs[name] = runs_within(SAMPLE, loaded.microseconds())
    start = time.perf_counter()
    spun = 0
    while spun == 0 or time.perf_counter() - start < SPIN_UP:
        for name, loaded in programs.items():
            loaded.microseconds(runs[name])
        spun += 1
    one_round = (time.perf_counter() - start) / spun
    rounds = int(np.clip(ENOUGH / one_round, FEWEST, ROUNDS))
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, loaded in programs.items():
            samples[name].append(loaded.microseconds(runs[name]))
    return {name: float(np.median(found)) for name, found in samples.items()}


def spin(session: Session, *inputs: Array) -> None:
    """Calls a session until clocks have risen."""
    start = time.perf_counter()
    while time.perf_counter() - start < SPIN_UP:
        session(*inputs)


def compared(programs: Mapping[str, Loaded]) -> dict[str, float]:
    """`interleaved`; closes the programs."""
    try:
        return interleaved(programs)
    finally:
        for loaded in programs.values():
            loaded.executor.close()


def heaviest(timing: Timing, count: int = 8) -> str:
    """A text: each kernel's share of a run, and the slowest dispatches."""
    medians = timing.medians
    shares: dict[str, float] = {}
    for dispatch, us in zip(timing.program.dispatches, medians, strict=True):
        shares[dispatch.kernel] = shares.get(dispatch.kernel, 0.0) + us / medians.sum()
    kernels = ", ".join(f"{k} {s:.0%}" for k, s in sorted(shares.items(), key=lambda item: -item[1])[:count])
    lines = [f"  by kernel: {kernels}"]
    for place in np.argsort(-medians)[:count]:
        d, us = timing.program.dispatches[int(place)], max(float(medians[place]), 1e-3)
        rates = f"{2e-3 * d.macs / us:>8.1f} GOP/s {d.moved / us / 1e3:>7.1f} GB/s"
        lines.append(f"  {d.kernel:<28} {us:>9.1f} us {rates}  {d.value}")
    return "\n".join(lines)
