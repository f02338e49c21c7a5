"""Computes nodes whose inputs are constants, such as arithmetic with shapes, by the reference evaluator of the package
onnx."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.shape_inference import infer_node_outputs

from q8ta_wgpu.errors import shown
from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.onnx_import import onnx_nodes

MOST_ELEMENTS = 1 << 27
"""Limit of elements of one computed constant. All of them together may have 8 times as many."""

_SLOW = dict.fromkeys(("GatherND", "ScatterND", "ScatterElements"), 64)
"""One element of an operator that is a loop in Python counts as so many elements of others."""

_MOST_NUMBERS = 64
"""Up to so many elements an operand may be a shape, repeats or padding, which says how large the result is."""

_COMPUTED = (
    "Concat Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Neg Abs Not "
    "Sqrt Reciprocal Exp Log Floor Ceil Round Sign Erf Sin Cos Tanh Sigmoid Relu CumSum ReduceProd ReduceSum "
    "ReduceMax ReduceMin ReduceMean ArgMax ArgMin Trilu IsNaN IsInf DepthToSpace Add Sub Mul Div Mod Pow Min Max "
    "Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor Where Clip BitwiseAnd BitwiseOr BitwiseXor BitShift Sum "
    "Mean PRelu Gather GatherElements GatherND ScatterND ScatterElements NonZero ConstantOfShape EyeLike Expand Tile "
    "Range Pad OneHot MatMul"
)

COMPUTED = frozenset(_COMPUTED.split())
"""Operators that are computed here."""


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

    def __init__(self) -> None:
        self.made = 0

    def run(self, node: onnx.NodeProto, arrays: Sequence[Array | None], opsets: Mapping[str, int]) -> list[Array]:
        """The results of a node. Raises RefusedError if they are too large or cannot be computed."""
        if node.op_type == "Range":  # exporters also give numbers of shape (1,)
            arrays = [a if a is None else a.reshape(()) for a in arrays]
        operands = [a for a in arrays if a is not None]
        outputs = next((a.i for a in node.attribute if a.name == "num_outputs"), len(node.output))
        if outputs != len(node.output):
            raise RefusedError(f"its num_outputs is {outputs}, and it has {len(node.output)}")
        model = onnx_nodes.alone(node, opsets, [onnx.TypeProto() if a is None else _type_of(a) for a in arrays])
        feeds = {name: a for name, a in zip(model.graph.node[0].input, arrays, strict=True) if a is not None}
        count = _work(model, feeds)
        self.made += count
        if count > MOST_ELEMENTS or self.made > 8 * MOST_ELEMENTS:
            raise RefusedError(
                f"it computes a constant of {count} elements, or takes as long: {MOST_ELEMENTS} at most are computed"
            )
        try:
            if node.op_type in _OWN:
                return [_OWN[node.op_type](node, operands)]
            with np.errstate(all="ignore"):
                found: Any = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # whatever the library meets in operands that do not fit
            raise RefusedError(f"its constant cannot be computed: {shown(str(error))}") from error
        return [np.asarray(array, order="C") for array in found]


def _type_of(array: Array) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx_nodes.dtype_of(array), array.shape)


def _work(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> int:
    """An upper bound of the elements that a node reads or writes. Raises RefusedError if its operands do not fit."""
    (node,), total = model.graph.node, sum(array.size for array in feeds.values())
    numbers = {n: onnx.numpy_helper.from_array(a) for n, a in feeds.items() if a.size <= _MOST_NUMBERS and a.ndim < 2}
    types = {port.name: port.type for port in model.graph.input if port.name}
    try:
        schema = onnx.defs.get_schema(node.op_type, model.opset_import[0].version)
        results = infer_node_outputs(schema, node, types, numbers, opset_imports=list(model.opset_import))
    except Exception as error:  # of the library's own code
        raise RefusedError(f"it computes a constant of operands that do not fit each other: {error}") from error
    dims = [[dim.dim_value for dim in found.tensor_type.shape.dim] for found in results.values()]
    factor = feeds["x0"].shape[-1] if node.op_type == "MatMul" and feeds["x0"].ndim else _SLOW.get(node.op_type, 1)
    return max(total, factor * sum(math.prod(n or total for n in each) for each in dims))
