"""Measures the float32 kernels around attention on one adapter: `python -m bench.gpu_float [PART...]`.

Parts: products (matmul and linear by tile), rows (softmax and layer_norm by threads of a workgroup and of a row),
networks (those of a folder of bench/save_models.py, by kernel). Kernels of one shape are timed in turns, as in
bench/gpu_conv.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.gpu import Shape, candidates, chosen, microseconds, plan_for
from bench.gpu_conv import in_turns
from bench.gpu_networks import SPIN_UP, read
from q8ta_wgpu.ir.graph import Array, Graph, Node, TensorType
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.runtime.device import Device, open_device

BATCHES = (1, 32)


def float_graph(op: str, shapes: Sequence[Shape], attrs: dict[str, Any], constants: Sequence[Array] = ()) -> Graph:
    """A graph of one float node: activations x0, x1, ... of `shapes`, constants after the first."""
    graph = Graph()
    for i, shape in enumerate(shapes):
        graph.types[f"x{i}"] = TensorType(shape)
        graph.inputs.append(f"x{i}")
    stored = [graph.add_constant(f"c{i}", c) for i, c in enumerate(constants)]
    inputs = (graph.inputs[0], *stored, *graph.inputs[1:])
    shape, dtype = OPS[op].check(tuple(graph.types[n] for n in inputs), attrs)
    graph.types["y"] = TensorType(shape, dtype)
    graph.nodes.append(Node(op, inputs, "y", attrs))
    graph.outputs.append("y")
    return graph


def report(device: Device, title: str, graph: Graph, kernels: dict[str, Kernel], work: float, unit: str) -> None:
    """Prints every kernel of a graph's node, fastest first; `work` is in millions of `unit` a second."""
    microseconds(device, graph, plan_for(graph, chosen(graph, device)), SPIN_UP)  # clocks up
    found = in_turns(device, {label: (graph, plan_for(graph, kernel)) for label, kernel in kernels.items()})
    pick = chosen(graph, device)
    print(title)
    for label, us in sorted(found.items(), key=lambda item: item[1]):
        mark = "<- chosen" if kernels[label] is pick else ""
        print(f"  {label:<24} {us:>10.1f} us {work / us:>9.2f} {unit} {mark}", flush=True)


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


