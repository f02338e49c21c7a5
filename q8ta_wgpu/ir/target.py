"""Limits and behaviour of a device, as far as planning and linking depend on them. No wgpu here."""

from __future__ import annotations

from dataclasses import dataclass

LOOP_TURNS = (1 << 16) - (1 << 10)
"""Most turns of all loops of a thread together, on any device: the limit of `Kernel.turns`.

Mesa's software adapters (llvmpipe, lavapipe) count the turns of a vector of eight threads in one counter that starts at
65,535 (LP_MAX_TGSI_LOOP_ITERATIONS in src/gallium/auxiliary/gallivm). When it is used up, loops silently end after
their first turn. Measured with Mesa 22.3 on Vulkan and OpenGL: a loop takes one turn more to end, each time it is
entered. Loops in sequence, nested and in functions share the counter, so nesting gains nothing. Of diverging threads
the longest way counts, of a branch both ways. Loops of up to 32 fixed turns are unrolled and do not count. The rest of
the 65,535 is for other fixed loops and for the ends of a few.
"""


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
    """Limits of a device, and the behaviour that decides which kernel is fastest.

    The defaults are WebGPU's baseline, on a GPU. A target never changes what a network computes, only how fast.

    Attributes:
        name: adapter name, for messages.
        storage_buffers: storage buffers of a shader stage.
        invocations: threads of a workgroup.
        workgroup_memory: bytes of workgroup memory.
        workgroups: workgroups along a grid dimension.
        binding_size: bytes of one storage binding.
        uniform_alignment: uniform buffer offsets are multiples of these bytes.
        loop_turns: turns of the loops of a thread together.
        packed_dot: whether dot4I8Packed is linked. On a GPU it must be clearly faster than its emulation: a driver that
            has no such instruction emulates it in a form that fills the registers (kernels/lib/thresholds.py).
        fast_dot: whether a dot product is clearly faster than its four products, so that it pays to assemble words for
            it. On an H200 it is one instruction and 6 times as fast; on lavapipe both forms reach 57 GOP/s.
        shares_memory: whether threads gain from what others of their workgroup load, as matrix products on an H200 do.
            Software runs a workgroup as one thread: barriers are slow there, and products are faster in registers.
        few_cores: whether a few workgroups fill the device. Tiles are then as large as possible, and loading something
            again is faster than a dispatch that prepares it.
        unroll: whether loops are unrolled. Otherwise Mesa's compiler for CPUs keeps local arrays in memory.
        copies_windows: whether convolutions copy their windows for a 1x1 product where nothing was measured, as
            ExecuTorch's Vulkan backend has them do on phones (passes/use_im2col.py).
        prologues: whether convolutions compute what they read while they load it, where that is expected to pay
            (passes/fold_moves.py, fold_producers.py). Tuning times a network with and without.
        shuffles: whether eight threads of a workgroup are a subgroup, and exchange values faster than each loads them.
        matrix_units: the device's int8 matrix units that were found to compute right.
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
    copies_windows: bool = False
    prologues: bool = True
    shuffles: bool = False
    matrix_units: tuple[MatrixUnit, ...] = ()


BASELINE = Target()
SOFTWARE = Target("software", fast_dot=False, shares_memory=False, few_cores=True, unroll=True)
"""The baseline on a software adapter, which runs on the CPU."""
