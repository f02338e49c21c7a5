"""Programs with known results: what a device's matrix units must compute before a network relies on them.

Some drivers compute wrong products with them (on Mesa's Xe3 the tile at offset 0 came back wherever it was asked for),
so each kernel's tile runs a product once, with sums, rows and channels that end within a tile and extreme values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import Layout, pack, word_count
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.plan import Plan, Step
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program

ROWS, DEPTH, CHANNELS = 300, 400, 150
"""Beyond every tile, and no multiple of any; three to seven steps of k, the last one not full."""

ROW_MAJOR = Layout.PACKED_INT8_4W


@dataclass(frozen=True)
class Trial:
    """A program of one dispatch, the words of its input, and those of its result."""

    kernel: str
    program: Program
    words: Array
    expected: Array


def _graph() -> Graph:
    """A q8ta_linear of extreme and of random numbers, whose results fill the int8 range."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (CHANNELS, DEPTH), dtype=np.int8)
    weight[:3] = ((-127,), (127,), (0,))
    spread = np.float32(2.0**14 * 60 / (73 * 73 * DEPTH**0.5))
    graph = Graph(inputs=["x"], outputs=["y"])
    graph.types = {
        "x": TensorType((ROWS, DEPTH), INT8X4, QParams(0.5, -128)),
        "y": TensorType((ROWS, CHANNELS), INT8X4, QParams(0.5, 7)),
    }
    arrays = {
        "weight": weight,
        "multiplier": (rng.uniform(0.5, 1.5, CHANNELS) * spread).astype(np.float32),
        "offset": rng.integers(-(2**19), 2**19, CHANNELS).astype(np.int32),
        "correction": (-128 * weight.sum(1, dtype=np.int64)).astype(np.int32),
    }
    names = [graph.add_constant(name, array) for name, array in arrays.items()]
    graph.nodes = [Node("q8ta_linear", ("x", *names), "y", {"epilogue": Epilogue((Requantize(-128, 127),))})]
    return graph


def unit_trials(unit: MatrixUnit, target: Target) -> Iterator[Trial]:
    """A trial of every kernel that runs on `target` for the sake of this unit."""
    graph, rng = _graph(), np.random.default_rng(1)
    x = rng.integers(-128, 128, (ROWS, DEPTH), dtype=np.int8)
    x[:2] = ((-128,), (127,))
    node, call = graph.nodes[0], graph.call(graph.nodes[0])
    with_unit, without = (replace(target, matrix_units=units) for units in ((unit,), ()))
    kernels = [k for k in OPS[node.op].kernels if k.runs(call, with_unit) and not k.runs(call, without)]
    expected = pack(reference.run(graph, {"x": x})["y"], ROW_MAJOR) if kernels else np.empty(0, np.uint32)
    for kernel in kernels:
        reads = (ROW_MAJOR, *(None,) * (len(node.inputs) - 1))
        plan = Plan((Step(node, call, Variant(kernel, reads, ROW_MAJOR)),), dict.fromkeys(("x", "y"), ROW_MAJOR))
        yield Trial(kernel.name, build(graph, with_unit, plan), pack(x, ROW_MAJOR), expected)


def wrong_words(trial: Trial, found: Array) -> int:
    """Words of a result that differ from what is expected, lanes of padding left out."""
    width = word_count((1, CHANNELS), ROW_MAJOR)
    mask = np.full(width * 4, 0xFF, np.uint8)
    mask[CHANNELS:] = 0
    lanes = np.tile(mask.view("<u4"), ROWS)
    return int(((found[: lanes.size] ^ trial.expected) & lanes != 0).sum())
