"""Linears of one row one behind the other, as a decoder's token meets them: bound by the bytes of their weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.graphs import ROUNDED, weights
from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.runtime.device import Device

SHAPES = ((2048, 2048), (2048, 8192), (2048, 128256))
"""(inputs, outputs) of Llama-3.2-1B's linears; chains of the second come back by (8192, 2048)."""

BYTES = 192 << 20
"""Int8 weights of a chain: many times what a GPU's caches hold."""


def bits(outputs: int, inputs: int, group: int) -> tuple[Array, ...]:
    """Random weights of 4 bits and their epilogue's numbers. The zero point is 0."""
    rng = np.random.default_rng(0)
    packed = rng.integers(-128, 128, (outputs, inputs // group, 1 + group // 2), dtype=np.int8)
    packed[..., 0] |= 64
    multiplier = np.full(outputs, 2**14 / (73 * 5 * 73 * inputs**0.5), np.float32)
    return packed, multiplier, np.zeros(outputs, np.int32), np.zeros(outputs, np.int32)


def chain(layers: Sequence[tuple[int, int]], rows: int, group: int) -> Graph:
    """Linears of (inputs, outputs) in order, each with weights of its own. One that reads another width than the last
    one's result has reads the input. `group` 0: int8."""
    q = QParams(0.02, 0)
    graph = Graph(["x"], [], types={"x": TensorType((rows, layers[0][0]), INT8X4, q)})
    last = "x"
    for number, (inputs, outputs) in enumerate(layers):
        last = last if graph.types[last].shape[1] == inputs else "x"
        numbers = bits(outputs, inputs, group) if group else weights((outputs, inputs), 0)
        stored = tuple(graph.add_constant(f"c{number}", array) for array in numbers)
        graph.types[f"y{number}"] = TensorType((rows, outputs), INT8X4, q)
        graph.nodes.append(Node("q8ta_linear", (last, *stored), f"y{number}", {"epilogue": ROUNDED}))
        last = f"y{number}"
    graph.outputs = [last]
    return graph


def measured(device: Device, inputs: int, outputs: int, rows: int) -> dict[str, tuple[float, int]]:
    """Microseconds of one linear by its weights' form, and their bytes."""
    turns = ((inputs, outputs), (outputs, inputs)) if outputs < 1 << 16 else ((inputs, outputs),)
    count = max(1, BYTES // (inputs * outputs * len(turns)))
    graphs = {name: chain(turns * count, rows, group) for name, group in (("int8", 0), ("4 bits", 32))}
    times = compared({name: load(graph, device) for name, graph in graphs.items()})
    sizes = {name: sum(a.nbytes for a in g.constants.values() if a.dtype == np.int8) for name, g in graphs.items()}
    each = count * len(turns)
    return {name: (times[name] / each, sizes[name] // each) for name in graphs}


def part_rows(options: Options) -> None:
    """Chains of linears of one row, or of the batches given, with weights of 8 and of 4 bits: a layer's time beside a
    copy's of as many bytes."""
    device = options.device
    for rows in options.batches or (1,):
        for inputs, outputs in SHAPES:
            for name, (us, size) in measured(device, inputs, outputs, rows).items():
                rate = size / us / 1e3
                print(
                    f"{rows} x {inputs} -> {outputs:<6} {name:<6} {us:>8.2f} us {rate:>7.0f} GB/s "
                    f"{rate / device.copy_rate:>4.0%} of a copy",
                    flush=True,
                )
