"""Memory-bound operators on one GPU beside a copy of the same bytes: the `memory` part of bench/gpu.py."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import wgpu

from bench.gpu import REPEATS, WARM_UP, Shape, candidates, conv, microseconds, op_graph
from q8ta_wgpu.ir.graph import INT8X4, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.layout import ROW_MAJOR, Layout, word_count
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.plan import Plan, Step
from q8ta_wgpu.passes.layout_sync.table import input_layouts, kernel_options, usable_kernels
from q8ta_wgpu.program.link import grid
from q8ta_wgpu.runtime.device import Device

COPY = """
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
  let i = id.y * groups.x * 256u + id.x;
  y[i] = x[i];
}
"""

L4C, L4W, L4C1W = Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C1W
BIG = (64, 128, 112, 112)
"""An activation of 103 MB in int8: with its result four times an H200's L2 cache."""


def copy_microseconds(device: Device, size: int) -> float:
    """Median time of a copy of `size` bytes by a kernel that does nothing else: faster here than a buffer copy."""
    gpu, copies = device.wgpu, int(np.clip((1 << 32) // size, 20, 400))
    buffers = [gpu.create_buffer(size=-(-size // 4096) * 4096, usage=wgpu.BufferUsage.STORAGE) for _ in range(2)]
    module = gpu.create_shader_module(code=COPY)
    pipeline = gpu.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    entries = [{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)]
    group = gpu.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
    queries = gpu.create_query_set(type="timestamp", count=2)
    resolved = gpu.create_buffer(size=16, usage=wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC)
    workgroups = grid((-(-size // 16), 1, 1), (256, 1, 1), device.target.workgroups)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < REPEATS or time.perf_counter() - start < 5 * WARM_UP:
        encoder = gpu.create_command_encoder()
        writes = {"query_set": queries, "beginning_of_pass_write_index": 0, "end_of_pass_write_index": 1}
        compute = encoder.begin_compute_pass(timestamp_writes=writes)
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        for _ in range(copies):
            compute.dispatch_workgroups(*workgroups)
        compute.end()
        encoder.resolve_query_set(queries, 0, 2, resolved, 0)
        gpu.queue.submit([encoder.finish()])
        ticks = np.frombuffer(gpu.queue.read_buffer(resolved), np.uint64)
        times.append(float(ticks[1] - ticks[0]))
    for buffer in buffers:
        buffer.destroy()
    return float(np.median(times[-REPEATS:])) / copies / 1e3


@dataclass(frozen=True)
class Case:
    """A graph of one node, and the layouts of its activations and its result."""

    name: str
    graph: Graph
    x: Layout
    y: Layout


def _quantize(shape: Shape) -> Graph:
    graph = Graph(inputs=["x0"], outputs=["y"])
    graph.types = {"x0": TensorType(shape), "y": TensorType(shape, INT8X4, QParams(0.02, 3))}
    graph.nodes.append(Node("quantize", ("x0",), "y", {"lo": -128, "hi": 127}))
    return graph


def _elementwise() -> Iterator[Case]:
    add = {"a_multiplier": 20000, "b_multiplier": 12345, "shift": 15, "lo": -128, "hi": 127}
    yield Case("add", op_graph("q8ta_add", [BIG, BIG], add), L4C, L4C)
    yield Case("mul", op_graph("q8ta_mul", [BIG, BIG], {"multiplier": 0.01, "lo": -128, "hi": 127}), L4C, L4C)
    table = np.random.default_rng(3).integers(-128, 128, 256, dtype=np.int8)
    yield Case("table", op_graph("q8ta_table", [BIG], {}, [table]), L4C, L4C)


def _borders() -> Iterator[Case]:
    for x, y in ((L4C, L4C), (L4C, L4C1W), (L4W, L4C), (L4C, L4W)):
        for shape in (BIG, (64, 96, 113, 113)) if x != y else (BIG,):
            yield Case(f"clone {x.short} -> {y.short} {shape[1:]}", op_graph("q8ta_clone", [shape], {}), x, y)
    for shape in ((16, 128, 112, 112), (64, 3, 224, 224), (1, 1, 720, 1278)):
        for layout in (L4C, L4W):
            yield Case(f"quantize {layout.short} {shape}", _quantize(shape), ROW_MAJOR, layout)
            graph = op_graph("dequantize", [shape], {}, floats=True)
            yield Case(f"dequantize {layout.short} {shape}", graph, layout, ROW_MAJOR)


def _windows() -> Iterator[Case]:
    pool = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": False}
    for batch in (32, 256):
        graph = op_graph("max_pool2d", [(batch, 64, 112, 112)], {**pool, "dilation": (1, 1)})
        yield Case(f"max_pool 3x3 s2 {batch}x64x112x112", graph, L4C, L4C)
    average = {**pool, "kernel": (2, 2), "padding": (0, 0, 0, 0), "count_include_pad": True, "divisor_override": 0}
    constant = [np.array([0.25], np.float32)]
    yield Case(
        "avg_pool 2x2 s2", op_graph("q8ta_avg_pool2d", [BIG], {**average, "lo": -128, "hi": 127}, constant), L4C, L4C
    )
    adaptive = {"output_size": (1, 1), "lo": -128, "hi": 127, "ratio": 1.3}
    for shape in ((1, 2048, 7, 7), (32, 2048, 7, 7), BIG):
        yield Case(f"mean of images {shape}", op_graph("q8ta_adaptive_avg_pool2d", [shape], adaptive), L4C, L4C)
    nearest = {"scale": (2.0, 2.0), "size": (0, 0), "exact": False}
    yield Case("upsample x2", op_graph("upsample_nearest", [(64, 128, 56, 56)], nearest), L4C, L4C)


def _moves() -> Iterator[Case]:
    half = (64, 64, 112, 112)
    for layout in (L4C, L4W):
        yield Case(f"cat 64 + 64 channels {layout.short}", op_graph("cat", [half, half], {"dim": 1}), layout, layout)
    thin = (64, 60, 113, 113)
    yield Case("cat 60 + 60 channels 4C", op_graph("cat", [thin, thin], {"dim": 1}), L4C, L4C)
    for shape, factor, layout in (
        ((1, 9, 240, 426), 3, L4W),
        ((64, 128, 112, 112), 2, L4W),
        ((64, 128, 112, 112), 2, L4C),
    ):
        graph = op_graph("pixel_shuffle", [shape], {"upscale_factor": factor})
        yield Case(f"pixel_shuffle {shape} -> {layout.short}", graph, L4C, layout)
    taken = {"dim": 1, "start": 32, "end": 96, "step": 1}
    yield Case("slice channels 32:96", op_graph("slice", [BIG], taken), L4C, L4C)
    taken = {"dim": 2, "start": 8, "end": 104, "step": 1}
    yield Case("slice rows 8:104", op_graph("slice", [BIG], taken), L4C, L4C)
    padding = {"padding": (0, 0, 0, 0, 1, 1, 1, 1), "value": 0.0}
    yield Case("pad rows and columns", op_graph("pad", [BIG], padding), L4C, L4C)


def cases() -> Iterator[Case]:
    """Depthwise and memory-bound operators, most of them larger than an L2 cache."""
    for stride, kernel in ((1, 3), (2, 3), (1, 5), (2, 5)):
        yield Case(f"dw {kernel}x{kernel} s{stride}", conv(BIG, 128, kernel, stride, 128), L4C, L4C)
    yield from _elementwise()
    yield from _borders()
    yield from _windows()
    yield from _moves()


def plan_of(case: Case, kernel: Kernel) -> Plan | None:
    """The case run by a kernel, None where it does not allow the case's layouts."""
    node = case.graph.nodes[0]
    op, call = OPS[node.op], case.graph.call(node)
    picked: list[Layout | None] = [case.x if options else None for options in input_layouts(kernel, op, call)]
    for option in kernel_options(kernel, op, call, 0.0):
        fits = all(not read or case.x in read for read in option.reads)
        if option.out == case.y and fits:
            placed = dict.fromkeys(case.graph.inputs, case.x)
            return Plan((Step(node, call, kernel, tuple(picked), case.y),), {**placed, "y": case.y})
    return None


def chosen(case: Case, call: Call, device: Device) -> Kernel:
    """The first kernel that suits the case and allows its layouts."""
    suiting = usable_kernels(OPS[case.graph.nodes[0].op], call, device.target, case.name)
    return next(kernel for kernel in suiting if plan_of(case, kernel))


def moved(case: Case) -> int:
    """Bytes of the activations and the result."""
    places = [*((name, case.x) for name in case.graph.inputs), ("y", case.y)]
    return sum(4 * word_count(case.graph.types[name].shape, layout) for name, layout in places)


def part_memory(device: Device, names: Sequence[str] = ()) -> None:
    """Every kernel of every case, and how its time compares with a copy of as many bytes."""
    size = 1 << 28
    print(f"copy {2e-3 * size / copy_microseconds(device, size):.0f} GB/s")
    for case in cases():
        if names and not any(name in case.name for name in names):
            continue
        call = case.graph.call(case.graph.nodes[0])
        copy = copy_microseconds(device, moved(case) // 2)
        for kernel in candidates(case.graph, device):
            plan = plan_of(case, kernel)
            if plan is not None:
                us = microseconds(device, case.graph, plan)
                mark = "<- chosen" if kernel is chosen(case, call, device) else ""
                report(case, kernel.name, us, copy, mark)


def report(case: Case, kernel: str, us: float, copy: float, mark: Any = "") -> None:
    """Prints one line."""
    rate = moved(case) / us / 1e3
    print(
        f"{case.name:<38} {kernel:<30} {us:>8.1f} us {rate:>6.0f} GB/s, {copy / us:>4.0%} of a copy {mark}", flush=True
    )
