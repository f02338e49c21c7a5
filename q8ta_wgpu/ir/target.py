"""What a kernel may rely on and how a device behaves: limits as numbers, behaviour as answers. No wgpu here."""

from __future__ import annotations

from dataclasses import dataclass

LOOP_TURNS = (1 << 16) - (1 << 10)
"""Turns that all loops of a thread may take together, on any device: `Kernel.turns`.

Mesa's software adapters (llvmpipe, lavapipe) count the turns of a vector of eight threads in one counter that starts at
65,535 (LP_MAX_TGSI_LOOP_ITERATIONS in src/gallium/auxiliary/gallivm). Once that is used up, loops end after their first
turn, silently. Measured with Mesa 22.3, Vulkan and OpenGL alike: a loop takes one turn more to end, each time it is
entered; loops in sequence, nested and in functions share the counter, so that nesting gains nothing; of threads that
diverge the longest way counts, of a branch both ways do; loops of up to 32 fixed turns are written out and do not
count. What is left of the 65,535 is for other fixed loops and for the ends of a few."""


@dataclass(frozen=True)
class MatrixUnit:
    """A product that the subgroups of a device compute at once: (m, k) int8 times (k, n) int8, added to (m, n) int32.

    Attributes:
        m, n, k: its extents.
        lanes: threads of the subgroup.
    """

    m: int
    n: int
    k: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Target:
    """Limits a program is scheduled for, and how the device behaves where that decides which kernel is fastest.

    The defaults are WebGPU's baseline, on a GPU. What a network computes never depends on a target, only how fast.

    Attributes:
        name: adapter name, for messages.
        storage_buffers: storage buffers a shader stage may bind.
        invocations: threads a workgroup may have.
        workgroup_memory: bytes of workgroup memory.
        workgroups: workgroups a grid dimension may have.
        binding_size: bytes one storage binding may cover.
        uniform_alignment: bytes a uniform buffer offset is a multiple of.
        loop_turns: turns the loops of a thread may take together.
        packed_dot: whether dot4I8Packed is at least as fast as its emulation, so that it is what is linked.
        fast_dot: whether a dot product is clearly faster than its four products, so that it pays to put words together
            for its sake. One instruction on an H200, 6 times as fast; on lavapipe both forms reach 57 GOP/s.
        shares_memory: whether threads gain from what others of their workgroup load, as matrix products on an H200 do.
            Software runs a workgroup as one thread: barriers cost it much, and products are faster in registers.
        few_cores: whether a few workgroups fill the device. Tiles then are as large as they may be, and loading
            something again is faster than a dispatch that prepares it.
        unroll: whether loops are written out. Mesa's compiler for CPUs keeps local arrays in memory otherwise.
        matrix_units: what the device's int8 matrix units compute, where they were found to compute it right.
    """

    name: str = "baseline"
    storage_buffers: int = 8
    invocations: int = 256
    workgroup_memory: int = 16384
    workgroups: int = 65535
    binding_size: int = 128 << 20
    uniform_alignment: int = 256
    loop_turns: int = LOOP_TURNS
    packed_dot: bool = True
    fast_dot: bool = True
    shares_memory: bool = True
    few_cores: bool = False
    unroll: bool = False
    matrix_units: tuple[MatrixUnit, ...] = ()


BASELINE = Target()
SOFTWARE = Target("software", fast_dot=False, shares_memory=False, few_cores=True, unroll=True)
"""The baseline on an adapter that is software on the CPU."""
