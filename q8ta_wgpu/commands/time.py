"""Times a model on a GPU."""

from __future__ import annotations

import argparse
from time import perf_counter

from q8ta_wgpu.commands import output
from q8ta_wgpu.commands.arguments import device, inputs, opened, random_inputs
from q8ta_wgpu.drawings.times import as_json, as_trace
from q8ta_wgpu.errors import printable
from q8ta_wgpu.session.session import Session
from q8ta_wgpu.writing import write


def time(options: argparse.Namespace) -> None:
    """`time FILE`: prints times of opening, memory, and the GPU time of every dispatch; writes JSON, and a
    trace."""
    texts = [
        (output.target(given, option, (".json",)), made, what)
        for given, option, made, what in (
            (options.json, "--json", as_json, "all figures"),
            (options.trace, "--trace", as_trace, "a trace: open it at https://ui.perfetto.dev"),
        )
        if given
    ]
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
    for path, made, what in texts:
        write(path, made(timing).encode())
        print(f"{printable(str(path))}: {what}")
