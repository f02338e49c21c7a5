"""Devices with what was measured on them: arithmetic, rates, matrix units, and the resulting target."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, MatrixUnit, Target
from q8ta_wgpu.program import known_results
from q8ta_wgpu.program.known_results import Tile, Trial
from q8ta_wgpu.runtime import probe, rates
from q8ta_wgpu.runtime.pipelines import Compiling, OpenDevice

_LIMITS = {
    "storage_buffers": "max-storage-buffers-per-shader-stage",
    "invocations": "max-compute-invocations-per-workgroup",
    "workgroup_memory": "max-compute-workgroup-storage-size",
    "workgroups": "max-compute-workgroups-per-dimension",
}
"""A target's limits by WebGPU's names. Every program needs those of BASELINE."""

PHONES = ("Adreno", "Mali")
"""Parts of adapters' names. On these, ExecuTorch's rule for im2col was measured (pull request #17568)."""


class Device(OpenDevice):
    """An open device with its pipelines and measured rates. Sessions and threads may share it.

    Raises DeviceError if the device offers less than WebGPU's baseline, as some OpenGL drivers do.

    Attributes, beyond those of OpenDevice:
        unit_faults: matrix units that are not used, with the reason: wrong results, or kernels that do not compile.
    """

    def __init__(self, wgpu_device: Any) -> None:
        super().__init__(wgpu_device)
        for name, limit in _LIMITS.items():
            if (found := wgpu_device.limits[limit]) < (needed := getattr(BASELINE, name)):
                raise DeviceError(f"{self.name} offers {limit} {found}, every program needs {needed}")
        self.unit_faults: dict[MatrixUnit, str] = {}
        self._right: set[Tile] = set()

    @functools.cached_property
    def target(self) -> Target:
        """The target for which programs are built, without matrix units that computed wrong products. Raises
        DeviceError if the device fails while its dot products are measured."""
        found: Target = self._once("target", self._measured_target)
        return found

    @property
    def contract(self) -> str:
        """How the device breaks the arithmetic contract of the int8 operators; empty if it does not."""
        return str(self._once("contract", lambda: probe.contract(self)))

    @property
    def loop_turns(self) -> int:
        """The number of turns after which the device ends a thread's loops; at most `target.loop_turns` is tried."""
        return int(self._once("loop_turns", lambda: probe.loop_turns(self, self.target.loop_turns)))

    def check_loops(self) -> None:
        """Raises DeviceError if the device ends loops earlier than kernels may need."""
        if self.loop_turns < (needed := self.target.loop_turns):
            raise DeviceError(
                f"{self.name} ends the loops of a thread after {self.loop_turns} turns, where kernels rely on "
                f"{needed}. Use another backend or device='reference'"
            )

    @property
    def dot_rates(self) -> rates.DotRates:
        """Measured speed of dot4I8Packed and of its emulation."""
        found: rates.DotRates = self._once("dot_rates", lambda: rates.dot_rates(self))
        return found

    @property
    def copy_rate(self) -> float:
        """Measured copy bandwidth, in 10^9 bytes read and written per second, of buffers larger than most caches."""
        return float(self._once("copy_rate", lambda: rates.copy_rate(self)))

    def _measured_target(self) -> Target:
        """The device's limits and behaviour. On GPUs, packed dot products and their emulation are measured.

        One counts as faster only if it is so by a quarter: smaller differences may be noise.
        """
        limits = self.wgpu.limits
        found = replace(
            SOFTWARE if self.software else BASELINE,
            name=self.name,
            **{name: limits[limit] for name, limit in _LIMITS.items()},
            binding_size=self.binding_size,
            uniform_alignment=max(limits["min-uniform-buffer-offset-alignment"], 16),
        )
        if self.software:
            # SwiftShader's compiler takes gigabytes and minutes for unrolled loops.
            llvmpipe = "llvmpipe" in self.name
            return replace(found, unroll=llvmpipe, shuffles=llvmpipe and probe.shuffles(self))
        fast = self.dot_rates.packed > 1.25 * self.dot_rates.emulated
        return replace(
            found,
            packed_dot=fast,
            fast_dot=fast,
            copies_windows=any(family in self.name for family in PHONES),
            matrix_units=self.engine.matrix_units(self.wgpu.adapter),
        )

    def unit_trials(self, tiles: Collection[Tile], compiling: Compiling) -> Sequence[Trial]:
        """What matrix units must compute before kernels with these tiles are first used: a trial of each tile that was
        not tried yet. Their pipelines are begun."""
        new = set(tiles) - self._right
        trials = list(known_results.unit_trials(self.target, new)) if new else []
        for each in trials:
            if not probe.passed(self, each):
                compiling.start(*each.shader)
        return trials

    def judge(self, trials: Sequence[Trial], compiling: Compiling) -> None:
        """Compares what matrix units compute with what trials expect. A unit with another result becomes one of
        `unit_faults`, and `target` is replaced by one without it."""
        faults = {
            each.unit: fault
            for each in trials
            if not probe.passed(self, each) and (fault := probe.fault(self, each, compiling))
        }
        with self.lock:
            self.unit_faults = {**self.unit_faults, **faults}
            self._right.update(each.tile for each in trials if each.unit not in self.unit_faults)
            units = tuple(unit for unit in self.target.matrix_units if unit not in self.unit_faults)
            if units != self.target.matrix_units:
                self.target = replace(self.target, matrix_units=units)

    def try_units(self) -> None:
        """Tries every kernel for matrix units."""
        with self.compiling() as compiling:
            trials = list(known_results.unit_trials(self.target))
            for each in trials:
                compiling.start(*each.shader)
            self.judge(trials, compiling)
