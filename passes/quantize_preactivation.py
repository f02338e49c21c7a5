"""Gives convolution -> non-clamp activation -> quantize an int8 value in between, at a scale chosen here.

X86Inductor's quantizer annotates conv + hardswish (silu, ...) as one, so its graphs hold no scale for the convolution's
own result. The range chosen covers every input on which the quantized activation still changes, so nothing is lost by
saturation; what remains is one more rounding, at most about half a step, which the report notes.
"""

from __future__ import annotations

import numpy as np

from q8ta_wgpu import arithmetic
from q8ta_wgpu.ir import Graph, Node, QParams, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.op import Op
from q8ta_wgpu.passes.fuse_int8 import View

_SEARCH = 4096
"""Points of the search grid on each side of zero."""


def quantize_preactivation(graph: Graph) -> None:
    """Inserts quantize and dequantize before each such activation."""
    view = View(graph)
    inserted: dict[str, list[Node]] = {}
    for node in graph.nodes:
        op = OPS[node.op]
        source = view.producers.get(node.inputs[0]) if op.unary and not op.clamp else None
        readers = view.users[node.output]
        if source is None or not readers or any(r.op != "quantize" for r in readers) or node.output in graph.outputs:
            continue
        if not _is_int8_site(view, source) or view.only_reader(source.output) is not node:
            continue
        out = graph.types[readers[0].output].q
        assert out is not None
        q = _range(op, node, out)
        int8, real = graph.fresh(f"{source.output}.int8"), graph.fresh(f"{source.output}.real")
        graph.types[int8] = TensorType(graph.types[source.output].shape, "int8x4", q)
        graph.types[real] = graph.types[source.output]
        inserted[node.output] = [
            Node("quantize", (source.output,), int8, {"lo": -128, "hi": 127}, node.source),
            Node("dequantize", (int8,), real, {}, node.source),
            Node(node.op, (real,), node.output, node.attrs, node.source),
        ]
        low, high = ((v - q.zero) * q.scale for v in (-128, 127))
        graph.notes.append(
            f"{node.output}: {node.op} reads an int8 value in [{low:.4g}, {high:.4g}] chosen by the compiler"
        )
    graph.nodes = [new for node in graph.nodes for new in inserted.get(node.output, [node])]


def _is_int8_site(view: View, node: Node) -> bool:
    """Whether `node` is a weighted operator, or an add of one, on dequantized inputs."""
    if node.op == "add":
        sources = [view.producers.get(name) for name in node.inputs]
        return any(s is not None and s.op != "dequantize" and _is_int8_site(view, s) for s in sources) and any(
            s is not None and s.op == "dequantize" for s in sources
        )
    return OPS[node.op].annotate == "weighted" and view.int8_behind(node.inputs[0]) is not None


def _range(op: Op, node: Node, out: QParams) -> QParams:
    """The narrowest int8 range holding every x at which the quantized activation has not reached its end values."""
    reach = 256 * out.scale + 16.0
    x = np.linspace(-reach, reach, 2 * _SEARCH + 1)
    assert op.unary is not None
    steps = arithmetic.table(op.unary(x, node.attrs), out).astype(np.int64)
    changes = np.flatnonzero(np.diff(steps))
    low, high = (x[changes[0]], x[changes[-1] + 1]) if changes.size else (-1.0, 1.0)
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(high - low) / 255
    return QParams(scale, int(np.clip(np.rint(-128 - low / scale), -128, 127)))
