"""The options of `python -m bench`, passed to every part."""

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
        names: networks or cases; empty for all of a part.
        count: number of attempts of `soak` and `fuzz`.
        jobs: number of parallel processes in parts that do not measure speed.
        sets: number of calibration sets over which accuracy is averaged.
        items: number of calibration inputs for a network of the zoo; with several, also of test inputs.
        draws: number of draws of a network's weights and inputs over which a row of the zoo is averaged.
        without: rules of the quantizer that are left out.
        ablate: whether each of its rules is left out in turn.
        figures: JSON file with times of whole networks, to write or to draw from.
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
    draws: int = 1
    without: Sequence[str] = ()
    ablate: bool = False

    @functools.cached_property
    def device(self) -> Device:
        """The adapter, opened when a part first needs it."""
        return open_device(self.adapter)

    @property
    def card(self) -> str:
        """The adapter with its backend, for figures of every engine."""
        info = self.device.info
        return f"{info['device']} ({info['backend_type']})"
