"""Times a model on a GPU."""

from __future__ import annotations

import argparse
import json
from time import perf_counter
from typing import Any

from q8ta_wgpu.commands import output
from q8ta_wgpu.commands.arguments import device, inputs, opened, random_inputs
from q8ta_wgpu.errors import printable
from q8ta_wgpu.session.session import Session
from q8ta_wgpu.session.timing import Timing
from q8ta_wgpu.writing import write


def time(options: argparse.Namespace) -> None:
    """`time FILE`: prints times of opening, memory, and the GPU time of every dispatch; writes them as JSON."""
    path = output.target(options.json, "--json", (".json",)) if options.json else None
    started = perf_counter()
    model = opened(options.file)
    read = perf_counter() - started
    arrays = {**random_inputs(model), **inputs(model, options.input)}.values()  # an input may be called `repeats`
    with Session(model, device(options.device)) as session:
        called = perf_counter()
        session(*arrays)
        first = perf_counter() - called
        timing = session.time(*arrays, repeats=options.repeats)
        loaded = read + session.opening.total
        print(f"load: file {1e3 * read:.0f} ms, {session.opening} = {loaded:.2f} s; first result {first:.2f} s later")
        print(session.memory, timing, sep="\n")
    if path:
        write(path, json.dumps(figures(timing), indent=1).encode())
        print(f"{printable(str(path))}: all figures")


def figures(timing: Timing) -> dict[str, Any]:
    """Everything measured: the device, its rates, and each dispatch with its microseconds, bytes and work."""
    medians, fastest = timing.medians, timing.samples.min(axis=0)
    return {
        "device": timing.device,
        "repeats": len(timing.runs),
        "run_ms": timing.run_ms,
        "one_by_one_ms": timing.total_ms,
        "dot_gops": timing.dot_rate,
        "copy_gbs": timing.copy_rate,
        "dispatches": [
            {
                "kernel": d.kernel,
                "value": d.value,
                "stages": d.stages,
                "source": d.source,
                "layouts": list(d.layouts),
                "workgroups": list(d.grid),
                "us": float(us),
                "least_us": float(least),
                "bytes": int(d.moved),
                "multiply_accumulates": int(d.macs),
                "on_matrix_units": timing.program.on_matrix_units(d),
            }
            for d, us, least in zip(timing.program.dispatches, medians, fastest, strict=True)
        ],
    }
