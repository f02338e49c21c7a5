"""Compares memory-bound operators on a GPU with a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.options import Options
from bench.timing import Loaded, compared, load
from q8ta_wgpu.ir.graph import FLOAT32, Call, Graph
from q8ta_wgpu.ir.kernel import Variant, grid
from q8ta_wgpu.ir.layout import ROW_MAJOR, Layout, word_count
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.passes.layout_sync.limits import Fit, fitting, preferred
from q8ta_wgpu.passes.layout_sync.options import kernel_options
from q8ta_wgpu.program.program import Dispatch, Program
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed.graphs import conv, one_node

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
COPIED = "copy"
BIG = (64, 128, 112, 112)
"""An activation of 103 MB in int8: with its result four times an H200's L2 cache."""


def copy(device: Device, size: int) -> Loaded:
    """A copy of `size` bytes by a kernel, which on an H200 is faster than a buffer copy."""
    size = -(-size // 4096) * 4096
    dispatch = Dispatch(
        kernel="copy",
        value="copy",
        source="",
        shader=0,
        buffers=(("slot", 0), ("slot", 1)),
        uniform=(0, 16),
        grid=grid((size // 16, 1, 1), (256, 1, 1), device.target.workgroups),
        layouts=(),
        moved=2 * size,
        macs=0,
    )
    program = Program((COPY,), (size, size), (), bytes(16), (dispatch,), (), ())
    return Loaded(Executor(program, device), [])


@dataclass(frozen=True)
class Case:
    """A graph of one node, and the layouts of its activations and its result."""

    name: str
    graph: Graph
    x: Layout
    y: Layout


def _elementwise() -> Iterator[Case]:
    add = {"a_multiplier": 20000, "b_multiplier": 12345, "shift": 15, "lo": -128, "hi": 127}
    yield Case("add", one_node("q8ta_add", [BIG, BIG], add), L4C, L4C)
    yield Case("mul", one_node("q8ta_mul", [BIG, BIG], {"multiplier": 0.01, "lo": -128, "hi": 127}), L4C, L4C)
    table = np.random.default_rng(3).integers(-128, 128, 256, dtype=np.int8)
    yield Case("table", one_node("q8ta_table", [BIG], {}, [table]), L4C, L4C)


def _borders() -> Iterator[Case]:
    for x, y in ((L4C, L4C), (L4C, L4C1W), (L4W, L4C), (L4C, L4W)):
        for shape in (BIG, (64, 96, 113, 113)) if x != y else (BIG,):
            yield Case(f"clone {x.short} -> {y.short} {shape[1:]}", one_node("q8ta_clone", [shape], {}), x, y)
    for shape in ((16, 128, 112, 112), (64, 3, 224, 224), (1, 1, 720, 1278)):
        for layout in (L4C, L4W):
            graph = one_node("quantize", [shape], {"lo": -128, "hi": 127}, dtype=FLOAT32)
            yield Case(f"quantize {layout.short} {shape}", graph, ROW_MAJOR, layout)
            graph = one_node("dequantize", [shape], {})
            yield Case(f"dequantize {layout.short} {shape}", graph, layout, ROW_MAJOR)


def _windows() -> Iterator[Case]:
    pool = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": False}
    for batch in (32, 256):
        graph = one_node("max_pool2d", [(batch, 64, 112, 112)], {**pool, "dilation": (1, 1)})
        yield Case(f"max_pool 3x3 s2 {batch}x64x112x112", graph, L4C, L4C)
    average = {**pool, "kernel": (2, 2), "padding": (0, 0, 0, 0), "count_include_pad": True, "divisor_override": 0}
    constant = [np.array([0.25], np.float32)]
    yield Case(
        "avg_pool 2x2 s2", one_node("q8ta_avg_pool2d", [BIG], {**average, "lo": -128, "hi": 127}, constant), L4C, L4C
    )
    adaptive = {"output_size": (1, 1), "lo": -128, "hi": 127, "ratio": 1.3}
    for shape in ((1, 2048, 7, 7), (32, 2048, 7, 7), BIG):
        yield Case(f"mean of images {shape}", one_node("q8ta_adaptive_avg_pool2d", [shape], adaptive), L4C, L4C)
    nearest = {"scale": (2.0, 2.0), "size": (0, 0), "exact": False}
    yield Case("upsample x2", one_node("upsample_nearest", [(64, 128, 56, 56)], nearest), L4C, L4C)


def _moves() -> Iterator[Case]:
    half = (64, 64, 112, 112)
    for layout in (L4C, L4W):
        yield Case(f"cat 64 + 64 channels {layout.short}", one_node("cat", [half, half], {"dim": 1}), layout, layout)
    thin = (64, 60, 113, 113)
    yield Case("cat 60 + 60 channels 4C", one_node("cat", [thin, thin], {"dim": 1}), L4C, L4C)
    for shape, factor, layout in (
        ((1, 9, 240, 426), 3, L4W),
        ((64, 128, 112, 112), 2, L4W),
        ((64, 128, 112, 112), 2, L4C),
    ):
        graph = one_node("pixel_shuffle", [shape], {"upscale_factor": factor})
        yield Case(f"pixel_shuffle {shape} -> {layout.short}", graph, L4C, layout)
    taken = {"dim": 1, "start": 32, "end": 96, "step": 1, "extent": 0}
    yield Case("slice channels 32:96", one_node("slice", [BIG], taken), L4C, L4C)
    taken = {"dim": 2, "start": 8, "end": 104, "step": 1, "extent": 0}
    yield Case("slice rows 8:104", one_node("slice", [BIG], taken), L4C, L4C)
    padding = {"padding": (0, 0, 0, 0, 1, 1, 1, 1), "value": 0.0}
    yield Case("pad rows and columns", one_node("pad", [BIG], padding), L4C, L4C)


def cases() -> Iterator[Case]:
    """Depthwise and memory-bound operators, most of them larger than an L2 cache."""
    for stride, kernel in ((1, 3), (2, 3), (1, 5), (2, 5)):
        yield Case(f"dw {kernel}x{kernel} s{stride}", conv(BIG, 128, kernel, stride, 128), L4C, L4C)
    yield from _elementwise()
    yield from _borders()
    yield from _windows()
    yield from _moves()


def plan_of(case: Case, found: Fit) -> Plan | None:
    """The plan of a case with a kernel; None if the kernel does not allow the case's layouts."""
    node = case.graph.nodes[0]
    call = case.graph.call(node)
    picked: list[Layout | None] = [case.x if layouts else None for layouts in found.reads]
    for option in kernel_options(found, call, 0.0):
        fits = all(not read or case.x in read for read in option.reads)
        if option.out == case.y and fits:
            placed = dict.fromkeys(case.graph.inputs, case.x)
            return Plan((Step(node, call, Variant(found.kernel, tuple(picked), case.y)),), {**placed, "y": case.y})
    return None


def chosen(case: Case, call: Call, device: Device) -> Fit:
    """The first kernel that is preferred for the case and allows its layouts."""
    return next(found for found in preferred(call, device.target) if plan_of(case, found))


def moved(case: Case) -> int:
    """Bytes of the activations and the result."""
    places = [*((name, case.x) for name in case.graph.inputs), ("y", case.y)]
    return sum(4 * word_count(case.graph.types[name].shape, layout) for name, layout in places)


def part_memory(options: Options) -> None:
    """Times depthwise and memory-bound operators with every kernel, relative to a copy of as many bytes."""
    device, size = options.device, 1 << 28
    print(f"copy {2e-3 * size / compared({COPIED: copy(device, size)})[COPIED]:.0f} GB/s")
    for case in cases():
        if options.names and not any(name in case.name for name in options.names):
            continue
        call = case.graph.call(case.graph.nodes[0])
        plans = {found.kernel.name: plan_of(case, found) for found in fitting(call, device.target)}
        loaded = {name: load(case.graph, device, plan) for name, plan in plans.items() if plan is not None}
        times = compared({**loaded, COPIED: copy(device, moved(case) // 2)})
        pick = chosen(case, call, device).kernel
        for name in loaded:
            rate, share = moved(case) / times[name] / 1e3, times[COPIED] / times[name]
            mark = "<- chosen" if name == pick.name else ""
            print(
                f"{case.name:<38} {name:<30} {times[name]:>8.1f} us {rate:>6.0f} GB/s, {share:>4.0%} of a copy {mark}",
                flush=True,
            )
