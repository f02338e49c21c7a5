"""A short soak: what is opened, run and closed leaves nothing behind, and threads get the right bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import soak
from q8ta_wgpu import Session
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed import harness, op_graphs
from testbed.small import small_input, small_model

COUNTS: dict[soak.Work, int] = {
    soak.unused: 150,
    soak.runs: 300,
    soak.streamed: 100,
    soak.threads_on_one: 10,
    soak.threads_on_several: 10,
}
MEMORY = 3 << 20
"""Bytes that may stay of 60 rounds: libraries keep some; a command buffer a round were 6 MiB."""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the kernel's count of a process's pages")
@pytest.mark.parametrize("work", soak.SOAKS, ids=lambda work: work.__name__)
def test_nothing_stays(work: soak.Work, device: Device) -> None:
    found = soak.lasting(work, device, COUNTS.get(work, 60))
    if found.memory >= MEMORY:  # behind other tests the heap may grow once; what leaks does so again
        found = soak.lasting(work, device, COUNTS.get(work, 60))
    assert found.wrong == 0
    assert found.objects <= 0
    assert found.memory < MEMORY


def grown(run: Callable[[], object]) -> int:
    """Bytes of memory that the process has more of after 60 runs, behind ten others."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(10):
        run()
    before = resident()
    for _ in range(60):
        run()
    return resident() - before


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the kernel's count of a process's pages")
@pytest.mark.parametrize("name", ["pad", "gru"])
def test_loops_to_a_uniform_number_leave_nothing(name: str, vulkan: Device) -> None:
    """Mesa's lavapipe compiled such kernels anew at each dispatch, and kept 100 KiB and more of it."""
    graph, inputs = op_graphs.single_graph(OPS[name], OPS[name].cases[0])
    with Session(Model(graph, Structure({"list": [0]})), vulkan) as session:
        assert grown(lambda: session(**inputs)) < MEMORY


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the kernel's count of a process's pages")
@pytest.mark.parametrize(("name", "kernel"), [("conv2d", "q8ta_conv2d.direct"), ("linear", "q8ta_linear.direct")])
def test_weighted_sums_without_tiles_leave_nothing(name: str, kernel: str, vulkan: Device) -> None:
    """As the loops above, of kernels that larger calls do not run by."""
    found = (
        (graph, inputs, plan)
        for index, case in enumerate(OPS[name].cases)
        for graph, inputs in [op_graphs.int8_graph(OPS[name], case, op_graphs.SETTINGS[0])]
        for _, plan in harness.plans(graph, index, (vulkan.target,))
        if plan.steps[0].variant.kernel.name == kernel
    )
    graph, inputs, plan = next(found)
    program = build(graph, vulkan.target, plan)
    words = [harness.words_of(inputs[port.name], port) for port in program.inputs]
    executor = Executor(program, vulkan)
    try:
        assert grown(lambda: executor.run(words)) < MEMORY
    finally:
        executor.close()


def test_every_recorded_command_buffer_is_submitted(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu-native keeps those that are not for as long as the device lives."""
    Session(small_model(), vulkan).close()  # the first session probes the device, which also submits
    recorded, submitted = 0, 0
    recorder, queue = vulkan.recorder, type(vulkan.wgpu.queue)

    def counting(owner: type, name: str, count: Callable[..., None]) -> None:
        original = getattr(owner, name)

        def called(self: Any, *args: Any) -> Any:
            count(*args)
            return original(self, *args)

        monkeypatch.setattr(owner, name, called)

    def record(*_: Any) -> None:
        nonlocal recorded
        recorded += 1

    def submit(_: Any, commands: Any) -> None:
        nonlocal submitted
        submitted += 1

    def submit_all(commands: list[Any]) -> None:
        nonlocal submitted
        submitted += len(commands)

    counting(recorder, "record", record)
    counting(recorder, "submit", submit)
    counting(queue, "submit", submit_all)
    for calls in range(4):
        with Session(small_model(), vulkan) as session:
            for _ in range(calls):
                session(small_input())
            list(session.run_many([small_input()] * calls))
            assert recorded == submitted + (calls > 0), "one is recorded ahead"
        assert recorded == submitted
