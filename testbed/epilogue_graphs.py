"""Graphs of a weighted operator with what follows it in its dispatch, for each case of the operator table."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir.graph import (
    INT8X4,
    INT16X4,
    Array,
    Graph,
    Node,
    QParams,
    TensorType,
)
from q8ta_wgpu.ir.op import Case, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes import run_passes
from testbed.op_graphs import Setting, extremes, float_result, rng
from testbed.sample import EVERYTHING, in_turn

SIMPLE = (
    "residual requantize",
    "curve requantize",
    "requantize add",
    "requantize table",
    "requantize pixel_shuffle dequantize",
    "requantize add pixel_shuffle dequantize",
    "scale",
    "scale pixel_shuffle",
)
COMBINED = tuple(
    " ".join(filter(None, stages))
    for stages in itertools.product(
        ("", "residual", "curve"), ("requantize",), ("", "add", "table"), ("", "dequantize", "pixel_shuffle dequantize")
    )
)[1:]
EPILOGUES = tuple(dict.fromkeys((*SIMPLE, *COMBINED, "requantize mul", "curve requantize mul")))
"""What may follow a weighted sum in its dispatch, but for rounding alone: names of stages."""


IN_FOUR = 4
"""Each case of a weighted sum meets one in so many of SIMPLE."""

IN_EIGHT = 8
"""Each case of conv2d meets one in so many of the other epilogues, each of them two cases or three."""


def epilogues_of(op: Op, index: int) -> list[str]:
    """The epilogues that a case meets. Stages know nothing of each other, nor of the product before them, so that only
    conv2d meets combinations of them."""
    combined = EPILOGUES[len(SIMPLE) :] if op.name == "conv2d" or EVERYTHING else ()
    return in_turn(SIMPLE, index, IN_FOUR) + in_turn(combined, index, IN_EIGHT)


def epilogue_graph(op: Op, case: Case, setting: Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """The fused graph of a weighted operator with what follows it, one of EPILOGUES. A pixel_shuffle is left out where
    the channels allow none."""
    graph, inputs = unfused_epilogue(op, case, setting, after)
    return run_passes(graph), inputs


def unfused_epilogue(op: Op, case: Case, setting: Setting, after: str) -> tuple[Graph, dict[str, Array]]:
    """`epilogue_graph` as it is before the passes."""
    graph, inputs, out = float_result(op, case, setting)
    shape = graph.types["real"].shape
    factor, last, made = _factor(shape), "real", out
    if after.startswith("scale"):  # a channel whose bias is more than 2^31 of its steps
        graph.constants["w.scale"][0] *= np.float32(1e-9)
        graph.constants["c2"][0] = np.float32(-4.6)

    def emit(kind: str, sources: tuple[str, ...], t: TensorType, **attrs: object) -> str:
        name = graph.fresh(f"{kind}.y")
        graph.types[name] = t
        graph.nodes.append(Node(kind, sources, name, attrs))
        return name

    def other(name: str) -> str:
        graph.inputs.append(name)
        narrower = 256 if (setting.dtypes[1], out.dtype) == (INT8X4, INT16X4) else 1
        wider = 256 if (setting.dtypes[1], out.dtype) == (INT16X4, INT8X4) else 1
        ratio = 0.9 if setting.zeros[1] % 2 else 1.7  # with a residual, those up to 1.0 round by an addition
        q = setting.q(1, out.scale * ratio * narrower / wider)
        graph.types[name] = TensorType(shape, q.dtype, q)
        inputs[name] = extremes(rng(op.name, case, after, name), shape, q.dtype)
        return emit("dequantize", (name,), TensorType(shape))

    def rounded(value: str, q: QParams, lo: int, hi: int) -> str:
        return emit("quantize", (value,), TensorType(shape, q.dtype, q), lo=lo, hi=hi)

    for stage in after.split():
        match stage:
            case "residual":
                last = emit("add", (last, other("residual")), TensorType(shape), alpha=1.0)
            case "curve":
                last = emit("silu", (last,), TensorType(shape))
            case "requantize":
                last = rounded(last, out, out.range[0] + 8, out.range[1])
            case "add" | "mul" | "table":
                real = emit("dequantize", (last,), TensorType(shape))
                joined = (real,) if stage == "table" else (real, other("addend"))
                kind, attrs = {"add": ("add", {"alpha": 1.0}), "mul": ("mul", {}), "table": ("silu", {})}[stage]
                made = QParams(out.scale * (60 * out.scale if stage == "mul" else 1.3), setting.zeros[2])
                last = rounded(emit(kind, joined, TensorType(shape), **attrs), made, -128, 121)
            case "pixel_shuffle" if factor > 1:
                moved, _ = OPS["pixel_shuffle"].check((graph.types[last],), {"upscale_factor": factor})
                moved_type = TensorType(moved) if after.startswith("scale") else TensorType(moved, INT8X4, made)
                last = emit("pixel_shuffle", (last,), moved_type, upscale_factor=factor)
            case "dequantize":
                last = emit("dequantize", (last,), TensorType(graph.types[last].shape))
    graph.outputs = [last]
    return graph, inputs


def _factor(shape: Sequence[int]) -> int:
    """The largest pixel_shuffle factor the channels of (n, c, h, w) allow; 1 for other ranks."""
    return max(f for f in (1, 2, 3) if shape[1] % f**2 == 0) if len(shape) == 4 else 1
