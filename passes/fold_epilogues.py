"""Fuses operators that follow a weighted sum into its dispatch, as stages of its epilogue: q8ta_add, q8ta_mul,
q8ta_table, pixel_shuffle, dequantize.

The int8 value before each stage is still computed, in registers, so the bytes stay the same.
"""

from __future__ import annotations

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Stage
from q8ta_wgpu.kernels.epilogue.stages import Add, Dequantize, Mul, PixelShuffle, Table
from q8ta_wgpu.passes.rewriter import Rewriter

POSITIONS = {"q8ta_add": (1, 0), "q8ta_mul": (1, 0), "q8ta_table": (0,), "dequantize": (0,), "pixel_shuffle": (0,)}
"""Operators that may be fused, and the positions at which they may read the weighted sum, in the order of trial."""


def fold_epilogues(graph: Graph) -> None:
    """Fuses in one sweep. The fused node must be the only reader of the sum, and the sum no output of the graph."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        for position in POSITIONS.get(node.op, ()):
            before = rewriter.only_producer(node.inputs[position])
            shuffle = before if before and before.op == "pixel_shuffle" and node.op == "dequantize" else None
            source = rewriter.only_producer(shuffle.inputs[0]) if shuffle else before
            merged = _merged(graph, source, shuffle, node, position) if source else None
            if merged:
                rewriter.replace(node, merged)
                break
    rewriter.commit()


def _merged(graph: Graph, source: Node, shuffle: Node | None, node: Node, position: int) -> Node | None:
    """The sum `source` with `node` as further stages, None where its operator or its epilogue does not allow them."""
    others = tuple(name for i, name in enumerate(node.inputs) if i != position)
    if "epilogue" not in source.attrs or source.output in others:
        return None
    inputs = (*source.inputs, *others)
    try:
        stages = (*source.attrs["epilogue"].stages, *_stages(graph, shuffle, node, position))
        attrs = {**source.attrs, "epilogue": Epilogue(stages)}
        OPS[source.op].check(tuple(graph.types[name] for name in inputs), attrs)
    except GraphError:
        return None
    return Node(source.op, inputs, node.output, attrs, source.source)


def _stages(graph: Graph, shuffle: Node | None, node: Node, position: int) -> tuple[Stage, ...]:
    """The stages that compute a node, after a pixel_shuffle or not, from the value it reads at `position`."""
    q, attrs = graph.types[node.inputs[position]].q, node.attrs
    if node.op == "pixel_shuffle":
        return (PixelShuffle(attrs["upscale_factor"]),)
    assert q is not None
    match node.op:
        case "q8ta_add":
            own, other = (attrs[f"{name}_multiplier"] for name in ("ab" if position == 0 else "ba"))
            return (Add(attrs["lo"], attrs["hi"], q.zero, own, other, attrs["shift"]),)
        case "q8ta_mul":
            if graph.types[node.output].dtype != INT8X4:
                raise GraphError(f"a product that is fused into a sum must be int8, found {graph.types[node.output]}")
            return (Mul(attrs["lo"], attrs["hi"], q.zero, attrs["multiplier"]),)
        case "q8ta_table":
            return (Table(q.zero),)
        case _:
            moved = (PixelShuffle(shuffle.attrs["upscale_factor"]),) if shuffle else ()
            return (*moved, Dequantize(q.zero, q.scale))
