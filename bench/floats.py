"""Times float32 kernels: products by tile, softmax and layer_norm by threads per row, whole networks by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

import q8ta_wgpu as q8
from bench.models import read
from bench.options import Options
from bench.timing import compared, load, spin
from q8ta_wgpu.ir.graph import FLOAT32, Graph
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import candidates, chosen, macs, one_node, plan_for

BATCHES = (1, 32)


def report(device: Device, title: str, graph: Graph, kernels: dict[str, Kernel], work: float, unit: str) -> None:
    """Prints the time and rate of every kernel of a graph's node, fastest first. `work` is in millions of `unit`."""
    found = compared({label: load(graph, device, plan_for(graph, kernel)) for label, kernel in kernels.items()})
    pick = chosen(graph, device)
    print(title)
    for label, us in sorted(found.items(), key=lambda item: item[1]):
        mark = "<- chosen" if kernels[label] is pick else ""
        print(f"  {label:<24} {us:>10.1f} us {work / us:>9.2f} {unit} {mark}", flush=True)


def by_tile(device: Device, title: str, graph: Graph) -> None:
    """Prints the time and rate of every kernel of a product."""
    report(device, title, graph, {k.name: k for k in candidates(graph, device)}, 2e-6 * macs(graph), "TFLOPS")


PRODUCTS: tuple[tuple[Shape, Shape], ...] = (
    ((12, 197, 64), (64, 197)),
    ((12, 197, 197), (197, 64)),
    ((3, 196, 64), (64, 196)),
    ((3, 196, 196), (196, 64)),
    ((4, 1024, 64), (64, 1024)),
)
"""Scores and weighted values of ViT-B/16 and ViT-Tiny (Dosovitskiy et al. 2020), and scores of long rows."""

CONV: tuple[tuple[int, int, int, int, int], ...] = ((64, 56, 64, 3, 1), (256, 28, 256, 3, 2), (1024, 14, 256, 1, 1))
"""Channels, size, channels out, kernel and stride of three of ResNet-50's convolutions (He et al. 2015)."""

LINEAR: tuple[tuple[int, int, int], ...] = ((197, 768, 2304), (197, 768, 768), (197, 768, 3072), (197, 3072, 768))
"""Rows, inputs and outputs of ViT-B/16's linear layers."""


def part_products(options: Options) -> None:
    """Times float32 products and convolutions with every tile and the general kernel."""
    device = options.device
    for batch in options.batches or BATCHES:
        for a, b in PRODUCTS:
            shapes = [(batch, *a), (batch, a[0], *b)]
            by_tile(device, f"matmul {shapes[0]} {shapes[1]}", one_node("matmul", shapes, {}, dtype=FLOAT32))
        for rows, depth, columns in LINEAR:
            rng = np.random.default_rng(0)
            weights = rng.normal(0, 1, (columns, depth)).astype(np.float32), np.zeros(columns, np.float32)
            graph = one_node("linear", [(batch * rows, depth)], {}, weights, dtype=FLOAT32)
            by_tile(device, f"linear {batch * rows}x{depth}x{columns}", graph)
        for channels, size, outputs, kernel, stride in CONV:
            shape = (batch, channels, size, size)
            weights = np.ones((outputs, channels, kernel, kernel), np.float32), np.zeros(outputs, np.float32)
            attrs = {"stride": (stride,) * 2, "padding": (kernel // 2,) * 4, "dilation": (1, 1), "groups": 1}
            graph = one_node("conv2d", [shape], attrs, weights, dtype=FLOAT32)
            by_tile(device, f"conv2d {shape} {kernel}x{kernel} s{stride} -> {outputs}", graph)


SHARES = ((64, 16), (64, 64), *((256, lanes) for lanes in (1, 4, 8, 16, 32, 64, 128, 256)))
"""(threads of a workgroup, threads of a row)."""


def shared_by(kernel: Kernel, graph: Graph) -> Iterator[tuple[str, Kernel]]:
    """The kernel as it is, and with each of SHARES, by title."""
    yield kernel.name, kernel
    call = graph.call(graph.nodes[0])
    own = kernel.constants(call)
    rows = kernel.threads(call, plan_for(graph, kernel).steps[0].variant.out)[0] // own["LANES"]
    for threads, lanes in SHARES:
        yield f"{kernel.name} {lanes} of {threads}", _shared(kernel, rows, {**own, "THREADS": threads, "LANES": lanes})


def _shared(kernel: Kernel, rows: int, constants: Mapping[str, int]) -> Kernel:
    return replace(
        kernel,
        constants=lambda call: constants,
        threads=lambda call, layout: (rows * constants["LANES"], 1, 1),
        workgroup=(constants["THREADS"], 1, 1),
    )


def part_rows(options: Options) -> None:
    """Times softmax and layer_norm with different numbers of threads for a workgroup and for a row."""
    device, graphs = options.device, []
    for batch in options.batches or BATCHES:
        graphs += [one_node("softmax", [(batch, 12, 197, n)], {"dim": 3}, dtype=FLOAT32) for n in (197, 196)]
        graphs += [one_node("softmax", [(batch, 1000)], {"dim": 1}, dtype=FLOAT32)]
        graphs += [one_node("softmax", [(batch, 21, 128, 128)], {"dim": 1}, dtype=FLOAT32)]
        ones = np.ones(768, np.float32)
        graphs += [one_node("layer_norm", [(batch, 197, 768)], {"eps": 1e-5}, (ones, ones), dtype=FLOAT32)]
        ones = np.ones(64, np.float32)
        graphs += [
            one_node("group_norm", [(batch, 64, 56, 56)], {"eps": 1e-5, "groups": 8}, (ones, ones), dtype=FLOAT32)
        ]
    for graph in graphs:
        kernels = dict(shared_by(chosen(graph, device), graph))
        moved = 8e-3 * graph.types["y"].numel
        report(device, f"{graph.nodes[0].op} {graph.types['y'].shape}", graph, kernels, moved, "GB/s")


NETWORKS: Mapping[str, Shape] = {
    "vit_b16": (197, 768),
    "transformer": (196, 192),
    "vit_b16.float32": (197, 768),
    "resnet50.float32": (3, 224, 224),
}
"""File stem -> input shape without the batch."""


def part_networks(options: Options) -> None:
    """Prints milliseconds of whole networks, and microseconds by kernel."""
    device, folder = options.device, options.models
    for stem in options.names or NETWORKS:
        if not any((folder / f"{stem}.q8ta{end}").exists() for end in ("", ".gz")):
            print(f"{stem}: not in {folder}")
            continue
        for batch in options.batches or BATCHES:
            shape = (batch, *NETWORKS[stem])
            x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
            with q8.Session(read(folder, stem).reshape(shape), device) as session:
                spin(session, x)
                timing = session.time(x, repeats=10, warmup=2)
            kernels: dict[str, list[float]] = {}
            for dispatch, us in zip(timing.program.dispatches, timing.medians, strict=True):
                kernels.setdefault(dispatch.kernel, []).append(float(us))
            print(f"{stem} batch {batch}: {np.median(timing.runs) / 1e3:.3f} ms, {len(timing.medians)} dispatches")
            for name, times in sorted(kernels.items(), key=lambda item: -sum(item[1])):
                print(f"  {name:<30} {len(times):>4} x {np.mean(times):>9.1f} = {sum(times):>10.1f} us", flush=True)
