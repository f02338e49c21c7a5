"""ExecuTorch Vulkan's own layout constraints over neutral graphs: what upstream's sweep is measured on.

An operator is a registration (set for each argument, set of the output), as upstream's `op_registry.py` has them.
int8 operators that upstream lacks run in float between dequantize and quantize, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import q8ta_wgpu.passes.layout_sync.tensor_repr as tr
from q8ta_wgpu.ir.layout import Layout, Shape, canonical, word_count
from q8ta_wgpu.passes.layout_sync.greedy import Registered, greedy
from q8ta_wgpu.passes.layout_sync.op_repsets import NodeShapes, OpRepSets
from q8ta_wgpu.passes.layout_sync.problem import Assignment, Choice, Option, Problem, undominated
from q8ta_wgpu.passes.layout_sync.tensor_repr import (
    PackedDimInfo,
    StorageType,
    TensorRepr,
    TensorRepSet,
    TensorRepSetList,
)

Sets = TensorRepSet | list[TensorRepSet]

FLOAT_CONV = tr.CHANNELS_PACKED_TEXTURE
FLOAT_SIDE = tr.CHANNELS_PACKED_TEXTURE_OR_CONTIGUOUS_BUFFER
CHANNELS = tr.PACKED_INT8_CHANNELS_PACKED_BUFFER

TABLE: dict[str, tuple[Sets, TensorRepSet]] = {
    "quantize": (FLOAT_SIDE, tr.PACKED_INT8_BUFFER),
    "dequantize": (tr.PACKED_INT8_BUFFER, FLOAT_SIDE),
    "conv": (tr.PACKED_INT8_CONV2D_BUFFER, CHANNELS),
    "dw": (tr.PACKED_INT8_CONV2D_BUFFER, CHANNELS),
    "pw": (tr.PACKED_INT8_4W4C_BUFFER, CHANNELS),
    "add": (tr.PACKED_INT8_BUFFER, tr.PACKED_INT8_BUFFER),
    "relu": (tr.PACKED_INT8_BUFFER, tr.PACKED_INT8_BUFFER),
    "pixel_shuffle": (CHANNELS, CHANNELS),
    "linear": (tr.PACKED_INT8_4H4W_BUFFER, tr.PACKED_INT8_4H4W_BUFFER),
    "gemv": (tr.PACKED_INT8_4W_BUFFER, tr.PACKED_INT8_4W_BUFFER),
    "pool": (FLOAT_CONV, FLOAT_CONV),
    "upsample": (FLOAT_CONV, FLOAT_CONV),
    "elementwise": (tr.ANY_STORAGE, tr.ANY_STORAGE),
    "cat": (tr.ANY_STORAGE, tr.ANY_STORAGE),
    "slice": (tr.ANY_STORAGE, tr.ANY_STORAGE),
    "softmax": (tr.ANY_TEXTURE, tr.ANY_TEXTURE),
    "layer_norm": (tr.ANY_TEXTURE, tr.ANY_TEXTURE),
    "matmul": (tr.CONTIGUOUS_ANY, tr.CONTIGUOUS_ANY),
}
FLOAT_ONLY: tuple[Sets, TensorRepSet] = (tr.ANY_STORAGE, tr.ANY_STORAGE)
UNIVERSAL: tuple[Sets, TensorRepSet] = (tr.ANY_STORAGE_INCL_PACKED_INT8, tr.ANY_STORAGE_INCL_PACKED_INT8)
"""What view and clone were registered with before and since upstream's #19395."""

GENERAL_FOR_POINTWISE = 2.0
"""How much slower the general kernel is than a matrix product on the same convolution: 14.2 ms against 6.8 ms for the
whole ResNet-50, upstream's #17568."""

DISPATCH = float(1 << 18)


