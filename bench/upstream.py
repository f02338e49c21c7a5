"""The experiments of the ExecuTorch pull requests that this project re-creates, on one adapter, in one run.

Experiments on networks need resnet50.q8ta and refinenet.q8ta in the folder of models.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.kernel_sets import general
from bench.options import Options
from bench.timing import Loaded, compared, load
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Dequantize, PixelShuffle
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import POLICIES, Plan, plan_of, sync_layouts
from q8ta_wgpu.passes.layout_sync.optimal import optimal
from q8ta_wgpu.passes.layout_sync.options import problem_of
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import candidates, linear, plan_for

ROWS = (1, 2, 4, 6, 8, 16)
PRODUCTS = ((4096, 4096), (2048, 1000), (1024, 768), (768, 3072))
"""(K, N) of matrix products."""

TILES_CPU = ("16x16", "8x16")
"""Tiles to compare on a CPU, where a product of 4096 x 4096 takes long."""

SHUFFLES = (((1, 128, 64, 36), 2), ((1, 8, 128, 72), 2), ((1, 9, 240, 426), 3), ((1, 256, 32, 32), 4))
"""(shape, factor) of pixel_shuffles: two of the light-weight RefineNet, one of a sub-pixel network to 720p, and one
with many channels."""

QPARAMS = {"one scale": (QParams(0.02, -3), QParams(0.02, -3)), "two scales": (QParams(0.02, -3), QParams(0.031, 11))}


def part_convolution(options: Options) -> None:
    """Times ResNet-50 with the kernels chosen by rule, and only with general kernels."""
    device = options.device
    graph = q8.load(options.models / "resnet50.q8ta").graph
    us = compared({"chosen": load(graph, device), "general": load(graph, device, keep=general)})
    print("ResNet-50, batch 1           ms")
    print(f"general kernels only {us['general'] / 1e3:>10.3f}")
    print(f"kernels by rule      {us['chosen'] / 1e3:>10.3f}  {us['general'] / us['chosen']:.2f} times as fast")
    print("(upstream, im2col by rule against its general kernel: 14.2 -> 6.8 ms, 2.1)")


def part_gemv(options: Options) -> None:
    """Times matrix-vector kernels and the best tile for few rows, and finds the number of rows where the tile wins."""
    print(f"{'K':>5} {'N':>5} " + "".join(f"{f'M={m} gemv/tile us':>24}" for m in ROWS) + "   tiles win from")
    for k, n in PRODUCTS:
        cells, crossing = [], ""
        for m in ROWS:
            us = compared(_products(options.device, m, k, n))
            gemv = us.pop("gemv", None)
            best = min(us, key=us.__getitem__)
            crossing = crossing or (f"M={m}" if gemv is None or us[best] < gemv else "")
            cells.append(f"{'-' if gemv is None else f'{gemv:.1f}'}/{us[best]:.1f} {best.rpartition('_')[2]:<7}")
        print(f"{k:>5} {n:>5} " + "".join(f"{cell:>24}" for cell in cells) + f"   {crossing or 'never'}")
    print("(-: gemv is not offered for so many rows)")


def _products(device: Device, m: int, k: int, n: int) -> dict[str, Loaded]:
    graph = linear(m, k, n)
    found = {}
    for kernel in candidates(graph, device):
        variant = kernel.name.partition(".")[2]
        if variant.startswith("tiled") and device.software and not variant.endswith(TILES_CPU):
            continue
        if variant == "gemv" or variant.startswith("tiled"):
            found[variant] = load(graph, device, plan_for(graph, kernel))
    return found


def shuffle_graph(shape: tuple[int, ...], factor: int, qs: tuple[QParams, QParams]) -> Graph:
    """dequantize -> pixel_shuffle -> quantize of an int8 value."""
    graph = Graph(inputs=["x"], outputs=["y"])
    n, c, h, w = shape
    out = (n, c // factor**2, h * factor, w * factor)
    graph.types = {"x": TensorType(shape, INT8X4, qs[0]), "real": TensorType(shape), "moved": TensorType(out)}
    graph.types["y"] = TensorType(out, INT8X4, qs[1])
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("pixel_shuffle", ("real",), "moved", {"upscale_factor": factor}),
        Node("quantize", ("moved",), "y", {"lo": -128, "hi": 127}),
    ]
    return graph


def unfolded(graph: Graph) -> Graph:
    """A copy of a graph in which pixel_shuffles and dequantizes are not fused into weighted sums."""
    graph = graph.copy()
    nodes: list[Node] = []
    for node in graph.nodes:
        *stages, shuffle, last = node.attrs["epilogue"].stages if epilogue.factor(node.attrs) > 1 else (None, None)
        if not isinstance(shuffle, PixelShuffle) or not isinstance(last, Dequantize):
            nodes.append(node)
            continue
        attrs = {**node.attrs, "epilogue": Epilogue(tuple(stages))}
        q = QParams(last.scale, last.zero)
        shape, _ = OPS[node.op].check(tuple(graph.types[name] for name in node.inputs), attrs)
        result = graph.fresh(f"{node.output}.sum")
        graph.types[result] = TensorType(shape, INT8X4, q)
        moved = graph.fresh(f"{node.output}.moved")
        graph.types[moved] = TensorType(graph.types[node.output].shape, INT8X4, q)
        nodes += [
            Node(node.op, node.inputs, result, attrs, node.source),
            Node("pixel_shuffle", (result,), moved, {"upscale_factor": shuffle.factor}),
            Node("dequantize", (moved,), node.output),
        ]
    graph.nodes = nodes
    return graph


def unfused(graph: Graph) -> Graph:
    """A copy of a graph with pixel_shuffles as float32 view -> permute -> view, between dequantize and quantize."""
    graph = unfolded(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.op != "pixel_shuffle":
            nodes.append(node)
            continue
        (x,), y, factor = node.inputs, node.output, node.attrs["upscale_factor"]
        n, c, h, w = graph.types[x].shape
        split = (n, c // factor**2, factor, factor, h, w)
        chain: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
            ("view", {"shape": split}, split),
            ("permute", {"dims": (0, 1, 4, 2, 5, 3)}, (n, split[1], h, factor, w, factor)),
            ("view", {"shape": graph.types[y].shape}, graph.types[y].shape),
        ]
        if graph.types[y].dtype == INT8X4:
            chain = [("dequantize", {}, (n, c, h, w)), *chain, ("quantize", {"lo": -128, "hi": 127}, (0,))]
        for i, (op, attrs, shape) in enumerate(chain):
            name = y if i == len(chain) - 1 else graph.fresh(f"{y}.{op}")
            if name != y:
                graph.types[name] = TensorType(shape)
            nodes.append(Node(op, (x,), name, attrs))
            x = name
    graph.nodes = nodes
    return graph


def from_4c(graph: Graph, device: Device) -> Plan:
    """The optimal plan of a graph with inputs in 4C, as convolutions write them."""
    problem = problem_of(graph, device.target)
    problem = replace(problem, free={name: (Layout.PACKED_INT8_4C,) for name in graph.inputs})
    found, bound = optimal(problem)
    return plan_of(graph, device.target, problem, found, "optimal", bound)


def part_pixel_shuffle(options: Options) -> None:
    """Times the fused int8 pixel_shuffle and the chain that it replaces, alone and in a RefineNet."""
    device = options.device
    print(f"{'pixel_shuffle from 4C':<26} {'':<11} {'chain us':>14} {'fused us':>14} {'times':>6}   (dispatches)")
    for shape, factor in SHUFFLES:
        for label, qs in QPARAMS.items():
            graph = shuffle_graph(shape, factor, qs)
            chain, fused = unfused(graph), run_passes(graph)
            x = {"x": np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)}
            if not np.array_equal(reference.run(chain, x)["y"], reference.run(fused, x)["y"]):
                sys.exit(f"the chain and the fused form of {shape} differ: the comparison is void")
            loaded = {k: load(g, device, from_4c(g, device)) for k, g in (("chain", chain), ("fused", fused))}
            counts = {name: len(program.program.dispatches) for name, program in loaded.items()}
            us = compared(loaded)
            cells = " ".join(f"{us[name]:>10.1f} ({counts[name]})" for name in ("chain", "fused"))
            print(f"{f'{list(shape)} x{factor}':<26} {label:<11} {cells} {us['chain'] / us['fused']:>6.2f}")
    graph = _refinenet(options.models)
    chains = unfused(graph)
    image = {graph.inputs[0]: np.random.default_rng(0).normal(0, 1, graph.types[graph.inputs[0]].shape).astype("f")}
    found, expected = (reference.run(g, image)[graph.outputs[0]] for g in (chains, graph))
    if not np.array_equal(found, expected):
        sys.exit("the RefineNet with chains and the fused one differ: the comparison is void")
    us = compared({"chain": load(chains, device), "fused": load(graph, device)})
    part = (us["chain"] - us["fused"]) / us["chain"]
    print(f"RefineNet {list(graph.types[graph.inputs[0]].shape)}: {us['chain'] / 1e3:.3f} ms with the chains, ", end="")
    print(f"{us['fused'] / 1e3:.3f} ms fused: what fusion saves is {part:.0%} of inference (upstream 17 %)")


def _refinenet(folder: Path) -> Graph:
    graph = q8.load(folder / "refinenet.q8ta").graph
    if sum(node.op == "pixel_shuffle" for node in unfolded(graph).nodes) != 2:
        sys.exit(f"{folder / 'refinenet.q8ta'} does not hold the network's two pixel_shuffles: nothing to compare")
    return graph


def part_clones(options: Options) -> None:
    """Counts transitions between layouts in the RefineNet, with and without fusion, under both policies."""
    device = options.device
    graph = _refinenet(options.models)
    print(f"{'layout transitions, RefineNet':<32} {'greedy':>8} {'optimal':>8}")
    for label, found in (("pixel_shuffle as float chains", unfused(graph)), ("fused", graph)):
        found = lower(found, device.target)
        counts = [len(sync_layouts(found, device.target, policy).transitions) for policy in reversed(POLICIES)]
        print(f"{label:<32} {counts[0]:>8} {counts[1]:>8}")
    print("(upstream, its greedy sweep on its own table, before and since views take packed layouts: 11 -> 3;")
    print(" python -m pytest bench/bench_layouts.py runs that table through both policies)")
