"""Finds the sizes of its inputs from which a network computes numbers, by tracing it at other sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx import Node as TorchNode

from q8ta_wgpu.errors import GraphError, Q8taError, printable
from q8ta_wgpu.frontend.importer.importer import import_whole
from q8ta_wgpu.frontend.nodes import named_arguments
from q8ta_wgpu.frontend.numbers import has_equal_numbers
from q8ta_wgpu.ir.graph import Array, Call, Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.resize import resized

Trace = Callable[[tuple[torch.Tensor, ...]], GraphModule]
"""The float graph of a module for example inputs."""

InputDim = tuple[int, int]
"""A dimension of an input: number of the input, number of the dimension."""


def fixed_sizes(
    program: ExportedProgram,
    first: Graph,
    module: torch.nn.Module | None,
    trace: Trace,
    example: tuple[torch.Tensor, ...],
    dynamic: Container[InputDim],
) -> list[tuple[int, int, int, str]]:
    """The dimensions of inputs that cannot change freely: (input, dimension, step, reason). Step 0: it cannot change at
    all.

    If `first`, the imported graph, can be reshaped to other sizes, the module must compute with the same numbers at
    them, or give that graph where it is traced with them. All sizes are changed at once, to odd ones. Where that is
    wrong, those that are equal are changed together, to an odd size and to the next one with as many factors of 2.
    `dynamic` are dimensions that are known to have any size. `module` is the one that is traced, if it has no states.
    """
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    if not constants and not any(map(_may_count, program.graph.nodes)):
        return []
    network = _Network(first, module, trace, example)
    alike: dict[int, list[InputDim]] = {}
    for index, x in enumerate(example):
        for dim in range(x.dim()):
            if (index, dim) not in dynamic:
                alike.setdefault(x.shape[dim], []).append((index, dim))
    grown = {
        d: _odd(size) for size, dims in alike.items() for d in dims if network.takes(dict.fromkeys(dims, _odd(size)))
    }
    if grown and network.takes(grown) and not network.wrong(grown)[0]:
        alike = {size: dims for size, dims in alike.items() if dims[0] not in grown}
    found = ((dims, *network.step(size, dims)) for size, dims in alike.items())
    return [(*each, step, why) for dims, step, why in found if why for each in dims]


def _odd(size: int) -> int:
    return 2 * size + 1


class _Network:
    """A network at other sizes."""

    def __init__(
        self, first: Graph, module: torch.nn.Module | None, trace: Trace, example: tuple[torch.Tensor, ...]
    ) -> None:
        self._first, self._module = first, module
        self._trace = trace
        self._example = example

    def takes(self, sizes: Mapping[InputDim, int]) -> bool:
        """Whether the graph can be reshaped to other sizes."""
        try:
            resized(self._first, self._shapes(sizes))
        except GraphError:
            return False
        return True

    def step(self, size: int, dims: Sequence[InputDim]) -> tuple[int, str]:
        """The step by which these dimensions may change (0 for none), and the reason against other sizes; empty if
        there is none, or the graph cannot be reshaped to any."""
        even, found = size & -size, ""
        for other, step in ((_odd(size), 1), (size + even, even)):
            sizes = dict.fromkeys(dims, other)
            if not self.takes(sizes):
                continue
            wrong, is_number = self.wrong(sizes)
            if not wrong:
                return step, found
            found = found or (wrong if is_number else f"with {other}, {wrong}")
            if is_number:  # the same at any size
                break
        return 0, found

    def wrong(self, sizes: Mapping[InputDim, int]) -> tuple[str, bool]:
        """The node of the module traced at these sizes that differs from the graph at them, empty if none, and whether
        only numbers differ."""
        shapes = self._shapes(sizes)
        graph = resized(self._first, shapes)
        if self._module is not None and has_equal_numbers(self._module, self._example, self._first, graph):
            return "", False
        inputs = (x.new_zeros(shape) for x, shape in zip(self._example, shapes, strict=True))
        try:
            traced = import_whole(self._trace(tuple(inputs)))
        except Q8taError as error:
            return f"the module does not run ({printable(str(error))[:200]})", False
        return _difference(graph, traced)

    def _shapes(self, sizes: Mapping[InputDim, int]) -> list[Shape]:
        return [
            tuple(sizes.get((index, dim), size) for dim, size in enumerate(x.shape))
            for index, x in enumerate(self._example)
        ]


def _difference(first: Graph, second: Graph) -> tuple[str, bool]:
    """The first node that differs in another graph, empty if there is none, and whether only its numbers differ, not
    its operator or shape."""
    names = dict(zip(first.inputs, second.inputs, strict=True))
    for a, b in zip(first.nodes, second.nodes, strict=False):
        alike = a.op == b.op and len(a.inputs) == len(b.inputs) and first.types[a.output] == second.types[b.output]
        pairs = zip(a.inputs, b.inputs, strict=False)
        if not alike or not all(_is_value(first, second, names, *pair) for pair in pairs) or not _is_call(first, a, b):
            found = "holds numbers computed from it" if alike else "is something else then"
            return f"{a.output}{a.origin} {found}", alike
        names[a.output] = b.output
    return ("" if len(first.nodes) == len(second.nodes) else "the module has more or fewer operators"), False


def _is_value(first: Graph, second: Graph, names: Mapping[str, str], one: str, other: str) -> bool:
    """Whether a value of a graph corresponds to one of another graph."""
    if one not in first.constants or other not in second.constants:
        return names.get(one) == other
    return np.array_equal(first.constants[one], second.constants[other], equal_nan=True)


def _is_call(graph: Graph, a: Node, b: Node) -> bool:
    """Whether another call of the same operator has the same result. Views may express it by other arguments."""
    if a.attrs == b.attrs:
        return True
    call = graph.call(a)
    arrays = [graph.constants.get(name, _numbered(graph.types[name].shape)) for name in a.inputs]
    one, other = (OPS[a.op].reference(c, arrays) for c in (call, Call(b.op, b.attrs, call.inputs, call.output)))
    return np.array_equal(one, other, equal_nan=True)


def _numbered(shape: Shape) -> Array:
    return (np.arange(int(np.prod(shape))) % 8191 + 1).astype(np.float32).reshape(shape)


_NO_SIZES = frozenset(
    """dim dims dim0 dim1 start_dim end_dim stride padding dilation output_padding groups num_groups eps keepdim chunks
    ceil_mode training momentum exponent scale_factors upscale_factor downscale_factor p approximate negative_slope
    alpha beta min_val max_val""".split()  # noqa: SIM905
)
"""Arguments of torch's operators that are never computed from a size."""

_ENDS = {-1, 0, 1, 2**63 - 1}
"""Indices and sizes that mean all elements, or the first or last one."""


def _may_count(node: TorchNode) -> bool:
    """Whether a call has a number that may have been computed from a size of an input."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload) or not node.all_input_nodes:
        return True
    arguments = named_arguments(node)
    indices = arguments.get("indices")
    for index in indices if isinstance(indices, (tuple, list)) else (indices, arguments.get("index")):
        if (
            isinstance(index, TorchNode) and len(index.meta["val"].shape) > 1
        ):  # rows of such indices are gathered as one list
            return True
    if str(node.target) == "aten.scaled_dot_product_attention.default":
        return arguments.get("scale") is None
    numbers = {name: {*_numbers(value)} for name, value in arguments.items() if name not in _NO_SIZES}
    windows = numbers.pop("kernel_size", set())
    if arguments.get("weight") is not None:
        numbers.pop("normalized_shape", None)
    factors = numbers.pop("other", set())
    extents = getattr(node.all_input_nodes[0].meta.get("val"), "shape", ())
    return bool(factors or windows.intersection(_numbers(extents))) or any(found - _ENDS for found in numbers.values())


def _numbers(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            yield item
