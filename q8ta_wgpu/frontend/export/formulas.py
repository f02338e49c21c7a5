"""Inputs of more than one size: which numbers of a program follow from which sizes, and the program at other sizes.

torch.export has symbols for this, but traces fewer modules with them than without, and refuses what it cannot prove. So
a module is traced at several sizes. Where the programs differ only in integers, or in the slice of a table that they
read, these are formulas in the sizes, which all traces must agree on. Other differences are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, Q8taError, UnsupportedError, one_line, printable
from q8ta_wgpu.frontend.export.dimensions import Dimensions
from q8ta_wgpu.frontend.export.folding import parameters
from q8ta_wgpu.frontend.export.sized import Sized, arguments_at
from q8ta_wgpu.frontend.nodes import constant, source_of
from q8ta_wgpu.frontend.notes import SIZES, note, noted
from q8ta_wgpu.ir.size import UNBOUNDED, Point, Size, fitted, is_alike, leading_slice


def annotate(module: GraphModule, found: Dimensions, others: Sequence[GraphModule]) -> Dimensions:
    """Annotates the nodes of a program, traced at the first point, with formulas for the other sizes. Returns the
    dimensions. Tables may limit their symbols to the example's sizes.

    Raises UnsupportedError if the programs have different operators, or numbers without a formula.
    """
    modules = (module, *others)
    columns: list[list[Node]] = [list(m.graph.nodes) for m in modules]
    for point, nodes in zip(found.points, columns, strict=True):
        if len(nodes) != len(columns[0]):
            node = next((a for a, b in zip(columns[0], nodes, strict=False) if a.target != b.target), columns[0][-1])
            raise _refused(node, f"there are other operators with {_said(point)}")
    indices = [{node: i for i, node in enumerate(nodes)} for nodes in columns]
    ranges = dict(found.ranges)
    for row in zip(*columns, strict=True):
        if row[0].op == "get_attr":
            _annotate_constant(row, [constant(m, n) for m, n in zip(modules, row, strict=True)], found, ranges)
        elif row[0].op in ("call_function", "output"):
            _annotate_call(row, indices, found.points)
    inputs = module.graph.find_nodes(op="placeholder")
    for index, dim, terms in found.sizes:
        said = noted(inputs[index], SIZES, {}).get("input", [])
        note(inputs[index], SIZES, {"input": [*said, [dim, Size(terms, found.points[0]).plain]]})
    return replace(found, ranges=ranges)


def _annotate_call(row: Sequence[Node], node_indices: Sequence[Mapping[Node, int]], points: Sequence[Point]) -> None:
    """Annotates a call with the integers among its arguments that follow from sizes."""
    flat = [pytree.tree_flatten((node.args, node.kwargs)) for node in row]
    for node, point, (leaves, spec) in zip(row, points, flat, strict=True):
        if node.target != row[0].target or len(leaves) != len(flat[0][0]) or spec != flat[0][1]:
            raise _refused(row[0], f"it is another call with {_said(point)}")
    sizes: list[list[Any]] = []
    for index, values in enumerate(zip(*(leaves for leaves, _ in flat), strict=True)):
        if isinstance(values[0], Node):
            indices = {known[v] if isinstance(v, Node) else None for v, known in zip(values, node_indices, strict=True)}
            if len(indices) > 1:
                raise _refused(row[0], "it reads other values at other sizes")
        elif all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            size = fitted(points, values)
            if size is None:
                listed = ", ".join(f"{v} with {_said(p)}" for v, p in zip(values, points, strict=True))
                raise _refused(row[0], f"its argument is {listed}, which is no sum of multiples", _STEPS)
            if isinstance(size, Size):
                sizes.append([index, size.plain])
        elif any(v != values[0] for v in values):
            raise _refused(row[0], f"it computes with the number {values[0]} at one size, {values[1]} at another")
    if sizes:
        note(row[0], SIZES, {"call": str(row[0].target), "sizes": sizes})


def _annotate_constant(
    row: Sequence[Node], tensors: Sequence[Any], found: Dimensions, ranges: dict[str, tuple[int, int]]
) -> None:
    """Annotates a constant with its shape at other sizes, at which it must be a slice of the constant at the first.
    Symbols that nothing else bounds are limited to the sizes for which it has elements."""
    first, here = tensors[0], found.points[0]
    if not isinstance(first, Tensor) or all(x is first or (x.shape == first.shape and x.equal(first)) for x in tensors):
        return
    sizes = [fitted(found.points, extents) for extents in zip(*(x.shape for x in tensors), strict=True)]
    for x, point in zip(tensors, found.points, strict=True):
        if None in sizes or x.dtype != first.dtype or not x.equal(leading_slice(first, x.shape)):
            why = f"a table made for it holds other numbers with {_said(point)}"
            if None not in sizes and x.numel() > first.numel() and first.equal(leading_slice(x, first.shape)):
                why = f"a table made for it is larger with {_said(point)} than with {_said(here)}: {_LARGEST}"
            raise _refused(row[0], why)
    note(row[0], SIZES, {"shape": [size.plain if isinstance(size, Size) else [[size]] for size in sizes]})
    cut = [size for dim, size in enumerate(sizes) if isinstance(size, Size) and not is_alike(first, dim)]
    for symbol in {s for size in cut for symbols in size.terms for s in symbols}:
        low, high = ranges[symbol]
        if here[symbol] < high < UNBOUNDED:
            raise _refused(
                row[0],
                f"a table made for it has {tuple(first.shape)} elements with {_said(here)}, and {symbol} goes up to "
                f"{high}: {_LARGEST}",
            )
        ranges[symbol] = (low, here[symbol])


def check_points(
    module: torch.nn.Module,
    example: Sequence[Tensor],
    found: Dimensions,
    points: Sequence[Point],
    buffers: Sequence[str] = (),
) -> None:
    """Raises InputError or UnsupportedError unless a module runs at the sizes at which it will be traced. (torch's
    tracing would log the failure.) `buffers`: names of the last elements of the example, which are no inputs."""
    for point in points:
        try:
            module(*found.at(example, point))
        except Exception as error:
            raise _does_not_run(error, point, example, found, buffers) from error


def check_ends(
    module: torch.nn.Module, program: GraphModule, example: Sequence[Tensor], found: Dimensions
) -> Dimensions:
    """The dimensions with the lowest value of each symbol. Where none was given it is 1 if the program is right there,
    and else 2, as in torch.export.

    Raises UnsupportedError unless an annotated program gives the same results as its module, at the smallest sizes and
    at larger ones than the example's.
    """
    here = found.points[0]
    others = {s for s in found.free if here[s] > 1}
    found = found.from_two({s for s in others if not _is_right_at_one(module, program, example, found, {**here, s: 1})})
    least = {symbol: low for symbol, (low, _) in found.ranges.items()}
    if len(found.free) > 1 and not _is_right_at_one(module, program, example, found, least):
        found = found.from_two(others)
    for point in found.ends:
        _check_end(module, program, example, found, point)
    return found


def _is_right_at_one(
    module: torch.nn.Module, program: GraphModule, example: Sequence[Tensor], found: Dimensions, point: Point
) -> bool:
    """Whether a program is right at sizes that nobody asked for: there must be elements, and results that are
    numbers."""
    if min(map(min, filter(None, found.shapes([x.shape for x in example], point))), default=1) < 1:
        return False
    try:
        results = _check_end(module, program, example, found, point)
    except Q8taError:
        return False
    return not any(x.isnan().any() for x in results if isinstance(x, Tensor))


class _Traced(Sized):
    """Runs an annotated program. Raises UnsupportedError where a value has no elements, or another number of dimensions
    than in the trace, as a squeeze has at size 1: a graph of all sizes cannot follow that."""

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        found, traced = super().run_node(n), n.meta.get("val")
        if isinstance(found, Tensor) and isinstance(traced, Tensor):
            of_one_rank = found.dim() == traced.dim()
            if not of_one_rank or found.numel() < min(traced.numel(), 1):
                why = "no elements" if of_one_rank else "another number of dimensions"
                raise _refused(n, f"with {_said(self._point)} its result has {why}")
        return found


def _check_end(
    module: torch.nn.Module, program: GraphModule, example: Sequence[Tensor], found: Dimensions, point: Point
) -> list[Any]:
    """The results of an annotated program at a point. Raises UnsupportedError unless its module gives the same."""
    drawn = torch.Generator().manual_seed(0)
    shapes = found.shapes([x.shape for x in example], point)
    inputs = [_random(x, shape, drawn) for x, shape in zip(example, shapes, strict=True)]
    try:
        wanted = pytree.tree_leaves(module(*(x.clone() for x in inputs)))
        results: list[Any] = pytree.tree_leaves(_Traced(program).run(*inputs))
        alike = all(map(_is_near, wanted, results))
    except UnsupportedError:
        raise
    except Exception as error:
        raise _does_not_run(error, point, example, found) from error
    if not alike:
        raise UnsupportedError(
            f"the module does not follow the sizes that dynamic_shapes names: with {_said(point)} it computes "
            "something else. Name other sizes by Dim(min=..., max=...)"
        )
    return results


def _does_not_run(
    error: Exception, point: Point, example: Sequence[Tensor], found: Dimensions, buffers: Sequence[str] = ()
) -> Q8taError:
    """The error for a module that fails at a point. A likely cause is a dimension of the same size in the example, but
    not at the point, that dynamic_shapes omits, or gives another name, or that a buffer has, whose size stays."""
    said = f"with {_said(point)} the module does not run ({printable(one_line(error))})"
    named = {(i, d): terms for i, d, terms in found.sizes}
    shapes, inputs = found.shapes([x.shape for x in example], point), len(example) - len(buffers)
    for index, dim, terms in found.sizes:
        size, here = example[index].shape[dim], shapes[index][dim]
        alike = ((i, d) for i, x in enumerate(example) for d in range(x.dim()) if x.shape[d] == size)
        other = next((p for p in alike if named.get(p) != terms and shapes[p[0]][p[1]] != here), None)
        if other is not None and other[0] >= inputs:
            return InputError(
                f"{said}. Buffer {buffers[other[0] - inputs]} has the size {size} in dimension {other[1]}, as "
                f"dimension {dim} of example input {index} does, and keeps it: leave that dimension out of "
                "dynamic_shapes"
            )
        if other is not None:
            return InputError(
                f"{said}. Dimension {dim} of example input {index} and dimension {other[1]} of example input "
                f"{other[0]} both have the size {size}, and dynamic_shapes does not say the same of them: give both "
                "one torch.export.Dim where the module needs them equal"
            )
    return UnsupportedError(
        f"the module does not follow the sizes that dynamic_shapes names: {said}. Name other sizes by Dim(min=..., "
        "max=...)"
    )


def _random(like: Tensor, shape: Sequence[int], drawn: torch.Generator) -> Tensor:
    """An input of other sizes: numbers as large as the example's, or elements of it."""
    if like.is_floating_point():
        return torch.randn(list(shape), generator=drawn) * (like.std() if like.numel() > 1 else 1.0) + like.mean()
    return like.flatten()[torch.randint(like.numel(), list(shape), generator=drawn)]


