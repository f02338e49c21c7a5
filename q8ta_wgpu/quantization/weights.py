"""The weights of a network on their steps, and biases corrected, by what calibration met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Call, Graph, Node, TensorType
from q8ta_wgpu.ir.int8 import WeightedSum
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.four_bits import Groups, grouped
from q8ta_wgpu.quantization.ranges import LARGEST_WEIGHT, scales_of_weights
from q8ta_wgpu.quantization.stored import Width
from q8ta_wgpu.quantization.weight_rounding import NUMPY, Algebra, Inputs, covariance_of, rounded

Steps = tuple[Array, Array, Array]
"""A weight in integers, the scale of each of its outputs, which come first, and zero points. The integers lie in the
order of a graph's constants, so that all graphs hold the same array, by which a run knows what did not change."""

Key = tuple[str, bool, Width]
"""A weight, whether it is fitted to what weighted sums read, and its width."""

LARGEST = {"int8": LARGEST_WEIGHT, "int16": 2**15 - 1}
"""Steps of the largest number of a row, by its width."""


@dataclass
class RoundedWeights:
    """Rounds weights, each once.

    Attributes:
        program: the float program.
        inputs: what weighted sums read in calibration, by their weights and outputs; empty where weights are not
            fitted. Sums that share a weight read one that is fitted to what all of them read.
        group: inputs that share a factor of a weight in 4 bits; 0 for weights in 8 bits.
        algebra: computes with matrices.
        found: weights that are rounded.
        biases: of weighted sums, by output.
    """

    program: FloatProgram
    inputs: Mapping[str, Mapping[str, Inputs]] = field(default_factory=dict)
    group: int = 0
    algebra: Algebra = NUMPY
    found: dict[Key, Steps] = field(default_factory=dict)
    biases: dict[str, Array] = field(default_factory=dict)

    def take(self, other: RoundedWeights) -> None:
        """Takes the weights and biases of the same program at other sizes of its inputs."""
        self.found.update(other.found)
        self.biases.update(other.biases)

    def table(self, name: str, width: Width) -> Steps:
        """A constant whose rows have a scale each."""
        return self._steps((name, False, width))

    def weight(self, node: Node) -> Steps:
        """The weight of a weighted sum, by what it reads."""
        name = node.inputs[1]
        return self._steps((name, name in self.inputs or (name, True, "int8") in self.found, "int8"))

    def bias(self, node: Node) -> Array | None:
        """The bias of a weighted sum where it is another one than in float."""
        inputs = self.inputs.get(node.inputs[1], {}).get(node.output)
        if node.output not in self.biases and inputs is not None and inputs.mean is not None:
            weight, bias = (self.program.graph.constants[name].astype(np.float64) for name in node.inputs[1:3])
            integers, scale, _ = self.weight(node)
            values = integers * scale.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
            moved = _moved(self.program.graph, node, inputs.mean, values - weight, self.algebra)
            changed = np.where(bias == 0, bias, bias - moved) if inputs.zeros else bias - moved
            self.biases[node.output] = changed.astype(np.float32)
        return self.biases.get(node.output)

    def _steps(self, key: Key) -> Steps:
        """A weight in integers, which is rounded once."""
        if key not in self.found:
            name, fitted, width = key
            met = [*self.inputs[name].values()] if fitted else []
            self.found[key] = self._rounded(name, width, covariance_of(met))
        return self.found[key]

    def _rounded(self, name: str, width: Width, covariance: Array | None) -> Steps:
        weight = self.program.graph.constants[name].astype(np.float64)
        if width == "int8" and self.in_groups(weight.shape):
            groups = grouped(weight, self.group)
            return _in_groups(weight, groups, covariance, self.algebra)
        steps = LARGEST[width]
        largest = np.abs(weight).max(tuple(range(1, weight.ndim)))
        scale = scales_of_weights(self._shared(name, largest), steps)
        step = scale.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))
        values = rounded(weight, step, (-steps, steps), covariance, self.algebra)
        integers = np.rint(values / step).astype(np.int8 if width == "int8" else np.int16, order="C")
        return integers, scale, np.zeros(len(scale), np.int32)

    def in_groups(self, shape: Sequence[int]) -> bool:
        """Whether a weight of this shape, or a table, has 4 bits."""
        return bool(self.group) and len(shape) == 2 and shape[1] >= self.group

    def _shared(self, name: str, largest: Array) -> Array:
        """The largest weight of each output, the same for outputs whose weights share a scale."""
        moved = self.program.moved.get(name)
        if moved is None:
            return largest
        shared = moved.shared(self.program.graph.types[name].shape)
        most = np.zeros(shared.max() + 1)
        np.maximum.at(most, shared, largest)
        return np.asarray(most[shared])


def _in_groups(weight: Array, groups: Groups, covariance: Array | None, algebra: Algebra) -> Steps:
    step = groups.steps(weight.shape[1])
    values = rounded(weight, step, groups.ends, covariance, algebra)
    integers = np.rint(values / groups.scales[:, None].astype(np.float64)).astype(np.int16, order="C")
    return integers, groups.scales, np.zeros(len(groups.scales), np.int32)


def counted_inputs(graph: Graph, node: Node, coarse: bool, algebra: Algebra) -> Inputs:
    """What a weighted sum reads, to be counted by calibration; `coarse` where its weight has 4 bits."""
    shape, attrs = graph.types[node.inputs[1]].shape, node.attrs
    if node.op != "conv2d":
        return Inputs(shape, [], 1, node.op == "linear", coarse, algebra)
    top, left, bottom, right = attrs["padding"]
    steps = list(zip(attrs["stride"], ((top, bottom), (left, right)), attrs["dilation"], strict=True))
    return Inputs(shape, steps, attrs["groups"], True, coarse, algebra)


def is_sum(graph: Graph, node: Node) -> bool:
    """Whether a node is a weighted sum with weights of the network."""
    return isinstance(OPS[node.op].int8, WeightedSum) and all(name in graph.constants for name in node.inputs[1:3])


def _moved(graph: Graph, node: Node, mean: Array, change: Array, algebra: Algebra) -> Array:
    """By how much a change of the weight moves each output on average."""
    channels = graph.types[node.inputs[2]].shape
    given = graph.call(node)
    types = (TensorType(mean.shape), TensorType(change.shape), TensorType(channels))
    shape = (1, *given.output.shape[-1 if node.op == "linear" else 1 :])
    call = Call(node.op, given.attrs, types, TensorType(shape, FLOAT32))
    found = algebra.sums(call, mean.astype(np.float32), change.astype(np.float32)).astype(np.float64)
    axis = found.ndim - 1 if node.op == "linear" else 1
    return np.asarray(found.mean(tuple(i for i in range(found.ndim) if i != axis)))