def size(shape: Shape, quantized: bool, r: TensorRepr) -> int:
    """Bytes of a tensor in a representation: an element of an int8 tensor takes one byte, of a float one four."""
    if r.memory_layout is Layout.PACKED_INT8_CONV2D:
        return 4 * word_count(shape, Layout.PACKED_INT8_4C1W)
    if r.memory_layout.is_int8:
        return 4 * word_count(shape, r.memory_layout)
    extents = list(canonical(shape))
    if r.storage_type is StorageType.TEXTURE_3D:
        axis = 3 - r.memory_layout.value
        extents[axis] = -(-extents[axis] // 4) * 4
    return math.prod(extents) * (1 if quantized else 4)


@dataclass(frozen=True)
class NeutralNode:
    op: str
    inputs: tuple[str, ...]
    output: str


@dataclass
class Neutral:
    """A graph of operator names and shapes, without weights."""

    nodes: list[NeutralNode] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)
    quantized: set[str] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.shapes[name] = shape
        return name

    def add(self, op: str, *inputs: str, shape: Shape | None = None) -> str:
        """A node whose result is int8 if its input is, but at the borders; of the first input's shape by default."""
        name = f"{op}{len(self.nodes)}"
        self.shapes[name] = shape or self.shapes[inputs[0]]
        self.nodes.append(NeutralNode(op, inputs, name))
        if op == "quantize" or (op != "dequantize" and inputs[0] in self.quantized):
            self.quantized.add(name)
        return name

    def floats(self, op: str, *inputs: str, shape: Shape | None = None) -> str:
        """An operator without an int8 form: dequantize, the operator, quantize."""
        reals = [self.add("dequantize", name) for name in inputs]
        return self.add("quantize", self.add(op, *reals, shape=shape))

    def conv(self, x: str, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> str:
        """The convolution upstream would pick: a fused relu costs nothing."""
        n, c, h, w = self.shapes[x]
        op = "dw" if groups == c else "pw" if kernel == 1 and stride == 1 else "conv"
        return self.add(op, x, shape=(n, channels, -(-h // stride), -(-w // stride)))


def pick(sets: Sets) -> TensorRepSetList:
    return TensorRepSetList(sets)


def repsets(graph: Neutral, node: NeutralNode, views: tuple[Sets, TensorRepSet], op: str = "") -> OpRepSets:
    inputs, output = TABLE.get(op or node.op, views)
    shapes = NodeShapes(tuple((graph.shapes[name],) for name in node.inputs), (graph.shapes[node.output],), node.output)
    return OpRepSets(pick(inputs), pick(output), shapes)


def options(
    graph: Neutral, node: NeutralNode, views: tuple[Sets, TensorRepSet], op: str = "", factor: float = 1.0
) -> list[Option[TensorRepr]]:
    """The combinations that a registration, the node's own or that of `op`, allows; synced operands share packed
    dimension and block."""
    sets = repsets(graph, node, views, op)

    def bytes_of(name: str, r: TensorRepr) -> float:
        return factor * size(graph.shapes[name], name in graph.quantized, r)

    positions = range(len(node.inputs))
    found = []
    for out in sets.get_out_repset().reprs():
        classes: Sequence[PackedDimInfo | None] = [None]
        if sets.sync_primary_io_repr:
            classes = [PackedDimInfo.from_repr(out)]
        elif sets.sync_args_repr and len(node.inputs) > 1:
            classes = list(dict.fromkeys(map(PackedDimInfo.from_repr, sets.get_arg_repset(0).reprs())))
        for info in classes:
            synced = [sets.sync_args_repr or sets.influences_output(i) for i in positions]
            reads = tuple(
                {
                    r: bytes_of(node.inputs[i], r)
                    for r in sets.get_arg_repset(i).reprs()
                    if info is None or not synced[i] or _agrees(r, out, info, sets.sync_primary_io_repr)
                }
                for i in positions
            )
            if all(reads):
                found.append(Option(op or node.op, reads, out, factor * DISPATCH + bytes_of(node.output, out)))
    return found


def _agrees(r: TensorRepr, out: TensorRepr, info: PackedDimInfo, with_output: bool) -> bool:
    """Upstream compares packed-dim infos on each storage side by itself."""
    same_side = not with_output or r.storage_type is out.storage_type
    return PackedDimInfo.from_repr(r) == info and same_side


@dataclass(frozen=True)
class Fixture:
    """A neutral graph with upstream's constraints.

    Attributes:
        universal: whether view and clone take packed int8 layouts.
        free_kernels: whether a 1x1 convolution may also run as a general one.
    """

    graph: Neutral
    universal: bool = True
    free_kernels: bool = False

    @property
    def views(self) -> tuple[Sets, TensorRepSet]:
        return UNIVERSAL if self.universal else FLOAT_ONLY

    def problem(self) -> Problem[TensorRepr]:
        graph = self.graph

        def transition(name: str, a: TensorRepr, b: TensorRepr) -> float:
            shape, quantized = graph.shapes[name], name in graph.quantized
            return DISPATCH + size(shape, quantized, a) + size(shape, quantized, b)

        choices = []
        for node in graph.nodes:
            found = options(graph, node, self.views)
            if node.op == "pw" and self.free_kernels:
                found += options(graph, node, self.views, "conv", GENERAL_FOR_POINTWISE)
            choices.append(Choice(node.inputs, node.output, undominated(found)))
        free = {name: tuple(tr.ANY_STORAGE.reprs()) for name in graph.inputs}
        return Problem(tuple(choices), free, (), transition)

    def greedy(self, problem: Problem[TensorRepr]) -> Assignment[TensorRepr]:
        """Upstream's sweep over upstream's table."""
        graph = self.graph
        nodes = [Registered(n.inputs, n.output, (repsets(graph, n, self.views),)) for n in graph.nodes]
        picked, reads, free = [], [], dict[str, TensorRepr]()
        for node, choice, found in zip(graph.nodes, problem.choices, greedy(nodes, ()), strict=True):
            fitting = [
                o
                for o in choice.options
                if o.out == found.out and all(r in read for r, read in zip(found.reads, o.reads, strict=True))
            ]
            assert fitting, f"{node} picked {found}"
            picked.append(fitting[0])
            reads.append(found.reads)
            for name, r in zip(node.inputs, found.reads, strict=True):
                if name in graph.inputs and r is not None:
                    free.setdefault(name, r)
        return Assignment(tuple(picked), tuple(reads), free)
