"""What a kernel may rely on: the adapter's limits and features, as numbers. No wgpu here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """Limits and features a program is scheduled for; the defaults are WebGPU's baseline.

    Attributes:
        name: adapter name, for messages.
        storage_buffers: storage buffers a shader stage may bind.
        invocations: threads a workgroup may have.
        workgroup_memory: bytes of workgroup memory.
        workgroups: workgroups a grid dimension may have.
        binding_size: bytes one storage binding may cover.
        uniform_alignment: bytes a uniform buffer offset is a multiple of.
        packed_dot: whether dot4I8Packed is at least as fast as its emulation.
        cpu: whether the adapter is software on the CPU.
    """

    name: str = "baseline"
    storage_buffers: int = 8
    invocations: int = 256
    workgroup_memory: int = 16384
    workgroups: int = 65535
    binding_size: int = 128 << 20
    uniform_alignment: int = 256
    packed_dot: bool = True
    cpu: bool = False


BASELINE = Target()
