"""Prints what is in a model file, and what becomes of it on a device."""

from __future__ import annotations

import argparse

from q8ta_wgpu.commands.given import target_of
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model.model import load
from q8ta_wgpu.passes.layout_sync.report import layout_report
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build


def show(options: argparse.Namespace) -> None:
    """`show FILE`: the graph, the report, layouts and program for WebGPU's baseline or for an adapter."""
    model = load(options.file)
    target = target_of(options.device) or BASELINE
    graph = lower(model.graph, target)
    layouts = layout_report(graph, target)
    program = build(graph, target, layouts.optimal)
    parts = model.graph, model.report(), f"layouts\n{layouts}", f"program for {target.name}: {program}"
    print(*parts, sep="\n\n")
