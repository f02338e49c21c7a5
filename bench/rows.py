"""Times chains of linears: with one row, as for a decoder's token, where reading weights dominates; and with different
inputs: integers with one scale, or with a scale for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.arithmetic import row_unit
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import ROUNDED, bits, weights

SHAPES = ((2048, 2048), (2048, 8192), (2048, 128256))
"""(inputs, outputs) of Llama-3.2-1B's linears. Chains of the second alternate with (8192, 2048)."""

BYTES = 192 << 20
"""Bytes of a chain's int8 weights, many times the size of a GPU's caches."""


def chain(layers: Sequence[tuple[int, int]], rows: int, group: int) -> Graph:
    """Linears of (inputs, outputs), each with its own weights. Each reads the result of the last one, or the graph's
    input if the widths differ. `group` is the block size of 4-bit weights; 0 means int8 weights."""
    q = QParams(0.02, 0)
    graph = Graph(["x"], [], types={"x": TensorType((rows, layers[0][0]), INT8X4, q)})
    last = "x"
    for number, (inputs, outputs) in enumerate(layers):
        last = last if graph.types[last].shape[1] == inputs else "x"
        numbers = bits((outputs, inputs), group) if group else weights((outputs, inputs), 0)
        stored = tuple(graph.add_constant(f"c{number}", array) for array in numbers)
        graph.types[f"y{number}"] = TensorType((rows, outputs), INT8X4, q)
        graph.nodes.append(Node("q8ta_linear", (last, *stored), f"y{number}", {"epilogue": ROUNDED}))
        last = f"y{number}"
    graph.outputs = [last]
    return graph


def measured(device: Device, inputs: int, outputs: int, rows: int) -> dict[str, tuple[float, int]]:
    """(microseconds, bytes of weights) of one linear, for weights of 8 and of 4 bits."""
    turns = ((inputs, outputs), (outputs, inputs)) if outputs < 1 << 16 else ((inputs, outputs),)
    count = max(1, BYTES // (inputs * outputs * len(turns)))
    graphs = {name: chain(turns * count, rows, group) for name, group in (("int8", 0), ("4 bits", 32))}
    times = compared({name: load(graph, device) for name, graph in graphs.items()})
    sizes = {name: sum(a.nbytes for a in g.constants.values() if a.dtype == np.int8) for name, g in graphs.items()}
    each = count * len(turns)
    return {name: (times[name] / each, sizes[name] // each) for name in graphs}


STREAMS = {"int8": INT8X4, "int16": INT16X4, "a scale a row": INT16X4}
"""Dtype of the values between linears, by title. The last one is rounded to int8 with a scale for each row."""

BLOCKS = ((512, 2048), (2048, 512), (512, 512), (512, 512))
"""(inputs, outputs) of the linears that `part_scales` runs, in order."""


def stream(rows: int, name: str) -> Graph:
    """The linears of BLOCKS with values of one of STREAMS between them."""
    graph, q = Graph(["y0"], []), QParams(0.02 if name == "int8" else 1e-4, 0, STREAMS[name])
    rng = np.random.default_rng(0)

    def add(op: str, inputs: tuple[str, ...], t: TensorType, **attrs: int) -> str:
        made = graph.fresh(op)
        graph.types[made] = t
        graph.nodes.append(Node(op, inputs, made, attrs))
        return made

    graph.types["y0"] = TensorType((rows, BLOCKS[0][0]), q.dtype, q)
    last = "y0"
    for number, (inputs, outputs) in enumerate(BLOCKS):
        read = add("dequantize", (last,), TensorType((rows, inputs)))
        if name == "a scale a row":
            scale = add("row_scale", (last,), TensorType((rows, 1)))
            whole = TensorType((rows, inputs), INT8X4, row_unit(q))
            steps = add("dequantize", (add("quantize_rows", (last, scale), whole),), TensorType((rows, inputs)))
            read = add("mul", (steps, scale), TensorType((rows, inputs)))
        weight = rng.integers(-127, 128, (outputs, inputs), dtype=np.int8)
        parts = (weight, np.full(outputs, 1 / (73 * inputs**0.5), np.float32), np.zeros(outputs, np.int32))
        stored = tuple(graph.add_constant(f"c{number}", part) for part in parts)
        real = add("dequantize_weight", stored, TensorType((outputs, inputs)), axis=0)
        bias = graph.add_constant(f"b{number}", np.zeros(outputs, np.float32))
        low, high = q.range
        summed = add("linear", (read, real, bias), TensorType((rows, outputs)))
        last = add("quantize", (summed,), TensorType((rows, outputs), q.dtype, q), lo=low, hi=high)
    graph.outputs = [last]
    return run_passes(graph)


def part_scales(options: Options) -> None:
    """Times a transformer block's linears with one row and with 64, or `--batches`, for each of STREAMS."""
    for rows in options.batches or (1, 64):
        graphs = {name: stream(rows, name) for name in STREAMS}
        loaded = {name: load(graph, options.device) for name, graph in graphs.items()}
        times = compared(loaded)
        for name, us in times.items():
            count = len(loaded[name].program.dispatches)
            print(f"{rows:>3} rows  {name:<14}{us:>10.1f} us {us / times['int8']:>6.2f} of int8  {count} dispatches")


def part_rows(options: Options) -> None:
    """Times chains of linears with one row, or `--batches`, and weights of 8 and of 4 bits: a layer's time, and that of
    a copy of as many bytes."""
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
