"""Computes the device memory of whole networks in int8 and float32: `python -m pytest bench/bench_memory.py`.

No device is needed. Peak = the buffer slots that activations share, constants and uniforms: everything that a session
allocates but staging.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from testbed.networks import NETWORKS, example_input

NAMES = ("resnet50", "mobilenet_v2", "mobilenet_v3", "shufflenet", "unet", "refinenet", "subpixel", "transformer")
TARGET = replace(BASELINE, name="a desktop GPU", binding_size=1 << 31)
GOAL, LIMIT = 0.30, 0.36
"""Memory in int8 as a share of that in float32: the goal, and the limit for every network."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one program.

    Attributes:
        tensors: sum of all activations, if each had a buffer of its own; values: their number.
        slots: sum of the buffers that they share; buffers: their number.
        inputs: the part of slots for float32 inputs.
        constants: weights as uploaded, and uniforms; stored: weights as in a file.
    """

    tensors: int
    values: int
    slots: int
    buffers: int
    inputs: int
    constants: int
    stored: int

    @property
    def peak(self) -> int:
        """Everything together."""
        return self.slots + self.constants


def memory(graph: Graph) -> Memory:
    graph = lower(graph, TARGET)
    program = build(graph, TARGET, sync_layouts(graph, TARGET))
    constants = sum(array.nbytes for array in program.constants) + len(program.uniforms)
    inputs = sum(port.size for port in program.inputs)
    stored_constants = sum(array.nbytes for array in graph.constants.values())
    tensors, slots = program.values, program.slots
    return Memory(sum(tensors), len(tensors), sum(slots), len(slots), inputs, constants, stored_constants)


@cache
def both(name: str) -> tuple[Memory, Memory]:
    """A network's memory in int8 and in float32."""
    module, x = NETWORKS[name].factory(), example_input(NETWORKS[name].shape)
    program = q8.quantize(module, (x,), calibration=[x], progress=False)
    return memory(q8.compile(program).graph), memory(q8.compile(torch.export.export(module, (x,))).graph)


def _mib(size: int) -> str:
    return f"{size / 2**20:.2f}"


def _lines() -> Iterator[str]:
    yield "MiB, batch 1; activations: the sum of all -> the slots they share (how many values -> slots)"
    yield f"{'':<14}{'int8 activations':>34} {'weights':>9} {'peak':>9} {'float32 peak':>13} {'int8 / float32':>15}"
    for name in NAMES:
        int8, float32 = both(name)
        share = f"{_mib(int8.tensors)} -> {_mib(int8.slots)} ({int8.values} -> {int8.buffers})"
        missed = "  MISSED: " + _explained(int8, float32) if int8.peak > GOAL * float32.peak else ""
        yield (
            f"{name:<14}{share:>34} {_mib(int8.constants):>9} {_mib(int8.peak):>9} {_mib(float32.peak):>13} "
            f"{int8.peak / float32.peak:>15.1%}{missed}"
        )


def _explained(int8: Memory, float32: Memory) -> str:
    return (
        f"activations {int8.slots / float32.slots:.0%} of float32's, inputs of {_mib(int8.inputs)} in both; "
        f"weights {int8.constants / float32.constants:.0%}, {_mib(int8.stored)} before padding to tiles"
    )


@pytest.mark.parametrize("name", NAMES)
def test_slots_are_shared(name: str) -> None:
    for found in both(name):
        assert found.slots < found.tensors
        assert found.buffers < found.values


@pytest.mark.parametrize("name", NAMES)
def test_int8_is_small(name: str) -> None:
    int8, float32 = both(name)
    assert int8.peak < LIMIT * float32.peak


def test_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the table, and by what a network misses the goal. Runs last, after all networks were built."""
    with capsys.disabled():
        print("\n" + "\n".join(_lines()))
