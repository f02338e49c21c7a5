"""Encodes a graph and the structure of its outputs as the JSON text of a .q8ta file, and decodes it.

A file may be hostile: decoding checks every key, name, size and type, and verifies the graph as runnable.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, NoReturn

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, Array, Buffer, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.size import BATCH, UNBOUNDED, Point
from q8ta_wgpu.ir.value import ValueInfos
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.model.dynamic import plain_dynamic, plain_size, read_dynamic, read_size
from q8ta_wgpu.model.fields import MAX_NAME, get, known, name_of, names_of, text_of
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import MAX_ELEMENTS, RUNNABLE, verify

VERSION = 17
"""Format version, raised with every change of the format. Files of other versions are refused."""

MAX_PARTS = 1 << 18
"""Limit of entries in all lists and objects together: three characters of text can become an object of 70 bytes."""

_GIVEN = {"uint8x4": "uint8", "boolx4": "bool"}
"""Dtypes in a file of inputs that are passed as uint8 or bools. In the graph they are int8x4."""


def encode(graph: Graph, structure: Structure) -> str:
    """The JSON text, the same for equal graphs. Raises ValueError or TypeError for values that JSON cannot express."""
    return json.dumps(_document(graph, structure), separators=(",", ":"), allow_nan=False)


def decode(text: str, constants: dict[str, Array]) -> tuple[Graph, Structure]:
    """The graph with these constants, and the structure of its outputs. Raises GraphError if either is not valid, and
    ValueError or RecursionError if the text is not JSON."""
    return _read(_parse(text), constants)


def _document(graph: Graph, structure: Structure) -> dict[str, Any]:
    def encode_type(name: str, t: TensorType) -> dict[str, Any]:
        known = graph.values[name]
        plain: dict[str, Any] = {"shape": list(t.shape), "dtype": f"{known.given}x4" if known.given else t.dtype}
        if known.bounds:
            plain["bounds"] = list(known.bounds)
        return plain if t.q is None else {**plain, "scale": t.q.scale, "zero": t.q.zero}

    values = graph.values
    return {
        "version": VERSION,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "fixed": [
            {"input": name, "dim": dim, "step": step, "why": why}
            for name, known in values.items()
            for dim, (step, why) in known.fixed.items()
        ],
        **plain_dynamic(graph.dynamic),
        **_plain_buffers(graph),
        "structure": structure.tree,
        "dtypes": {str(i): dtype for i, dtype in structure.dtypes.items()},
        "notes": graph.notes,
        "decisions": [asdict(decision) for decision in graph.decisions],
        "in_float": {n.output: why for n in graph.nodes if (why := values[n.output].in_float)},
        "unrounded": {
            name: known.unrounded for name, known in values.items() if known.unrounded and name in graph.types
        },
        "values": {name: encode_type(name, t) for name, t in graph.types.items()},
        "nodes": [
            {
                "op": n.op,
                "inputs": list(n.inputs),
                "output": n.output,
                "attrs": {name: _plain(value) for name, value in n.attrs.items()},
                "source": n.source,
            }
            for n in graph.nodes
        ],
    }


def _plain_buffers(graph: Graph) -> dict[str, Any]:
    if not graph.buffers:
        return {}
    whole = {name: buffer.dtype for name, buffer in graph.buffers.items() if buffer.dtype != FLOAT32}
    return {"buffers": {name: buffer.initial for name, buffer in graph.buffers.items()}, "whole": whole}


def _plain(value: Any) -> Any:
    """An attribute as JSON."""
    return value.plain() if isinstance(value, Epilogue) else plain_size(value)


def _parse(text: str) -> Any:
    """JSON without its ambiguities: no NaN, no Infinity, no key twice in an object."""

    def no_number(token: str) -> NoReturn:
        raise GraphError(f"its JSON holds {token}, which is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for key, value in pairs:
            if key in members:
                raise GraphError(f"its JSON names {ascii(key)[:MAX_NAME]} twice in one object")
            members[key] = value
        return members

    entries = sum(map(text.count, "[{,"))
    if entries > MAX_PARTS:
        raise GraphError(f"its JSON has about {entries} entries, more than {MAX_PARTS}")
    return json.loads(text, parse_constant=no_number, object_pairs_hook=unique)


def _with_batch(data: Any) -> None:
    """Says of a batch of any size what `plain_dynamic` says. Files that were written before it was a size like others
    list the inputs whose first dimension it is."""
    if "batched" in data and (names := names_of(data, "batched", "the file")):
        batch = [[1, BATCH]]
        sizes = [{"input": name, "dim": 0, "size": batch} for name in names]
        data["dynamic"] = {"symbols": [{"symbol": BATCH, "low": 1, "high": UNBOUNDED}], "sizes": sizes, "tables": []}
        for node in get(data, "nodes", list, "the file"):
            if isinstance(node, dict) and node.get("op") == "expand_batch":
                node["attrs"] = {"size": {"size": batch}}


def _read(data: Any, constants: dict[str, Array]) -> tuple[Graph, Structure]:
    keys = ("version", "inputs", "outputs", "batched", "fixed", "structure", "dtypes", "notes", "in_float", "unrounded")
    known(data, (*keys, "decisions", "values", "nodes", "dynamic", "buffers", "whole"), "the file")
    _with_batch(data)
    values, nodes = get(data, "values", dict, "the file"), get(data, "nodes", list, "the file")
    graph = Graph(
        inputs=names_of(data, "inputs", "the file"),
        outputs=names_of(data, "outputs", "the file"),
        notes=[text_of(note, "a note") for note in get(data, "notes", list, "the file")],
        types={name_of(name): _type(name, t) for name, t in values.items()},
        constants={name_of(name): array for name, array in constants.items()},
        decisions=[_decision(each) for each in get(data, "decisions", list, "the file")],
        values=_known(data),
        buffers=_buffers(data) if "buffers" in data else {},
    )
    point = read_dynamic(data["dynamic"], graph) if "dynamic" in data else {}
    graph.nodes = [_node(item, point) for item in nodes]
    verify(graph, RUNNABLE)
    dtypes = get(data, "dtypes", dict, "the file")
    if other := [key for key in dtypes if not (key.isascii() and key.isdecimal() and len(key) < 10)]:
        raise GraphError(f"dtypes belong to positions of outputs, found {ascii(other[0])[:MAX_NAME]}")
    structure = Structure(get(data, "structure", object, "the file"), {int(key): v for key, v in dtypes.items()})
    structure.check(len(graph.results))
    return graph, structure


def _known(data: Any) -> ValueInfos:
    """What a file says of values beside their types."""
    found = ValueInfos()
    for name, t in data["values"].items():
        if t["dtype"] in _GIVEN:
            found.set(name, given=_GIVEN[t["dtype"]])
        if "bounds" in t:
            found.set(name, bounds=_bounds(name, t["bounds"]))
    for entry in get(data, "fixed", list, "the file"):
        (name, dim), said = _fixed(entry)
        found.set(name, fixed={**found[name].fixed, dim: said})
    for key in ("in_float", "unrounded"):
        for name, why in get(data, key, dict, "the file").items():
            found.set(name_of(name), **{key: text_of(why, "a reason")})
    return found


def _fixed(data: Any) -> tuple[tuple[str, int], tuple[int, str]]:
    where = "a size of an input"
    known(data, ("input", "dim", "step", "why"), where)
    dim, step = (get(data, key, int, where) for key in ("dim", "step"))
    return (name_of(get(data, "input", str, where)), dim), (step, text_of(get(data, "why", str, where), where))


def _decision(data: Any) -> Decision:
    where = "a decision"
    known(data, tuple(each.name for each in fields(Decision)), where)
    noise, cost = get(data, "noise", object, where), get(data, "cost", float, where)
    if noise is not None and not isinstance(noise, float):
        raise GraphError(f"{where}: its noise must be a number or null, found {ascii(noise)[:MAX_NAME]}")
    values, matched = (tuple(names_of(data, key, where)) for key in ("values", "matched"))
    if not values:
        raise GraphError(f"{where} must be of a value, found none")
    role, width, by = (name_of(get(data, key, str, where)) for key in ("role", "width", "by"))
    reason, narrow = text_of(get(data, "reason", str, where), where), name_of(data.get("narrow", "int8"))
    source = text_of(data.get("source", ""), where)
    return Decision(values, role, width, by, reason, matched, noise, cost, narrow, source)


def _buffers(data: Any) -> dict[str, Buffer]:
    names, whole = get(data, "buffers", dict, "the file"), get(data, "whole", dict, "the file")
    if other := [name for name in whole if name not in names]:
        raise GraphError(f"buffer {name_of(other[0])} is {name_of(whole[other[0]])}: it must be one of a state")
    return {name_of(n): Buffer(name_of(initial), name_of(whole.get(n, FLOAT32))) for n, initial in names.items()}


def _type(name: str, data: Any) -> TensorType:
    where = f"value {name}"
    known(data, ("shape", "dtype", "scale", "zero", "bounds"), where)
    shape = get(data, "shape", list, where)
    if len(shape) > 8 or not all(type(d) is int and 0 < d <= MAX_ELEMENTS for d in shape):
        raise GraphError(f"{where}: a shape has at most 8 positive sizes, found {ascii(shape)[:MAX_NAME]}")
    dtype = get(data, "dtype", str, where)
    dtype = INT8X4 if dtype in _GIVEN else dtype
    q = None
    if "scale" in data or "zero" in data:
        q = QParams(get(data, "scale", float, where), get(data, "zero", int, where), dtype)
    return TensorType(tuple(shape), dtype, q)


def _bounds(name: str, ends: Any) -> tuple[int, int]:
    if not isinstance(ends, list) or len(ends) != 2 or not all(type(end) is int for end in ends):
        raise GraphError(f"value {name}: its bounds must be two integers, found {ascii(ends)[:MAX_NAME]}")
    return ends[0], ends[1]


def _attr(name: str, value: Any, where: str, point: Point) -> Any:
    if name != "epilogue" and isinstance(value, list):
        return tuple(read_size(part, where, point) for part in value)
    if name != "epilogue":
        return read_size(value, where, point)
    try:
        return Epilogue.from_plain(value)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def _node(data: Any, point: Point) -> Node:
    output = name_of(get(data, "output", str, "a node"))
    where = f"node {output}"
    known(data, ("op", "inputs", "output", "attrs", "source"), where)
    attrs = get(data, "attrs", dict, where)
    return Node(
        name_of(get(data, "op", str, where)),
        tuple(names_of(data, "inputs", where)),
        output,
        {key: _attr(key, value, where, point) for key, value in attrs.items()},
        text_of(get(data, "source", str, where), f"{where}: its source"),
    )