def part_products(device: Device, batches: Sequence[int]) -> None:
    """Float products and convolutions by every tile and by the general kernel."""
    for batch in batches:
        for a, b in PRODUCTS:
            shapes = [(batch, *a), (batch, a[0], *b)]
            graph = float_graph("matmul", shapes, {})
            flops = 2e-6 * graph.types["y"].numel * b[0]
            kernels = {k.name: k for k in candidates(graph, device)}
            report(device, f"matmul {shapes[0]} {shapes[1]}", graph, kernels, flops, "TFLOPS")
        for rows, depth, columns in LINEAR:
            rng = np.random.default_rng(0)
            weights = rng.normal(0, 1, (columns, depth)).astype(np.float32), np.zeros(columns, np.float32)
            graph = float_graph("linear", [(batch * rows, depth)], {}, weights)
            kernels = {k.name: k for k in candidates(graph, device)}
            flops = 2e-6 * graph.types["y"].numel * depth
            report(device, f"linear {batch * rows}x{depth}x{columns}", graph, kernels, flops, "TFLOPS")
        for channels, size, outputs, kernel, stride in CONV:
            shape = (batch, channels, size, size)
            weights = np.ones((outputs, channels, kernel, kernel), np.float32), np.zeros(outputs, np.float32)
            attrs = {"stride": (stride,) * 2, "padding": (kernel // 2,) * 4, "dilation": (1, 1), "groups": 1}
            graph = float_graph("conv2d", [shape], attrs, weights)
            kernels = {k.name: k for k in candidates(graph, device)}
            flops = 2e-6 * graph.types["y"].numel * channels * kernel * kernel
            report(device, f"conv2d {shape} {kernel}x{kernel} s{stride} -> {outputs}", graph, kernels, flops, "TFLOPS")


SHARES = ((64, 16), (64, 64), *((256, lanes) for lanes in (1, 4, 8, 16, 32, 64, 128, 256)))
"""Threads of a workgroup, and of a row."""


def shared_by(kernel: Kernel, graph: Graph) -> Iterator[tuple[str, Kernel]]:
    """The kernel as it is, and with every other sharing of a row."""
    yield kernel.name, kernel
    call = graph.call(graph.nodes[0])
    own = kernel.constants(call)
    rows = kernel.threads(call, plan_for(graph, kernel).steps[0].out)[0] // own["LANES"]
    for threads, lanes in SHARES:
        yield f"{kernel.name} {lanes} of {threads}", _shared(kernel, rows, {**own, "THREADS": threads, "LANES": lanes})


def _shared(kernel: Kernel, rows: int, constants: Mapping[str, int]) -> Kernel:
    return replace(
        kernel,
        constants=lambda call: constants,
        threads=lambda call, layout: (rows * constants["LANES"], 1, 1),
        workgroup=(constants["THREADS"], 1, 1),
    )


def part_rows(device: Device, batches: Sequence[int]) -> None:
    """softmax and layer_norm, by the threads of a workgroup and of a row."""
    graphs = []
    for batch in batches:
        graphs += [float_graph("softmax", [(batch, 12, 197, n)], {"dim": 3}) for n in (197, 196)]
        graphs += [float_graph("softmax", [(batch, 1000)], {"dim": 1})]
        graphs += [float_graph("softmax", [(batch, 21, 128, 128)], {"dim": 1})]
        ones = np.ones(768, np.float32)
        graphs += [float_graph("layer_norm", [(batch, 197, 768)], {"eps": 1e-5}, (ones, ones))]
        ones = np.ones(64, np.float32)
        graphs += [float_graph("group_norm", [(batch, 64, 56, 56)], {"eps": 1e-5, "groups": 8}, (ones, ones))]
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


def part_networks(device: Device, batches: Sequence[int], folder: Path, names: Sequence[str]) -> None:
    """Whole networks: milliseconds, and microseconds by kernel."""
    for stem in names:
        if not any((folder / f"{stem}.q8ta{end}").exists() for end in ("", ".gz")):
            print(f"{stem}: not in {folder}")
            continue
        for batch in batches:
            shape = (batch, *NETWORKS[stem])
            x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
            with q8.Session(read(folder, stem).reshape(shape), device) as session:
                start = time.perf_counter()
                while time.perf_counter() - start < SPIN_UP:
                    session(x)
                timing = session.time(x, repeats=10, warmup=2)
            kernels: dict[str, list[float]] = {}
            for dispatch, us in zip(timing.program.dispatches, timing.medians, strict=True):
                kernels.setdefault(dispatch.kernel, []).append(float(us))
            print(f"{stem} batch {batch}: {np.median(timing.runs) / 1e3:.3f} ms, {len(timing.medians)} dispatches")
            for name, times in sorted(kernels.items(), key=lambda item: -sum(item[1])):
                print(f"  {name:<30} {len(times):>4} x {np.mean(times):>9.1f} = {sum(times):>10.1f} us", flush=True)


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("products", "rows", "networks")
    parser.add_argument("parts", nargs="*", default=list(parts))
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of .q8ta files")
    parser.add_argument("--device", help="part of an adapter's name")
    parser.add_argument("--batch", type=int, nargs="*", default=list(BATCHES), help="batch sizes")
    parser.add_argument("--names", nargs="*", default=list(NETWORKS), choices=NETWORKS, help="networks")
    args = parser.parse_args()
    if unknown := set(args.parts) - set(parts):
        parser.error(f"unknown parts {sorted(unknown)}, there are {', '.join(parts)}")
    device = open_device(args.device)
    print(device.name)
    for part in args.parts:
        if part == "products":
            part_products(device, args.batch)
        elif part == "rows":
            part_rows(device, args.batch)
        else:
            part_networks(device, args.batch, args.models, args.names)


if __name__ == "__main__":
    main()
