"""Times attention in one dispatch with every kernel: heads of vision transformers, and of a decoder with a cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bench.options import Options
from bench.timing import Loaded, compared, load
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, Graph, QParams, TensorType
from testbed.graphs import attention, candidates, chosen, plan_for

WHOLE = ((32, 12, 197, 64), (1, 12, 197, 64), (4, 12, 577, 64), (256, 4, 49, 32))
"""Batch, heads, tokens, elements of a head."""

CACHED = ((0, 512), (512, 512), (0, 64), (100, 1), (1023, 1))
"""Position of the first query in a cache of CACHE keys, and number of queries."""

CACHE, HEADS, SHARED, DEPTH = 1024, 32, 8, 64


def cached(queries: int) -> Graph:
    """Attention with queries from a linear's result, whose heads are side by side, keys and values from a cache, and a
    mask."""
    rows, keys = HEADS * DEPTH, (0, SHARED * CACHE * DEPTH, CACHE * DEPTH, DEPTH)
    graph = attention(1, HEADS, queries, DEPTH)
    (node,) = graph.nodes
    sizes = (1, HEADS, queries, CACHE, DEPTH, DEPTH, SHARED)
    attrs = {**node.attrs, "sizes": sizes, "query": (0, queries * rows, DEPTH, rows), "key": keys, "value": keys}
    graph.nodes = [replace(node, inputs=("x0", "k", "v", *node.inputs[3:], "mask"), attrs=attrs)]
    graph.inputs = ["x0", "k", "v", "mask"]
    graph.types["x0"] = TensorType((1, queries, rows), INT8X4, QParams(0.02, 0))
    graph.types |= dict.fromkeys("kv", TensorType((1, SHARED, CACHE, DEPTH), INT8X4, QParams(0.02, 0)))
    graph.types["mask"] = TensorType((1, 1, queries, CACHE), INT8X4, BOOL)
    return graph


def causal(first: int, queries: int) -> Array:
    """The words of a causal mask for `queries` queries from position `first` on."""
    taken = np.arange(CACHE)[None] <= first + np.arange(queries)[:, None]
    return np.ascontiguousarray(taken.astype(np.int8)).reshape(-1).view("<u4")


def part_attention(options: Options) -> None:
    """Prints median microseconds of each kernel, and marks the one that layout sync chooses."""
    cases: list[tuple[str, Graph, Array | None]] = [
        (f"{b} x {h} heads of {t} x {d}", attention(b, h, t, d), None) for b, h, t, d in WHOLE
    ]
    cases += [(f"{n} queries at {at} of {CACHE} keys", cached(n), causal(at, n)) for at, n in CACHED]
    for label, graph, mask in cases:
        loaded = dict[str, Loaded]()
        for kernel in candidates(graph, options.device):
            loaded[kernel.name] = load(graph, options.device, plan_for(graph, kernel))
            if mask is not None:
                loaded[kernel.name].words[graph.inputs.index("mask")] = mask
        pick = chosen(graph, options.device).name
        for name, us in sorted(compared(loaded).items(), key=lambda item: item[1]):
            print(f"{label:<34} {name:<32} {us:>10.1f} us{' <- chosen' * (name == pick)}", flush=True)
