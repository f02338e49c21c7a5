"""Graphs for inputs of any size in a range: how one is made from graphs at some sizes, and stored in a model file.

A point gives each symbol of the sizes a value, for example `{"height": 224}`. Attributes that depend on sizes are
formulas in the symbols (`ir.size.Size`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.ir.size import Dynamic, Point, Size, Table, at_point, fitted, leading_slice
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.fields import get, known, name_of
from q8ta_wgpu.model.verify import MAX_ELEMENTS


def joined(
    graphs: Sequence[Graph], points: Sequence[Point], dynamic: Dynamic, largest: Callable[[], Graph] | None = None
) -> Graph:
    """The first graph, with formulas instead of numbers that depend on sizes, and with tables that are read in part.

    Args:
        graphs: the graphs of one program at each of the points.
        points: values of the symbols. No size is larger than at the first point.
        dynamic: symbols, and sizes of the inputs.
        largest: makes the graph at the largest sizes. It is used for attributes that are bounds, such as the largest
            index. None if sizes have no upper limit.

    Raises GraphError if the graphs differ in anything but integers in attributes and the part of a table that is read.
    """
    first = graphs[0].copy()
    names: list[dict[str, str]] = [dict(zip(first.inputs, graph.inputs, strict=True)) for graph in graphs]
    tables: dict[str, Table] = {}
    most: Graph | None = None
    for index, node in enumerate(first.nodes):
        others = [graph.nodes[index] if index < len(graph.nodes) else None for graph in graphs]
        for other, graph, named, point in zip(others, graphs, names, points, strict=True):
            if other is None or other.op != node.op or len(graph.nodes) != len(first.nodes):
                raise GraphError(f"{node.output}{node.origin} is another operator with {_said(point)}")
            for one, two in zip(node.inputs, other.inputs, strict=True):
                if (one in first.constants) != (two in graph.constants) or named.setdefault(one, two) != two:
                    raise GraphError(f"{node.output}{node.origin} reads other values with {_said(point)}")
            named[node.output] = other.output
        for name in node.inputs:
            if name in first.constants and name not in tables:
                arrays = [graph.constants[named[name]] for graph, named in zip(graphs, names, strict=True)]
                if (shape := _shape(f"{node.output}{node.origin}", arrays, points)) is not None:
                    tables[name] = Table(first.constants[name], shape)
        attrs = {key: _attribute([o.attrs[key] for o in others if o], points) for key in node.attrs}
        for key in (key for key, value in attrs.items() if value is None and node.attrs[key] is not None):
            if key not in OPS[node.op].bounds:
                raise GraphError(f"{node.output}{node.origin}: {key} is no formula in the sizes")
            attrs[key] = node.attrs[key]
            if any(high > points[0][symbol] for symbol, (_, high) in dynamic.symbols.items()):
                most = most or (largest() if largest else None)
                if most is None or len(most.nodes) != len(first.nodes) or most.nodes[index].op != node.op:
                    raise GraphError(
                        f"{node.output}{node.origin}: {key} is only valid up to {_said(points[0])}. Give an example of "
                        "the largest sizes, and state them by Dim(max=...)"
                    )
                attrs[key] = most.nodes[index].attrs[key]
        first.nodes[index] = replace(node, attrs=attrs)
    for name in first.inputs:
        fixed = {dim: said for dim, said in first.values[name].fixed.items() if (name, dim) not in dynamic.inputs}
        first.values.set(name, fixed=fixed)
    first.dynamic = Dynamic(dynamic.symbols, dynamic.inputs, tables)
    return first


def _said(point: Point) -> str:
    return ", ".join(f"{symbol} = {value}" for symbol, value in point.items())


def _attribute(values: Sequence[Any], points: Sequence[Point]) -> Any:
    """An attribute that has these values at these points, if need be as a formula; None if there is none."""
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values):
        return first
    if all(isinstance(v, (int, float)) and not isinstance(v, bool) and float(v).is_integer() for v in values):
        return fitted(points, [int(v) for v in values])
    if all(isinstance(v, (tuple, list)) and len(v) == len(first) for v in values):
        elements = [_attribute(element, points) for element in zip(*values, strict=True)]
        return None if None in elements else tuple(elements)
    return None


def _shape(where: str, arrays: Sequence[Array], points: Sequence[Point]) -> tuple[int, ...] | None:
    """The shape, as formulas, of the leading part of a table that is read at each point; None of a constant that is
    always the same. Raises GraphError for other constants."""
    first = arrays[0]
    if all(array.shape == first.shape and np.array_equal(array, first, equal_nan=True) for array in arrays):
        return None
    found = [fitted(points, extents) for extents in zip(*(array.shape for array in arrays), strict=True)]
    for array, point in zip(arrays, points, strict=True):
        slice_ = leading_slice(first, array.shape) if first.ndim == array.ndim else first
        if None in found or slice_.shape != array.shape or not np.array_equal(slice_, array, equal_nan=True):
            raise GraphError(f"{where} computes with other numbers with {_said(point)}")
    return tuple(size for size in found if size is not None)


def at(graph: Graph, point: Point) -> Graph:
    """A copy of a graph with the attributes and tables that it has at a point. `resized` then computes the shapes."""
    found = graph.copy()
    found.nodes = [
        replace(node, attrs={key: at_point(value, point) for key, value in node.attrs.items()}) for node in graph.nodes
    ]
    for name, table in graph.dynamic.tables.items():
        found.constants[name] = table.at(point)
        found.types[name] = replace(graph.types[name], shape=found.constants[name].shape)
    return found


_MOST = 1 << 24
"""Limit of elements to which a small table may grow when a file is read."""

MAX_TERMS = 16
"""Limit of terms in a size, and of symbols in a graph."""


def plain_dynamic(dynamic: Dynamic) -> dict[str, Any]:
    """The entry "dynamic" of a model file, in a dict; empty for a graph with inputs of one size."""
    if not dynamic:
        return {}
    symbols = [{"symbol": name, "low": low, "high": high} for name, (low, high) in dynamic.symbols.items()]
    sizes = [{"input": name, "dim": dim, "size": size.plain} for (name, dim), size in dynamic.inputs.items()]
    tables = [{"name": name, "shape": plain_size(table.shape)} for name, table in dynamic.tables.items()]
    return {"dynamic": {"symbols": symbols, "sizes": sizes, "tables": tables}}


def plain_size(value: Any) -> Any:
    """A number, a size, or a list of them, as JSON."""
    if isinstance(value, (tuple, list)):
        return [plain_size(part) for part in value]
    return {"size": value.plain} if isinstance(value, Size) else value


def read_size(value: Any, where: str, point: Point) -> Any:
    """An attribute from JSON, a number or a size. Raises GraphError for anything else."""
    if not isinstance(value, dict):
        return value
    known(value, ("size",), where)
    return _size(get(value, "size", list, where), where, point)


def _size(terms: list[Any], where: str, point: Point) -> Size:
    rows = [term for term in terms if isinstance(term, list) and 1 <= len(term) <= len(point) + 1]
    if len(rows) != len(terms) or not 1 <= len(terms) <= MAX_TERMS:
        raise GraphError(f"{where}: a size has 1 to {MAX_TERMS} terms, each a number and symbols, found {len(terms)}")
    for number, *symbols in rows:
        if type(number) is not int or abs(number) > MAX_ELEMENTS or any(s not in point for s in map(str, symbols)):
            raise GraphError(f"{where}: a term of a size is an integer and symbols of the graph")
    return Size.of(rows, point)


def read_dynamic(data: Any, graph: Graph) -> Point:
    """Reads the entry "dynamic" of a model file into a graph, whose inputs, types and full constants are known. Returns
    the values of the symbols at the graph's own sizes. Raises GraphError."""
    where = "dynamic"
    known(data, ("symbols", "sizes", "tables"), where)
    ranges: dict[str, tuple[int, int]] = {}
    for entry in get(data, "symbols", list, where):
        known(entry, ("symbol", "low", "high"), "a symbol")
        low, high = get(entry, "low", int, "a symbol"), get(entry, "high", int, "a symbol")
        if not 1 <= low <= high <= MAX_ELEMENTS:
            raise GraphError(f"a symbol goes from 1 on to at most {MAX_ELEMENTS}, found {low} to {high}")
        ranges[name_of(get(entry, "symbol", str, "a symbol"))] = (low, high)
    if not 1 <= len(ranges) <= MAX_TERMS:
        raise GraphError(f"a graph with dynamic sizes has 1 to {MAX_TERMS} symbols, found {len(ranges)}")
    inputs = dict(_input_size(entry, graph, ranges) for entry in get(data, "sizes", list, where))
    dynamic = Dynamic(ranges, inputs)
    point = dynamic.point({name: graph.types[name].shape for name in graph.inputs})
    if isinstance(point, str):
        raise GraphError(point)
    if missing := ranges.keys() - point.keys():
        raise GraphError(f"no size of an input is {min(missing)}")
    dynamic.inputs = {key: size.at(point) for key, size in inputs.items()}
    for entry in get(data, "tables", list, where):
        known(entry, ("name", "shape"), "a table")
        name, shape = name_of(get(entry, "name", str, "a table")), get(entry, "shape", list, "a table")
        whole = graph.constants.get(name)
        sizes = tuple(read_size(size, f"table {name}", point) for size in shape)
        if whole is None or whole.ndim != len(sizes) or not all(isinstance(size, int) for size in sizes):
            raise GraphError(f"table {name} is a constant with a size for each dimension")
        if not all(0 < size <= MAX_ELEMENTS for size in sizes) or math.prod(sizes) > max(whole.size, _MOST):
            raise GraphError(f"table {name} has {list(whole.shape)} elements, {list(map(int, sizes))} are read")
        dynamic.tables[name] = Table(whole, sizes)
        graph.constants[name] = dynamic.tables[name].at(point)
    graph.dynamic = dynamic
    return point


def _input_size(data: Any, graph: Graph, ranges: Mapping[str, tuple[int, int]]) -> tuple[tuple[str, int], Size]:
    where = "a size of an input"
    known(data, ("input", "dim", "size"), where)
    name, dim = name_of(get(data, "input", str, where)), get(data, "dim", int, where)
    if name not in graph.arguments or name not in graph.types or not 0 <= dim < len(graph.types[name].shape):
        raise GraphError(f"dimension {dim} of {name} must be one of an input")
    size = _size(get(data, "size", list, where), where, {symbol: low for symbol, (low, _) in ranges.items()})
    steps = [c for symbols, c in size.terms.items() if symbols]
    if len(steps) != 1 or steps[0] < 1 or any(len(symbols) > 1 for symbols in size.terms):
        raise GraphError(f"dimension {dim} of {name} must be a multiple of one symbol, and a number, found {size!r}")
    return (name, dim), size
