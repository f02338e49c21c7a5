"""Measures kernels and whole networks on one GPU, in one run: `python -m bench.gpu [PART...] [--models FOLDER]`.

Parts: check, gemm, resnet50, memory, networks, torch (default: all but torch). Needs this library, wgpu, numpy and
safetensors; `networks` needs files of bench/save_models.py, `torch` needs PyTorch with CUDA and torchvision. GPU times
are medians by timestamp queries after a warm-up; rates of one run are compared with each other, never with another's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.gpu_networks import SPIN_UP, Results, part_networks, part_torch
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.layout import Layout, pack, unpack, word_count
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.plan import Plan, Step
from q8ta_wgpu.passes.layout_sync.table import allowed, input_layouts, usable_kernels
from q8ta_wgpu.program.build import schedule
from q8ta_wgpu.runtime.device import Device, open_device
from q8ta_wgpu.runtime.executor import Executor

Shape = tuple[int, ...]
REPEATS, WARM_UP = 9, 0.03
"""Samples of a time; seconds of work before a kernel is timed."""


def op_graph(
    op: str, shapes: Sequence[Shape], attrs: dict[str, Any], constants: Sequence[Array] = (), floats: bool = False
) -> Graph:
    """A graph of one int8 node: activations x0, x1, ... of `shapes`, constants after the first."""
    graph = Graph()
    names = []
    for i, shape in enumerate(shapes):
        graph.types[f"x{i}"] = TensorType(shape, INT8X4, QParams(0.02, -3 + i))
        graph.inputs.append(f"x{i}")
        names.append(f"x{i}")
    stored = [graph.add_constant(f"c{i}", c) for i, c in enumerate(constants)]
    inputs = (names[0], *stored, *names[1:])
    shape, dtype = OPS[op].check(tuple(graph.types[n] for n in inputs), attrs)
    graph.types["y"] = TensorType(shape, dtype, None if floats else QParams(0.04, 5))
    graph.nodes.append(Node(op, inputs, "y", attrs))
    graph.outputs.append("y")
    return graph


def weights(shape: Shape, zero: int = -3) -> tuple[Array, ...]:
    """Random int8 weights of `shape` and their epilogue's numbers, for results that fill the int8 range."""
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, shape, dtype=np.int8)
    channels, depth = shape[0], int(np.prod(shape[1:]))
    multiplier = rng.uniform(0.5, 1.5, channels).astype(np.float32) * np.float32(2**14 * 60 / (73 * 73 * depth**0.5))
    offset = rng.integers(-(2**19), 2**19, channels).astype(np.int32)
    correction = (zero * w.reshape(channels, -1).sum(1, dtype=np.int64)).astype(np.int32)
    return w, multiplier, offset, correction


