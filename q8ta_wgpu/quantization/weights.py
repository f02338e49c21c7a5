"""The weights of weighted sums on their steps, and their biases corrected, by what calibration met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Call, Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.float_program import Moved
from q8ta_wgpu.quantization.ranges import LARGEST_WEIGHT, scales_of_weights
from q8ta_wgpu.quantization.weight_rounding import Inputs, rounded


class RoundedWeights:
    """Rounds the weights of weighted sums, each once.

    Args:
        graph: the float graph.
        inputs: what sums read in calibration, by their outputs; empty where weights are not fitted.
        moved: constants that are others in another order: outputs whose weights share a scale there do so here.
        known: weights that are rounded already.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Inputs],
        moved: Mapping[str, Moved] = MappingProxyType({}),
        known: Mapping[str, Sequence[Array]] = MappingProxyType({}),
    ) -> None:
        self.graph, self.inputs, self.moved = graph, inputs, moved
        self.found: dict[str, Sequence[Array]] = dict(known)

    def __call__(self, node: Node) -> Sequence[Array]:
        """The weight in int8, its scale, zero point, and the bias of a weighted sum."""
        if node.output not in self.found:
            self.found[node.output] = self._rounded(node)
        return self.found[node.output]

    def _rounded(self, node: Node) -> Sequence[Array]:
        graph, inputs = self.graph, self.inputs.get(node.output)
        weight, bias = (graph.constants[name].astype(np.float64) for name in node.inputs[1:3])
        largest = np.abs(weight).max(tuple(range(1, weight.ndim)))
        if (order := self.moved.get(node.inputs[1])) is not None:
            shared = order.shared(weight.shape)
            most = np.zeros(shared.max() + 1)
            np.maximum.at(most, shared, largest)
            largest = most[shared]
        scale = scales_of_weights(largest, LARGEST_WEIGHT)
        step = scale.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
        ends = (-LARGEST_WEIGHT, LARGEST_WEIGHT)
        values = rounded(weight, step, ends, inputs.covariance() if inputs is not None else None)
        if inputs is not None and inputs.mean is not None:
            moved = _moved(graph, node, inputs.mean, values - weight)
            bias = np.where(bias == 0, bias, bias - moved) if inputs.zeros else bias - moved
        steps = np.rint(values / step).astype(np.int8)
        given = graph.constants[node.inputs[2]] if inputs is None else bias.astype(np.float32)
        return steps, scale, np.zeros(len(scale), np.int32), given


def counted_inputs(graph: Graph, node: Node) -> Inputs:
    """What a weighted sum reads, to be counted by calibration."""
    shape, attrs = graph.types[node.inputs[1]].shape, node.attrs
    if node.op != "conv2d":
        return Inputs(shape, [], 1, told=node.op == "linear")
    top, left, bottom, right = attrs["padding"]
    pads = ((top, bottom), (left, right))
    return Inputs(shape, list(zip(attrs["stride"], pads, attrs["dilation"], strict=True)), attrs["groups"], told=True)


def _moved(graph: Graph, node: Node, mean: Array, change: Array) -> Array:
    """By how much a change of the weight moves each output on average."""
    channels = graph.types[node.inputs[2]].shape
    given = graph.call(node)
    types = (TensorType(mean.shape), TensorType(change.shape), TensorType(channels))
    shape = (1, *given.output.shape[-1 if node.op == "linear" else 1 :])
    arrays = (mean.astype(np.float32), change.astype(np.float32), np.zeros(channels, np.float32))
    call = Call(node.op, given.attrs, types, TensorType(shape, FLOAT32))
    found = np.asarray(OPS[node.op].reference(call, arrays)).astype(np.float64)
    axis = found.ndim - 1 if node.op == "linear" else 1
    return np.asarray(found.mean(tuple(i for i in range(found.ndim) if i != axis)))
