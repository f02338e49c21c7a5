"""Prints the final WGSL of a value or a kernel."""

from __future__ import annotations

import argparse
from pathlib import Path

from q8ta_wgpu.commands.arguments import opened, target_of
from q8ta_wgpu.commands.example import example
from q8ta_wgpu.errors import InputError, nearest
from q8ta_wgpu.ir.layout import word_count
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program import link
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.resolve import in_order_of_reading


def wgsl(options: argparse.Namespace) -> None:
    """`wgsl FILE VALUE`: the shader of the dispatch that writes a value. `wgsl KERNEL`: that of a case which reaches
    it."""
    match options.what:
        case [file, value]:
            print(in_order_of_reading(_of_value(file, value, target_of(options.device) or BASELINE)))
        case [file] if Path(file).is_file() or Path(file).suffix in (".q8ta", ".onnx"):
            _of_value(file, None, target_of(options.device) or BASELINE)
        case [kernel]:
            print(in_order_of_reading(_of_kernel(kernel, target_of(options.device))))
        case given:
            raise InputError(f"wgsl takes a model file and a value, or a kernel's name, found {len(given)} arguments")


def _of_value(file: str, value: str | None, target: Target) -> str:
    graph = lower(opened(file).graph, target)
    program = build(graph, target, sync_layouts(graph, target))
    texts = {dispatch.value: program.shaders[dispatch.shader] for dispatch in program.dispatches}
    if value is None or value not in texts:
        what = "wgsl takes a value with a model file" if value is None else f"no dispatch of {file} writes {value!r}"
        raise InputError(
            f"{what}; dispatches on {target.name} write, among others, {', '.join(nearest(value or '', texts))}"
        )
    return texts[value]


def _of_kernel(name: str, target: Target | None) -> str:
    variant, call, target = example(name, [target] if target else [BASELINE, SOFTWARE])
    params = link.fields(variant.kernel, OPS[call.op], call, word_count(call.output.shape, variant.out))
    return link.link(variant.kernel, OPS[call.op], call, variant.reads, variant.out, params, target)
