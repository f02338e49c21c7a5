"""Devices that fail: lost, out of memory, refusing a kernel or a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import wgpu

from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed import harness
from testbed.small import same_bytes, small_input, small_model

MODEL = small_model()
NATIVE = engines.native()


def test_a_lost_device() -> None:
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    opened = Session(MODEL, adapter.request_device_sync())
    assert opened.device is not None
    same_bytes(opened(small_input()))
    opened.device.wgpu.destroy()
    assert not opened.device.alive
    with pytest.raises(DeviceError, match=r"could not run the program: .*lost"):
        opened(small_input())
    with pytest.raises(DeviceError, match=r"could not load the program \(.* MiB of activations.*lost"):
        Session(MODEL, opened.device)
    opened.close()


def test_a_lost_device_under_a_model_without_inputs() -> None:
    """Nothing is uploaded that would fail; wgpu-native would end the process at the submission."""
    graph = Graph([], ["y"], types={"y": TensorType((3,))})
    graph.nodes = [Node("relu", (graph.add_constant("c", np.ones(3, np.float32)),), "y")]
    adapter = next(a for a in NATIVE.adapters() if "Vulkan" in NATIVE.describe(a))
    with Session(Model(graph, Structure(0)), adapter.request_device_sync()) as opened:
        assert opened().sum() == 3
        assert opened.device is not None
        opened.device.wgpu.destroy()
        with pytest.raises(DeviceError, match="was lost"):
            opened()


@pytest.mark.usefixtures("nothing_open")
def test_a_lost_device_is_opened_again() -> None:
    first = open_device("vulkan")
    assert open_device("vulkan") is first
    first.wgpu.destroy()
    second = open_device("vulkan")
    assert second is not first
    same_bytes(Session(MODEL, second)(small_input()))


def test_out_of_memory_while_loading(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was allocated before the failure is freed."""
    program = harness.program_of(MODEL.graph, vulkan.target)
    freed: list[Any] = []

    class Full:
        """A device with memory for two buffers."""

        def __init__(self) -> None:
            self.made: list[Any] = []

        def __getattr__(self, name: str) -> Any:
            return getattr(vulkan.wgpu, name)

        def create_buffer(self, **wanted: Any) -> Any:
            if len(self.made) == 2:
                raise wgpu.GPUOutOfMemoryError("not enough memory left")
            self.made.append(self)
            return self

        def destroy(self) -> None:
            freed.append(self)

    fake = Device(vulkan.wgpu)
    fake.wgpu = Full()
    with pytest.raises(DeviceError, match=r"could not load the program .*not enough memory left"):
        Executor(replace(program, slots=(16, 16, 16)), fake)
    assert len(freed) == 2


def test_a_kernel_that_does_not_compile(vulkan: Device) -> None:
    program = harness.program_of(MODEL.graph, vulkan.target)
    broken = replace(program, shaders=tuple("// broken\nfn main( {" for _ in program.shaders))
    with pytest.raises(DeviceError, match="could not compile kernel broken"):
        Executor(broken, vulkan)


def test_a_grid_past_the_limit(vulkan: Device) -> None:
    program = harness.program_of(MODEL.graph, vulkan.target)
    wide = tuple(replace(d, grid=(1, 1, vulkan.target.workgroups + 1)) for d in program.dispatches)
    with pytest.raises(DeviceError, match=r"quantize\S* for x\.q .*\(1, 1, 65536\) workgroups, .*65535: take smaller"):
        Executor(replace(program, dispatches=wide), vulkan)
