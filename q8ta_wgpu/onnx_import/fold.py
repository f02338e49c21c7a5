"""Computes nodes whose inputs are constants, such as arithmetic with shapes, by the reference evaluator of the package
onnx."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from q8ta_wgpu.errors import shown
from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.ir.graph import Array

MOST_ELEMENTS = 1 << 27
"""Limit of elements of one computed constant. All of them together may have 8 times as many."""

Count = Callable[[Sequence[Array]], int]


def _total(arrays: Sequence[Array]) -> int:
    return sum(a.size for a in arrays)


def _broadcast(arrays: Sequence[Array]) -> int:
    return math.prod(np.broadcast_shapes(*(a.shape for a in arrays)))


def _whole(array: Array) -> list[int]:
    """Entries of a shape, repeats or padding. Negative ones count as 0, so that a result is not underestimated."""
    return [max(int(n), 0) for n in array.reshape(-1)]


def _expanded(arrays: Sequence[Array]) -> int:
    return max(arrays[0].size, 1) * math.prod(max(n, 1) for n in _whole(arrays[1]))


def _ranged(arrays: Sequence[Array]) -> int:
    start, limit, delta = (float(a.reshape(-1)[0]) for a in arrays)
    return math.ceil((limit - start) / delta) if delta else MOST_ELEMENTS + 1


def _padded(arrays: Sequence[Array]) -> int:
    largest = sum(_whole(arrays[1]))
    return math.prod(n + largest for n in arrays[0].shape)


def _gathered(arrays: Sequence[Array]) -> int:
    return arrays[1].size * arrays[0].size // min((n for n in arrays[0].shape if n), default=1)


_AS_LARGE = (
    "Cast CastLike Concat Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Shape Size Neg Abs Not "
    "Sqrt Reciprocal Exp Log Floor Ceil Round Sign Erf Sin Cos Tanh Sigmoid Relu CumSum ReduceProd ReduceSum "
    "ReduceMax ReduceMin ReduceMean ArgMax ArgMin Trilu IsNaN IsInf DepthToSpace"
)
"""Operators whose results have at most as many elements as all operands together."""

_BROADCASTS = (
    "Add Sub Mul Div Mod Pow Min Max Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Where Clip BitwiseAnd "
    "BitwiseOr BitwiseXor BitShift Sum Mean PRelu"
)

_SLOW = 64
"""One element of an operator that is a loop in Python counts as so many elements of others."""

_COUNTS: dict[str, Count] = {
    **dict.fromkeys(_AS_LARGE.split(), _total),
    **dict.fromkeys(_BROADCASTS.split(), _broadcast),
    "Gather": _gathered,
    "GatherElements": _total,
    "GatherND": lambda arrays: _SLOW * _gathered(arrays),
    "ScatterND": lambda arrays: _SLOW * _total(arrays),
    "ScatterElements": lambda arrays: _SLOW * _total(arrays),
    "NonZero": lambda arrays: arrays[0].size * max(arrays[0].ndim, 1),
    "ConstantOfShape": lambda arrays: math.prod(_whole(arrays[0])),
    "EyeLike": _total,
    "Expand": _expanded,
    "Tile": _expanded,
    "Range": _ranged,
    "Pad": _padded,
    "OneHot": lambda arrays: arrays[0].size * max(_whole(arrays[1]), default=0),
    "MatMul": lambda arrays: max(arrays[0].size, 1) * max(arrays[1].shape[-1:], default=1),
}
"""Operators that are computed here, with an upper bound of their work in elements."""


def _elements(node: onnx.NodeProto, arrays: Sequence[Array]) -> Array:
    """GatherElements. The package's own implementation loops up to indices, even if they are out of range."""
    (data, index), axis = arrays, next((a.i for a in node.attribute if a.name == "axis"), 0)
    within = tuple(slice(None if d == axis % data.ndim else n) for d, n in enumerate(index.shape))
    return np.take_along_axis(data[within], index, axis)


def _unsqueezed(node: onnx.NodeProto, arrays: Sequence[Array]) -> Array:
    """Unsqueeze. The package's own implementation of old opsets takes axes in ascending order alone."""
    axes = arrays[1].reshape(-1) if len(arrays) > 1 else next(a.ints for a in node.attribute if a.name == "axes")
    return np.expand_dims(arrays[0], tuple(int(axis) for axis in axes))


_OWN: dict[str, Callable[[onnx.NodeProto, Sequence[Array]], Array]] = {
    "GatherElements": _elements,
    "Unsqueeze": _unsqueezed,
}


class Folder:
    """Computes nodes of constants, within a limit of work."""

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self.made = 0

    def takes(self, node: onnx.NodeProto) -> bool:
        """Whether a node may be computed here."""
        return node.domain in ("", "ai.onnx") and node.op_type in _COUNTS

    def run(self, node: onnx.NodeProto, arrays: Sequence[Array | None]) -> list[Array]:
        """The results of a node. Raises RefusedError if they are too large or cannot be computed."""
        operands = [a for a in arrays if a is not None]
        outputs = next((a.i for a in node.attribute if a.name == "num_outputs"), len(node.output))
        if outputs != len(node.output):
            raise RefusedError(f"its num_outputs is {outputs}, and it has {len(node.output)}")
        try:
            count = _COUNTS[node.op_type]([*operands, *(np.array(a.ints) for a in node.attribute if a.name == "pads")])
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise RefusedError(f"it computes a constant of operands that do not fit each other: {error}") from error
        self.made += count
        if count > MOST_ELEMENTS or self.made > 8 * MOST_ELEMENTS:
            raise RefusedError(
                f"it computes a constant of {count} elements, or takes as long: {MOST_ELEMENTS} at most are computed"
            )
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
        copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, attribute=node.attribute)
        copy.output.extend(f"y{i}" for i in range(len(node.output)))
        feeds = {name: array for name, array in zip(names, arrays, strict=True) if name}
        graph = onnx.GraphProto(node=[copy], name=node.op_type)
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in feeds)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in copy.output)
        # A whole model, since of a node alone the evaluator ignores the opset.
        model = onnx.ModelProto(ir_version=onnx.IR_VERSION, opset_import=self._opsets, graph=graph)
        try:
            if node.op_type in _OWN:
                return [_OWN[node.op_type](node, operands)]
            with np.errstate(all="ignore"):
                found: Any = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # whatever the library meets in operands that do not fit
            raise RefusedError(f"its constant cannot be computed: {shown(str(error))}") from error
        return [np.asarray(array, order="C") for array in found]
