"""Device memory of a program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Device memory of a program, in bytes.

    Attributes:
        slots: size of each slot. A slot is a buffer that activations share if they live at different times.
        constants: weights and tables, packed for the chosen kernels. Programs on a device share equal ones.
        uniforms: parameters of the dispatches.
        staging: buffers that large inputs are written to and outputs are read from, one of each for each run in flight,
            at their maximum so far.

    Not counted: the driver's own memory and pipelines.
    """

    slots: tuple[int, ...]
    constants: int
    uniforms: int
    staging: int

    @property
    def peak(self) -> int:
        """Bytes held at once."""
        return sum(self.slots) + self.constants + self.uniforms + self.staging

    def __str__(self) -> str:
        return (
            f"memory: {_size(self.peak)} at most = slots {_size(sum(self.slots))}, constants "
            f"{_size(self.constants)}, uniforms {_size(self.uniforms)}, staging {_size(self.staging)}"
        )


def _size(size: int) -> str:
    return f"{size / 2**20:.2f} MiB" if size >= 1 << 17 else f"{size / 2**10:.1f} KiB"