def _is_near(wanted: Any, found: Any) -> bool:
    """Whether two results are equal except for the order of sums. Elements of which a module says nothing, NaN, count
    as equal: a row that a random mask covers as a whole has them, by some of torch's forms of attention."""
    if not isinstance(wanted, Tensor):
        return True
    if wanted.shape != found.shape:
        return False
    said = ~wanted.isnan()
    wanted, found = wanted[said], found[said]
    finite = wanted[wanted.isfinite()]
    scale = float(finite.abs().max()) if wanted.is_floating_point() and finite.numel() else 1.0
    return torch.allclose(wanted.double(), found.double(), rtol=1e-3, atol=1e-4 * max(scale, 1e-30))


def _said(point: Point) -> str:
    return ", ".join(f"{symbol} = {value}" for symbol, value in point.items())


_LARGEST = "quantize with example_inputs of the largest size, which Dim(max=...) says"

_STEPS = ', or name sizes that divide without a rest, as 4 * Dim("h")'


def _refused(node: Node, why: str, way: str = "") -> UnsupportedError:
    where = source_of(node) or node.name
    return UnsupportedError(
        f"{printable(str(node.target))} at {where} does not follow the sizes that dynamic_shapes names: {why}. Leave "
        f"that dimension out, or compute with the sizes of tensors{way}"
    )


