"""Prints or draws a model file, and the program it becomes on a device."""

from __future__ import annotations

import argparse
from pathlib import Path

from q8ta_wgpu.commands import output
from q8ta_wgpu.commands.arguments import device, opened, random_inputs, target_of
from q8ta_wgpu.drawings.arrange import layers
from q8ta_wgpu.drawings.cards import picture
from q8ta_wgpu.drawings.html_page import page
from q8ta_wgpu.drawings.svg import svg
from q8ta_wgpu.errors import InputError, counted, printable
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes.layout_sync.layout_report import layout_report
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.session.session import Session
from q8ta_wgpu.session.timing import Timing
from q8ta_wgpu.writing import write


def show(options: argparse.Namespace) -> None:
    """`show FILE`: prints graph, report, layouts and program for WebGPU's baseline or for an adapter."""
    if options.time and not options.draw:
        raise InputError("--time is for a drawing: add --draw OUT.html. `time FILE` prints times")
    drawn = output.target(options.draw, "--draw", (".html", ".svg")) if options.draw else None
    model = opened(options.file)
    if drawn:
        _draw(model, options, drawn)
        return
    target = target_of(options.device) or BASELINE
    graph = lower(model.graph, target)
    layouts = layout_report(graph, target)
    program = build(graph, target, layouts.optimal)
    parts = model.graph, model.report(), f"layouts\n{layouts}", f"program for {target.name}: {program}"
    print(*parts, sep="\n\n")


def _draw(model: Model, options: argparse.Namespace, file: Path) -> None:
    """`show FILE --draw OUT.html`: draws the program as a graph, with times for `--time`."""
    layers()  # a missing package is found before anything is measured
    timing = None
    if options.time:
        target, timing = _timed(model, options)
    else:
        target = target_of(options.device) or BASELINE
    graph = lower(model.graph, target)
    plan = sync_layouts(graph, target)
    program = build(graph, target, plan)
    count = counted(len(program.dispatches), "dispatch", "dispatches")
    title = f"{printable(Path(options.file).name)} on {target.name}: {count}"
    if timing is not None:
        title += f", {timing.run_ms:.3f} ms a run"
    made = picture(title, graph, plan, program, model.report(), None if timing is None else timing.medians.tolist())
    write(file, (page(made) if file.suffix == ".html" else svg(made)).encode())
    moves = f"{counted(len(plan.transitions), 'transition')}, {counted(len(plan.aliases), 'free view')}"
    print(f"{printable(str(file))}: {title}, {moves}")


def _timed(model: Model, options: argparse.Namespace) -> tuple[Target, Timing]:
    with Session(model, device(options.device)) as session:
        timing = session.time(*random_inputs(model).values())
        assert session.device is not None  # the reference has no times
        return session.device.target, timing
