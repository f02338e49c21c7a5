"""Which sizes of its inputs a network computes numbers from: found by tracing it at other sizes."""

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
from q8ta_wgpu.frontend.importer.importer import import_piece
from q8ta_wgpu.frontend.nodes import named_arguments
from q8ta_wgpu.ir.graph import Array, Call, Graph, Node
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.resize import resized

Trace = Callable[[tuple[torch.Tensor, ...]], GraphModule]
"""The float graph of a module for example inputs."""

Place = tuple[int, int]
"""A dimension of an input: number of the input, number of the dimension."""

_FREE = (1, "")
"""Of a size that may be any other: it changes in steps of 1, and nothing is wrong then."""


def fixed_sizes(
    program: ExportedProgram,
    graph: GraphModule,
    trace: Trace,
    example: tuple[torch.Tensor, ...],
    dynamic: Container[Place],
) -> list[tuple[int, int, int, str]]:
    """The dimensions of inputs that cannot change freely: input, dimension, step (0: it cannot change at all), why.

    Where the imported graph takes other sizes, the module is traced with them, and must become that graph: all at once,
    then sizes that are equal together, then each by itself. `dynamic` are dimensions that may
    have any size already.
    """
    constants = program.graph_signature.inputs_to_lifted_tensor_constants
    first = import_piece(graph) if constants or any(map(_may_count, program.graph.nodes)) else None
    if not isinstance(first, Graph):
        return []
    network = _Network(first, trace, example)
    alike: dict[int, list[Place]] = {}
    for index, x in enumerate(example):
        for dim in range(x.dim()):
            if (index, dim) not in dynamic:
                alike.setdefault(x.shape[dim], []).append((index, dim))
    grown = {
        place: 2 * size + 1
        for size, places in alike.items()
        if network.resized(dict.fromkeys(places, 2 * size + 1))
        for place in places
    }
    free = grown if grown and network.is_right(grown) else {}
    found: dict[Place, tuple[int, str]] = {}
    for size, places in alike.items():
        together = places[0] in free or network.step(size, places, most=1) == _FREE
        for place in places:
            alone = network.step(size, [place]) if len(places) > 1 and not together else None
            found[place] = _FREE if together else alone or network.step(size, places) or _FREE
    return [(*place, step, why) for place, (step, why) in found.items() if why]


class _Network:
    """A network at other sizes."""

    def __init__(self, first: Graph, trace: Trace, example: tuple[torch.Tensor, ...]) -> None:
        self._first = first
        self._trace = trace
        self._example = example
        self._seen: dict[frozenset[tuple[Place, int]], tuple[str, bool]] = {}

    def resized(self, sizes: Mapping[Place, int]) -> Graph | None:
        """The graph at other sizes; None where it does not take them."""
        try:
            return resized(self._first, self._shapes(sizes))
        except GraphError:
            return None

    def is_right(self, sizes: Mapping[Place, int]) -> bool:
        """Whether the graph at other sizes is what the module becomes with them."""
        graph = self.resized(sizes)
        return graph is not None and not self._wrong(graph, sizes)[0]

    def step(self, size: int, places: Sequence[Place], most: int = 3) -> tuple[int, str] | None:
        """In which steps these dimensions may change, 0 for none, and what is wrong at other sizes. None where the
        graph takes none of the sizes tried, at most so many."""
        even = size & -size
        tried, why = 0, ""
        for other, step in {2 * size + 1: 1, size + even: even, 2 * size: size}.items():
            sizes = dict.fromkeys(places, other)
            if tried == most or (graph := self.resized(sizes)) is None:
                continue
            tried += 1
            wrong, is_number = self._wrong(graph, sizes)
            if not wrong:
                return (step, why) if why else _FREE
            why = why or (wrong if is_number else f"with {other}, {wrong}")
            if is_number:  # as it will at any size
                break
        return (0, why) if tried else None

    def _shapes(self, sizes: Mapping[Place, int]) -> list[Shape]:
        return [
            tuple(sizes.get((index, dim), size) for dim, size in enumerate(x.shape))
            for index, x in enumerate(self._example)
        ]

    def _wrong(self, graph: Graph, sizes: Mapping[Place, int]) -> tuple[str, bool]:
        """What the module does with inputs of these sizes that a graph does not, empty if nothing; and whether that is
        a matter of numbers alone."""
        given = frozenset(sizes.items())
        if given not in self._seen:
            self._seen[given] = self._traced_wrong(graph, sizes)
        return self._seen[given]

    def _traced_wrong(self, graph: Graph, sizes: Mapping[Place, int]) -> tuple[str, bool]:
        inputs = (x.new_zeros(shape) for x, shape in zip(self._example, self._shapes(sizes), strict=True))
        try:
            traced = import_piece(self._trace(tuple(inputs)))
        except Q8taError as error:
            return f"the module does not run ({printable(str(error))[:200]})", False
        return _difference(graph, traced) if isinstance(traced, Graph) else ("the module has other operators", False)


def _difference(first: Graph, second: Graph) -> tuple[str, bool]:
    """The first node that another graph has differently, empty if there is none, and whether its numbers differ, and
    neither operator nor shape."""
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
    """Whether a value of a graph is one of another graph."""
    if one not in first.constants or other not in second.constants:
        return names.get(one) == other
    return np.array_equal(first.constants[one], second.constants[other], equal_nan=True)


def _is_call(graph: Graph, a: Node, b: Node) -> bool:
    """Whether another call of the same operator gives the same; views may say it in another way."""
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
"""Arguments of torch's operators that no network computes from a size."""

_ENDS = {-1, 0, 1, 2**63 - 1}
"""Places and sizes that say all, or the first or last element."""


def _may_count(node: TorchNode) -> bool:
    """Whether a call has a number that may have been computed from a size of an input."""
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    if not isinstance(node.target, torch._ops.OpOverload) or not node.all_input_nodes:
        return True
    given = named_arguments(node)
    indices = given.get("indices")
    for index in indices if isinstance(indices, (tuple, list)) else (indices, given.get("index")):
        if isinstance(index, TorchNode) and len(index.meta["val"].shape) > 1:  # their rows are gathered as one list
            return True
    if str(node.target) == "aten.scaled_dot_product_attention.default":
        return given.get("scale") is None
    numbers = {name: {*_numbers(value)} for name, value in given.items() if name not in _NO_SIZES}
    windows = numbers.pop("kernel_size", set())
    if given.get("weight") is not None:
        numbers.pop("normalized_shape", None)
    factors = numbers.pop("other", set())
    extents = getattr(node.all_input_nodes[0].meta.get("val"), "shape", ())
    return bool(factors or windows.intersection(_numbers(extents))) or any(found - _ENDS for found in numbers.values())


def _numbers(value: Any) -> Iterator[Any]:
    for part in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(part, (int, float)) and not isinstance(part, bool):
            yield part
