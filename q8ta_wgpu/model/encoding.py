"""A graph and the structure of its outputs as the JSON text of a .q8ta file, and back.

Reading trusts nothing: it checks every key, name, size and type, and verifies the graph as runnable.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import MAX_ELEMENTS, RUNNABLE, verify

VERSION = 8
"""Format version, raised with every change of what a file holds. Files of other versions are refused."""

MAX_PARTS = 1 << 18
"""Most entries of all lists and objects together: three characters of text can become an object of seventy bytes."""

MAX_NAME = 200

_UINT8X4, _BOOLX4 = "uint8x4", "boolx4"
"""In a file, the dtypes of inputs that are given as uint8 and as bools: int8x4 like any other once they are stored."""

_CONTAINER_KEY = "__metadata__"  # safetensors' own entry: no tensor may have this name


def encode(graph: Graph, structure: Structure) -> str:
    """The JSON text, the same for equal graphs. Raises ValueError or TypeError for what JSON cannot hold."""
    return json.dumps(_document(graph, structure), separators=(",", ":"), allow_nan=False)


def decode(text: str, constants: dict[str, Array]) -> tuple[Graph, Structure]:
    """The graph with these constants, and the structure of its outputs. Raises GraphError where either is not valid.

    Text that is no JSON raises ValueError or RecursionError.
    """
    return _read(_parse(text), constants)


def _document(graph: Graph, structure: Structure) -> dict[str, Any]:
    def encode_type(name: str, t: TensorType) -> dict[str, Any]:
        given = _UINT8X4 if name in graph.uint8 else _BOOLX4 if name in graph.bools else t.dtype
        plain: dict[str, Any] = {"shape": list(t.shape), "dtype": given}
        return plain if t.q is None else {**plain, "scale": t.q.scale, "zero": t.q.zero}

    return {
        "version": VERSION,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "batched": sorted(graph.batched),
        "fixed": [
            {"input": name, "dim": dim, "step": step, "why": why} for (name, dim), (step, why) in graph.fixed.items()
        ],
        "structure": structure.tree,
        "dtypes": {str(i): dtype for i, dtype in structure.dtypes.items()},
        "notes": graph.notes,
        "values": {name: encode_type(name, t) for name, t in graph.types.items()},
        "nodes": [
            {
                "op": n.op,
                "inputs": list(n.inputs),
                "output": n.output,
                "attrs": {name: v.plain() if isinstance(v, Epilogue) else v for name, v in n.attrs.items()},
                "source": n.source,
            }
            for n in graph.nodes
        ],
    }


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

    parts = sum(map(text.count, "[{,"))
    if parts > MAX_PARTS:
        raise GraphError(f"its JSON has about {parts} entries, more than {MAX_PARTS}")
    return json.loads(text, parse_constant=no_number, object_pairs_hook=unique)


def _read(data: Any, constants: dict[str, Array]) -> tuple[Graph, Structure]:
    keys = ("version", "inputs", "outputs", "batched", "fixed", "structure", "dtypes", "notes", "values", "nodes")
    _known(data, keys, "the file")
    values, nodes = _get(data, "values", dict, "the file"), _get(data, "nodes", list, "the file")
    graph = Graph(
        inputs=_names(data, "inputs", "the file"),
        outputs=_names(data, "outputs", "the file"),
        notes=[_text(note, "a note") for note in _get(data, "notes", list, "the file")],
        types={_name(name): _type(name, t) for name, t in values.items()},
        constants={_name(name): array for name, array in constants.items()},
        batched=set(_names(data, "batched", "the file")),
        fixed=dict(_fixed(entry) for entry in _get(data, "fixed", list, "the file")),
        uint8={name for name, t in values.items() if t["dtype"] == _UINT8X4},
        bools={name for name, t in values.items() if t["dtype"] == _BOOLX4},
    )
    graph.nodes = [_node(item) for item in nodes]
    verify(graph, RUNNABLE)
    dtypes = _get(data, "dtypes", dict, "the file")
    if other := [key for key in dtypes if not (key.isascii() and key.isdecimal() and len(key) < 10)]:
        raise GraphError(f"dtypes belong to positions of outputs, found {ascii(other[0])[:MAX_NAME]}")
    structure = Structure(_get(data, "structure", object, "the file"), {int(key): v for key, v in dtypes.items()})
    structure.check(len(graph.outputs))
    return graph, structure


def _known(data: Any, keys: tuple[str, ...], where: str) -> None:
    """Raises for keys that no reader would look at."""
    if isinstance(data, dict) and (unknown := data.keys() - keys):
        raise GraphError(f"{where} has a key that is not known: {ascii(min(unknown))[:MAX_NAME]}")


def _get(data: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(data, dict):
        raise GraphError(f"{where} must be an object, found {type(data).__name__}")
    if key not in data:
        raise GraphError(f"{where}: {key!r} is missing")
    value = data[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not object):
        raise GraphError(f"{where}: {key!r} must be a {kind.__name__}, found {type(value).__name__}")
    return value


def _text(value: Any, where: str) -> str:
    """Text that is safe to print on a terminal."""
    if not isinstance(value, str) or not value.replace("\n", "").isprintable():
        raise GraphError(f"{where} must be printable text, found {ascii(value)[:MAX_NAME]}")
    return value


def _name(value: Any) -> str:
    if (
        not isinstance(value, str)
        or not value.isprintable()
        or not 0 < len(value) <= MAX_NAME
        or value == _CONTAINER_KEY
    ):
        raise GraphError(f"a name must be 1 to {MAX_NAME} printable characters, found {ascii(value)[:MAX_NAME]}")
    return value


def _names(data: Any, key: str, where: str) -> list[str]:
    return [_name(name) for name in _get(data, key, list, where)]


def _fixed(data: Any) -> tuple[tuple[str, int], tuple[int, str]]:
    where = "a size of an input"
    _known(data, ("input", "dim", "step", "why"), where)
    dim, step = (_get(data, key, int, where) for key in ("dim", "step"))
    return (_name(_get(data, "input", str, where)), dim), (step, _text(_get(data, "why", str, where), where))


def _type(name: str, data: Any) -> TensorType:
    where = f"value {name}"
    _known(data, ("shape", "dtype", "scale", "zero"), where)
    shape = _get(data, "shape", list, where)
    if len(shape) > 8 or not all(type(d) is int and 0 < d <= MAX_ELEMENTS for d in shape):
        raise GraphError(f"{where}: a shape has at most 8 positive sizes, found {ascii(shape)[:MAX_NAME]}")
    dtype = _get(data, "dtype", str, where)
    dtype = INT8X4 if dtype in (_UINT8X4, _BOOLX4) else dtype
    q = None
    if "scale" in data or "zero" in data:
        q = QParams(_get(data, "scale", float, where), _get(data, "zero", int, where), dtype)
    return TensorType(tuple(shape), dtype, q)


def _attr(name: str, value: Any, where: str) -> Any:
    if name != "epilogue":
        return tuple(value) if isinstance(value, list) else value
    try:
        return Epilogue.from_plain(value)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None


def _node(data: Any) -> Node:
    output = _name(_get(data, "output", str, "a node"))
    where = f"node {output}"
    _known(data, ("op", "inputs", "output", "attrs", "source"), where)
    attrs = _get(data, "attrs", dict, where)
    return Node(
        _name(_get(data, "op", str, where)),
        tuple(_names(data, "inputs", where)),
        output,
        {key: _attr(key, value, where) for key, value in attrs.items()},
        _text(_get(data, "source", str, where), f"{where}: its source"),
    )
