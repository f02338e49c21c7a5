"""Measures kernels for a model, or forgets measured times."""

from __future__ import annotations

import argparse

import numpy as np

from q8ta_wgpu.commands import arguments
from q8ta_wgpu.commands.arguments import opened
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.session.session import Session


def tune(options: argparse.Namespace) -> None:
    """`tune FILE`: measures kernels and prints the gain. `tune --clear`: forgets measured times."""
    if options.file is None and not options.clear:
        raise InputError("tune takes a FILE, or --clear to forget what was measured")
    if options.clear:
        _clear(options.device)
    if options.file is None:
        return
    model = opened(options.file)
    device, rounds, arrays = arguments.device(options.device), 3, arguments.random_inputs(model).values()
    print("measuring kernels, which may take minutes; what was measured is kept, also if this is stopped", flush=True)
    with (
        Session(model, device, options.layouts, tune=True) as tuned,
        Session(model, device, options.layouts, tune=False) as untuned,
    ):
        print(tuned.tuning)
        pairs = [[s.time(*arrays, repeats=5, warmup=2).runs for s in (untuned, tuned)] for _ in range(rounds)]
        before, after = (float(np.median(np.concatenate(runs))) / 1e3 for runs in zip(*pairs, strict=True))
        print(
            f"measured: {before:.3f} ms GPU time a run by the rules, {after:.3f} ms tuned, {before / after:.3f} times"
        )


def _clear(device: str | None) -> None:
    from q8ta_wgpu.runtime.adapters import open_device
    from q8ta_wgpu.runtime.findings import PROBE, Findings
    from q8ta_wgpu.tuning.tuner import times_of

    opened = open_device(arguments.device(device))
    try:
        removed = [times_of(opened.info).clear(), Findings.of(PROBE, opened.info).clear()]
    except OSError as error:
        raise InputError(f"cannot remove {error.filename}: {error.strerror or error}") from error
    print(f"removed what was kept for {opened.name}" if any(removed) else f"nothing was kept for {opened.name}")
