"""Compares bytes of every kernel with the numpy reference, on shapes of real layers."""

from __future__ import annotations

import sys

import numpy as np

from bench.options import Options
from q8ta_wgpu.commands.check import mismatches
from q8ta_wgpu.commands.example import Sample
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model import reference
from testbed.graphs import attention, candidates, conv, linear, plan_for, product, transposed


def part_kernels(options: Options) -> None:
    """Checks that every kernel has 0 mismatches on shapes of real layers."""
    device = options.device
    shapes: dict[str, Graph] = {
        "7x7 s2 3->64": conv((1, 3, 112, 112), 64, 7, 2),
        "1x1 64->256": conv((2, 64, 28, 28), 256, 1),
        "1x1 s2 256->512": conv((1, 256, 28, 28), 512, 1, 2),
        "3x3 128->128": conv((1, 128, 28, 28), 128, 3),
        "3x3 s2 512": conv((1, 512, 14, 14), 512, 3, 2),
        "1x1 24->144": conv((1, 24, 56, 56), 144, 1),
        "1x1 add 24->144": conv((1, 24, 56, 56), 144, 1, residual=True),
        "1x1 add 576->96": conv((1, 576, 14, 14), 96, 1, residual=True),
        "3x3 add 32->32": conv((1, 32, 61, 107), 32, 3, residual=True),
        "5x5 1->32": conv((1, 1, 61, 107), 32, 5),
        "3x3 dw 96": conv((1, 96, 57, 57), 96, 3, 1, 96),
        "3x3 dw s2 144": conv((2, 144, 56, 56), 144, 3, 2, 144),
        "5x5 dw s2 40": conv((1, 40, 29, 29), 40, 5, 2, 40),
        "1x1 gemv 960->240": conv((4, 960, 1, 1), 240, 1),
        "2x2 s2 transposed 12->40": transposed((1, 12, 33, 35), 40, 2, 2, 0),
        "linear of 24": linear(197, 24, 130),
        "linear 1": linear(1, 2048, 1000),
        "linear 8": linear(8, 770, 130),
        "linear 197": linear(197, 768, 768),
        "q k of 12 heads": product((2, 12, 197, 64), (2, 12, 197, 64)),
        "weights v": product((2, 12, 197, 197), (2, 12, 64, 197)),
        "attention": attention(2, 12, 197, 64),
    }
    total = 0
    for name, graph in shapes.items():
        rng = np.random.default_rng(2)
        inputs = {n: rng.integers(-128, 128, graph.types[n].shape).astype(np.int8) for n in graph.inputs}
        expected = reference.run(graph, inputs)["y"]
        samples = (Sample(k.name, graph, plan_for(graph, k), inputs, expected) for k in candidates(graph, device))
        found = {sample.kernel: mismatches(device, device.target, sample) for sample in samples}
        total += sum(found.values())
        bad = {kernel: n for kernel, n in found.items() if n}
        print(f"{name:<20} {len(found)} kernels, values {np.unique(expected).size}, mismatches {bad or 0}")
    print(f"mismatches in all: {total}")
    if total:
        sys.exit(1)
