"""Times and the rates they are compared with, device memory, and what opening a session took."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.layout import Layout, word_count
from q8ta_wgpu.program.program import Program
from q8ta_wgpu.runtime import rates
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.memory import Memory
from q8ta_wgpu.session.runner import Opening
from q8ta_wgpu.session.timing import Timing
from testbed import harness
from testbed.small import small_input, small_model
from testbed.standins import failing

MODEL = small_model()
LAYOUTS = {layout.short: layout for layout in Layout}


def program_of(*work: tuple[int, int]) -> Program:
    """A program whose dispatches move so many bytes and multiply so often."""
    program = harness.program_of(MODEL.graph)
    return replace(
        program,
        dispatches=tuple(
            replace(program.dispatches[0], kernel=f"k{i}", moved=moved, macs=macs)
            for i, (moved, macs) in enumerate(work)
        ),
    )


# --- rates ---


def test_shares_of_what_the_adapter_reaches() -> None:
    program = program_of((50_000, 0), (10_000, 2_000_000))
    timing = Timing("gpu", program, np.array([[5.0, 20.0], [5.0, 20.0]]), np.array([20.0, 20.0]), 400.0, 40.0)
    lines = str(timing).splitlines()
    assert lines[0] == "gpu: 0.020 ms GPU time a run, 0.025 ms one by one, 2 dispatches"
    assert lines[1] == "measured here: packed dot 400.0 GOP/s, copy 40.0 GB/s"
    # 50 kB in 5 us are 10 GB/s of 40; 2 M multiply-accumulates in 20 us are 200 GOP/s of 400.
    assert lines[3].split()[:5] == ["k0", "5.0", "20.0%", "10.0", "25.0%"]
    assert lines[4].split()[:7] == ["k1", "20.0", "80.0%", "0.5", "1.2%", "200.0", "50.0%"]
    assert lines[5].split() == ["a", "whole", "run", "20.0", "3.0", "7.5%", "200.0", "50.0%"]


def test_what_runs_on_matrix_units_is_not_compared_with_dot_products() -> None:
    """By what the module enables, not by a name; what a whole run mixes has no one limit."""
    program = program_of((10_000, 2_000_000), (10_000, 2_000_000))
    on_units = f"// k\nenable chromium_experimental_subgroup_matrix;\n{program.shaders[0]}"
    first, second = program.dispatches
    program = replace(
        program, shaders=(*program.shaders, on_units), dispatches=(first, replace(second, shader=len(program.shaders)))
    )
    timing = Timing("gpu", program, np.array([[20.0, 10.0]]), np.array([30.0]), 400.0, 40.0)
    lines = str(timing).splitlines()
    dot = lines[2].index("of dot") + 6
    assert (lines[3][dot - 5 : dot], lines[4][dot - 5 : dot].strip()) == ("50.0%", "")
    assert lines[5].split()[-1] == "266.7", "of neither"


def test_columns_stay_in_line_with_long_names() -> None:
    program = program_of((50_000, 8), (10_000, 8))
    long = replace(program.dispatches[1], kernel="q8ta_conv2d_requantize_shuffle.registers_8x16")
    program = replace(program, dispatches=(program.dispatches[0], long))
    lines = str(Timing("gpu", program, np.array([[5.0, 20.0]]), np.array([20.0]), 400.0, 40.0)).splitlines()
    title, rows = lines[2], lines[3:5]
    for place in (title.index(" of sum") + 7, title.index("GB/s") + 4, title.index("GOP/s") + 5):
        assert all(row[place - 1] in "0123456789%" and row[place] == " " for row in rows)


def test_rates_that_are_not_known_are_left_out() -> None:
    timing = Timing("gpu", program_of((50_000, 8)), np.array([[5.0]]), np.array([5.0]))
    text = str(timing)
    assert "measured here" not in text
    assert text.splitlines()[2].split()[:5] == ["k0", "5.0", "100.0%", "10.0", "0.0"]


def test_a_session_compares_with_its_device(device: Device) -> None:
    with Session(MODEL, device) as opened:
        timing = opened.time(small_input(), repeats=2, warmup=1)
    assert timing.dot_rate == device.dot_rates.packed > 0
    assert timing.copy_rate == device.copy_rate > 0


def test_rates_that_cannot_be_measured_are_no_reason_to_fail(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Device(vulkan.wgpu)
    failing(monkeypatch, rates, "copy_rate", RuntimeError("not enough memory left"))
    with pytest.raises(DeviceError, match="could not be measured: not enough memory left"):
        assert other.copy_rate
    with Session(MODEL, other) as opened:
        timing = opened.time(small_input(), repeats=1, warmup=0)
    assert timing.copy_rate == 0
    assert timing.dot_rate > 0


def test_copy_rate_by_timestamps_and_by_the_clock(vulkan: Device) -> None:
    """Two ways of measuring one thing: they agree within what a shared machine wavers."""
    assert vulkan.timestamps
    other = Device(vulkan.wgpu)
    other.timestamps = False
    by_clock, by_timestamps = rates.copy_rate(other, 0.2), rates.copy_rate(vulkan, 0.2)
    assert 0.2 * by_timestamps < by_clock < 5 * by_timestamps


# --- bytes ---


def test_moved_bytes_are_the_tensors_not_the_slots() -> None:
    """A slot may be larger than the tensor in it: what a dispatch moves is told by shapes and layouts."""
    program = harness.program_of(MODEL.graph)
    checked = 0
    for d in program.dispatches:
        layouts = [LAYOUTS[short] for short in d.layouts]
        node = next((n for n in MODEL.graph.nodes if n.output == d.value), None)
        if node is None:
            continue
        names = [name for name in node.inputs if name not in MODEL.graph.constants]
        shapes = [MODEL.graph.types[name].shape for name in (*names, node.output)]
        constants = sum(program.constants[i].nbytes for kind, i in d.buffers if kind == "constant")
        assert d.moved == constants + sum(4 * word_count(s, w) for s, w in zip(shapes, layouts, strict=True))
        checked += 1
    assert checked > 4
    assert any(d.moved < sum(program.slots[i] for kind, i in d.buffers if kind == "slot") for d in program.dispatches)


def test_memory(device: Device) -> None:
    x = small_input()
    with Session(MODEL, device) as opened:
        memory, program = opened.memory, opened.program
        assert memory is not None
        assert memory.slots == program.slots
        assert memory.constants == sum(c.nbytes for c in program.constants)
        outputs = sum(-(-port.size // 16) * 16 for port in program.outputs)
        assert memory.staging == outputs
        assert memory.peak == sum(program.slots) + memory.constants + len(program.uniforms) + outputs
        assert len(memory.slots) < len(program.dispatches) + len(program.inputs), "values share slots"
        list(opened.run_many([x] * 5))
        after = opened.memory
        assert after is not None
        assert after.staging == 4 * outputs, "three runs in flight and one recorded ahead"
    assert Session(MODEL, "reference").memory is None


def test_memory_is_told_in_a_line() -> None:
    memory = Memory(slots=(1 << 20, 1 << 19), constants=3 << 20, uniforms=2048, staging=1024)
    assert (
        str(memory)
        == "memory: 4.50 MiB at most = slots 1.50 MiB, constants 3.00 MiB, uniforms 2.0 KiB, staging 1.0 KiB"
    )


def test_opening(vulkan: Device) -> None:
    opening = Session(MODEL, vulkan).opening
    assert min(opening.device, opening.scheduling, opening.loading) > 0
    assert opening.total == pytest.approx(opening.device + opening.scheduling + opening.loading)
    assert str(Opening(0.1, 0.02, 0.003)) == "device 100 ms, scheduling 20 ms, pipelines and buffers 3 ms"
    assert Session(MODEL, "reference").opening.total == 0
