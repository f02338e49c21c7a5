"""Devices with what was measured on them: arithmetic, rates, matrix units, and the resulting target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, MatrixUnit, Target
from q8ta_wgpu.runtime import probe, rates
from q8ta_wgpu.runtime.pipelines import OpenDevice

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

    Raises DeviceError if the device offers less than WebGPU's baseline, as some OpenGL drivers do, or fails while its
    dot products are measured.

    Attributes, beyond those of OpenDevice:
        target: the target for which programs are built.
        unit_faults: matrix units that are not used, with the reason: wrong results, or kernels that do not compile.
    """

    def __init__(self, wgpu_device: Any) -> None:
        super().__init__(wgpu_device)
        for name, limit in _LIMITS.items():
            if (found := wgpu_device.limits[limit]) < (needed := getattr(BASELINE, name)):
                raise DeviceError(f"{self.name} offers {limit} {found}, every program needs {needed}")
        self.unit_faults: dict[MatrixUnit, str] = {}
        self.target = self._target()

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
    def unit_rate(self) -> float:
        """Measured rate of the target's fastest matrix unit, in 10^9 operations (2 for each multiply-accumulate) per
        second; 0 without one."""
        units = self.target.matrix_units
        return float(self._once("unit_rate", lambda: max((rates.unit_rate(self, u) for u in units), default=0.0)))

    @property
    def copy_rate(self) -> float:
        """Measured copy bandwidth, in 10^9 bytes read and written per second, of buffers larger than most caches."""
        return float(self._once("copy_rate", lambda: rates.copy_rate(self)))

    def _target(self) -> Target:
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
        packed, emulated = self.dot_rates.packed, self.dot_rates.emulated
        return replace(
            found,
            packed_dot=emulated < 1.25 * packed,
            fast_dot=packed > 1.25 * emulated,
            copies_windows=any(family in self.name for family in PHONES),
            matrix_units=self._units(found),
        )

    def _units(self, target: Target) -> tuple[MatrixUnit, ...]:
        """The adapter's matrix units that compute the reference's results. The others become `unit_faults`."""
        usable = []
        for unit in self.engine.matrix_units(self.wgpu.adapter):
            if fault := probe.wrong_unit(self, target, unit):
                self.unit_faults[unit] = fault
            else:
                usable.append(unit)
        return tuple(usable)