def at(program: ExportedProgram, found: Dimensions, point: Point) -> ExportedProgram:
    """An annotated program for inputs of other sizes."""
    graph, nodes = Graph(), dict[Node, Node]()
    targets = {spec.arg.name: str(spec.target) for spec in program.graph_signature.input_specs}
    tensors = parameters(program).items()
    known = {node: found.table_slice(targets[node.name], tensor, point) for node, tensor in tensors}
    state = {**program.state_dict, **{targets[node.name]: tensor for node, tensor in known.items()}}
    inputs = [n for n in program.graph.find_nodes(op="placeholder") if n not in known]
    fake = inputs[0].meta["val"].fake_mode
    shapes = iter(found.shapes([n.meta["val"].shape for n in inputs], point))
    with fake:
        for node in program.graph.nodes:
            made = nodes[node] = graph.node_copy(node, nodes.__getitem__)
            made.meta = dict(node.meta)
            if node in known:
                made.meta["val"] = fake.from_tensor(known[node], static_shapes=True)
            elif node.op == "placeholder":
                made.meta["val"] = torch.empty(next(shapes), dtype=node.meta["val"].dtype)
            elif node.op == "call_function":
                made.args, made.kwargs = torch.fx.map_arg(arguments_at(node, point), nodes.__getitem__)
                args, kwargs = torch.fx.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
                try:
                    made.meta["val"] = made.target(*args, **kwargs)  # type: ignore[operator]
                except Exception as error:
                    why = printable(one_line(error))
                    raise _refused(node, f"with {_said(point)} it does not run ({why})") from error
    module = GraphModule(program.graph_module, graph)
    module.meta["custom"] = program.graph_module.meta.get("custom", {})
    return ExportedProgram(
        module,
        graph,
        program.graph_signature,
        state,
        {},
        program.module_call_graph,
        program.example_inputs,
        program.constants,
    )
