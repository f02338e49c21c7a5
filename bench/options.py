"""What every part of `python -m bench` is given."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device


@dataclass(frozen=True)
class Options:
    """The command line.

    Attributes:
        adapter: part of an adapter's name; None for the best.
        models: folder of .q8ta files, written by `python -m bench save`.
        batches: batch sizes; empty for each part's own.
        names: networks or cases; empty for all of a part's.
        count: how often what lasts or breaks is tried.
        jobs: how many processes run side by side, where speed is not what is measured.
        sets: of calibration data, over which accuracy is averaged.
        items: inputs that a network of the zoo is calibrated with and, where these are several, judged by.
        figures: JSON file that whole networks' times are written to, or drawn from.
    """

    adapter: str | None = None
    models: Path = Path("models")
    batches: Sequence[int] = ()
    names: Sequence[str] = ()
    figures: Path = Path("out/networks.json")
    count: int = 10_000
    jobs: int = 1
    sets: int = 5
    items: int = 1

    @functools.cached_property
    def device(self) -> Device:
        """The adapter, opened when a part first needs it."""
        return open_device(self.adapter)