def conv(x: Shape, channels: int, kernel: int, stride: int = 1, groups: int = 1, residual: bool = False) -> Graph:
    """A q8ta_conv2d with padding kernel // 2, or a q8ta_conv2d_add."""
    attrs: dict[str, Any] = {
        "stride": (stride, stride),
        "padding": (kernel // 2,) * 4,
        "dilation": (1, 1),
        "groups": groups,
        "lo": -128,
        "hi": 127,
    }
    shapes = [x]
    if residual:
        attrs["residual_multiplier"] = 9000
        shapes.append((x[0], channels, -(-x[2] // stride), -(-x[3] // stride)))
    stored = weights((channels, x[1] // groups, kernel, kernel))
    return op_graph("q8ta_conv2d_add" if residual else "q8ta_conv2d", shapes, attrs, stored)


def linear(m: int, k: int, n: int) -> Graph:
    """A q8ta_linear."""
    return op_graph("q8ta_linear", [(m, k)], {"lo": -128, "hi": 127}, weights((n, k)))


def plan_for(graph: Graph, kernel: Kernel, layout: Layout | None = None) -> Plan:
    """One node run by `kernel`, in `layout` where that is allowed, else in the kernel's first layouts."""
    node = graph.nodes[0]
    op, call = OPS[node.op], graph.call(node)
    picked = [layout if layout in o else o[0] if o else None for o in input_layouts(kernel, op, call)]
    outs = allowed(kernel.output, call.output.dtype)
    out = layout if layout is not None and layout in outs else outs[0]
    placed = {name: chosen for name, chosen in zip(node.inputs, picked, strict=True) if chosen is not None}
    return Plan((Step(node, call, kernel, tuple(picked), out),), {**placed, node.output: out})


def candidates(graph: Graph, device: Device) -> Iterator[Kernel]:
    """Every kernel that can run the graph's node."""
    node = graph.nodes[0]
    call = graph.call(node)
    return (kernel for kernel in OPS[node.op].kernels if kernel.supports(call, device.target))


def chosen(graph: Graph, device: Device) -> Kernel:
    """The kernel that is used for the graph's node."""
    node = graph.nodes[0]
    return usable_kernels(OPS[node.op], graph.call(node), device.target, node.output)[0]


def random_words(graph: Graph, plan: Plan) -> list[Array]:
    """Random bytes for every input."""
    rng = np.random.default_rng(1)
    words = []
    for name in graph.inputs:
        t, layout = graph.types[name], plan.layouts[name]
        words.append(
            rng.integers(0, 1 << 32, word_count(t.shape, layout), dtype=np.uint32)
            if layout.is_int8
            else rng.normal(0, 1, t.shape).astype(np.float32)
        )
    return words


def microseconds(device: Device, graph: Graph, plan: Plan, warm: float = WARM_UP) -> float:
    """Median GPU time of one run of a graph under a plan, with clocks up: see `settled`."""
    executor = Executor(schedule(graph, device.target, plan), device)
    try:
        return settled(executor, random_words(graph, plan), warm)
    finally:
        executor.close()


def settled(executor: Executor, words: list[Array], warm: float = WARM_UP) -> float:
    """Median microseconds of a run after `warm` seconds of work; each sample takes about a millisecond.

    Clocks fall while the host packs the next kernel's weights, and come back only under load.
    """
    once = float(executor.time_runs(words, 2)[-1])
    runs = int(np.clip(1000 / max(once, 1.0), 1, 100))
    start = time.perf_counter()
    while time.perf_counter() - start < warm:
        executor.time_runs(words, 3, runs)
    return float(np.median(executor.time_runs(words, REPEATS, runs)))


def mismatches(device: Device, graph: Graph, kernel: Kernel, expected: Array, inputs: dict[str, Array]) -> int:
    """Elements of a kernel's result that differ from the reference."""
    program = schedule(graph, device.target, plan_for(graph, kernel))
    executor = Executor(program, device)
    try:
        layouts = {
            port.name: next(layout for layout in Layout if layout.short == port.layout) for port in program.inputs
        }
        executor.poison(0x8F7F80FF)
        (words,) = executor.run([pack(inputs[port.name], layouts[port.name]) for port in program.inputs])
        port = program.outputs[0]
        out = next(layout for layout in Layout if layout.short == port.layout)
        found = unpack(words, port.shape, out) if out.is_int8 else words.reshape(port.shape)
        return int((found != expected).sum())
    finally:
        executor.close()


def part_check(device: Device) -> None:
    """0 mismatches for every kernel on real layer shapes."""
    shapes: dict[str, Graph] = {
        "7x7 s2 3->64": conv((1, 3, 112, 112), 64, 7, 2),
        "1x1 64->256": conv((2, 64, 28, 28), 256, 1),
        "1x1 s2 256->512": conv((1, 256, 28, 28), 512, 1, 2),
        "3x3 128->128": conv((1, 128, 28, 28), 128, 3),
        "3x3 s2 512": conv((1, 512, 14, 14), 512, 3, 2),
        "1x1 24->144": conv((1, 24, 56, 56), 144, 1),
        "1x1 add 576->96": conv((1, 576, 14, 14), 96, 1, residual=True),
        "3x3 add 32->32": conv((1, 32, 61, 107), 32, 3, residual=True),
        "5x5 1->32": conv((1, 1, 61, 107), 32, 5),
        "3x3 dw 96": conv((1, 96, 57, 57), 96, 3, 1, 96),
        "3x3 dw s2 144": conv((2, 144, 56, 56), 144, 3, 2, 144),
        "5x5 dw s2 40": conv((1, 40, 29, 29), 40, 5, 2, 40),
        "1x1 gemv 960->240": conv((4, 960, 1, 1), 240, 1),
        "linear 1": linear(1, 2048, 1000),
        "linear 8": linear(8, 770, 130),
        "linear 197": linear(197, 768, 768),
    }
    total = 0
    for name, graph in shapes.items():
        rng = np.random.default_rng(2)
        inputs = {n: rng.integers(-128, 128, graph.types[n].shape).astype(np.int8) for n in graph.inputs}
        expected = reference.run(graph, inputs)["y"]
        found = {k.name: mismatches(device, graph, k, expected, inputs) for k in candidates(graph, device)}
        total += sum(found.values())
        bad = {kernel: n for kernel, n in found.items() if n}
        print(f"{name:<20} {len(found)} kernels, values {np.unique(expected).size}, mismatches {bad or 0}")
    print(f"mismatches in all: {total}")


def macs(graph: Graph) -> int:
    """Multiply-accumulates of the graph's node."""
    return graph.types["y"].numel * int(np.prod(graph.types["c0"].shape[1:]))


def gemm_rate(device: Device, size: int = 4096) -> float:
    """The best int8 matrix product's TOPS, with clocks up."""
    graph = linear(size, size, size)
    times = [microseconds(device, graph, plan_for(graph, kernel), SPIN_UP) for kernel in tiled(graph, device)]
    return 2e-6 * macs(graph) / min(times)


def tiled(graph: Graph, device: Device) -> list[Kernel]:
    """The candidates that are not the general kernel."""
    return [k for k in candidates(graph, device) if not k.name.endswith((".direct", ".gemv"))]


def part_gemm(device: Device) -> None:
    """Matrix products of several shapes with every kernel."""
    for m, k, n in ((4096, 4096, 4096), (1024, 1024, 1024), (197, 768, 3072), (16, 4096, 4096), (1, 4096, 4096)):
        graph = linear(m, k, n)
        for kernel in candidates(graph, device):
            us = microseconds(device, graph, plan_for(graph, kernel), SPIN_UP)
            mark = "<- chosen" if kernel is chosen(graph, device) else ""
            print(f"gemm {m}x{k}x{n} {kernel.name:<26} {us:>9.1f} us {2e-6 * macs(graph) / us:>7.2f} TOPS {mark}")


RESNET50: tuple[tuple[int, int, int, int, int, int], ...] = (
    # channels in, size, channels out, kernel, stride, how many
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 1, 1, 1),
    (64, 56, 64, 3, 1, 3),
    (64, 56, 256, 1, 1, 4),
    (256, 56, 64, 1, 1, 2),
    (256, 56, 128, 1, 1, 1),
    (128, 56, 128, 3, 2, 1),
    (256, 56, 512, 1, 2, 1),
    (128, 28, 512, 1, 1, 4),
    (512, 28, 128, 1, 1, 3),
    (128, 28, 128, 3, 1, 3),
    (512, 28, 256, 1, 1, 1),
    (256, 28, 256, 3, 2, 1),
    (512, 28, 1024, 1, 2, 1),
    (256, 14, 1024, 1, 1, 6),
    (1024, 14, 256, 1, 1, 5),
    (256, 14, 256, 3, 1, 5),
    (1024, 14, 512, 1, 1, 1),
    (512, 14, 512, 3, 2, 1),
    (1024, 14, 2048, 1, 2, 1),
    (512, 7, 2048, 1, 1, 3),
    (2048, 7, 512, 1, 1, 2),
    (512, 7, 512, 3, 1, 2),
)
"""ResNet-50's convolutions (He et al. 2015, stride in the 3x3)."""


def part_resnet50(device: Device, batches: Sequence[int] = (32, 1)) -> None:
    """ResNet-50's convolution shapes: the chosen kernel beside the others, and their share of the GEMM rate."""
    gemm = gemm_rate(device)
    for batch in batches:
        spent = work = least = 0.0
        for c, size, channels, kernel, stride, count in RESNET50:
            graph = conv((batch, c, size, size), channels, kernel, stride)
            pick = chosen(graph, device)
            times = {k.name: microseconds(device, graph, plan_for(graph, k)) for k in tiled(graph, device)}
            us = times[pick.name] if pick.name in times else microseconds(device, graph, plan_for(graph, pick))
            best = min(times, key=times.__getitem__)
            spent, work, least = spent + us * count, work + macs(graph) * count, least + times[best] * count
            rates = " ".join(f"{name.rsplit('_', 1)[-1]} {t:.1f}" for name, t in times.items())
            print(
                f"b{batch} {c}x{size} {kernel}x{kernel} s{stride} -> {channels:<5} x{count} {pick.name:<28} "
                f"{us:>7.1f} us {2e-6 * macs(graph) / us:>6.1f} TOPS; us: {rates}"
            )
        rate = 2e-6 * work / spent
        print(
            f"batch {batch}: {spent / 1e3:.3f} ms, {rate:.1f} TOPS = {rate / gemm:.0%} of GEMM's {gemm:.1f}; "
            f"with the best tile everywhere {least / 1e3:.3f} ms"
        )


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["check", "gemm", "resnet50", "memory", "networks"])
    parser.add_argument("--models", type=Path, default=Path("models"), help="folder of .q8ta files")
    parser.add_argument("--device", help="part of an adapter's name")
    args = parser.parse_args()
    device = open_device(args.device)
    print(device.name)
    results = Results()
    for part in args.parts:
        start = time.perf_counter()
        match part:
            case "check":
                part_check(device)
            case "gemm":
                part_gemm(device)
            case "resnet50":
                part_resnet50(device)
            case "memory":
                # Here, as it is made of this file's functions.
                from bench.gpu_memory import part_memory

                part_memory(device)
            case "networks":
                part_networks(device, args.models, results)
            case "torch":
                part_torch(results)
            case _:
                parser.error(f"unknown part {part!r}")
        print(f"-- {part}: {time.perf_counter() - start:.1f} s", flush=True)
    if results.found:
        print(results)


if __name__ == "__main__":
    main()
