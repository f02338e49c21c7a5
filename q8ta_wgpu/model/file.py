"""The .q8ta file: a safetensors container with the constants as tensors and the graph as JSON in its metadata.

No pickle and no shader text: a file is data, checked against the operator table before anything is allocated on a
device. The metadata holds one entry, `q8ta`: the JSON, whose first field `sha256` covers the rest of it and all
tensors. The same model always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from q8ta_wgpu.errors import GraphError, ModelFileError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.model.verify import RUNNABLE, verify

VERSION = 1
"""Format version: a reader refuses files of a later one."""

MAX_ELEMENTS = 1 << 31
"""Elements one value may have: u32 addresses, and what no device could bind is refused before it is allocated."""

MAX_NODES = 1 << 16
MAX_NAME = 200
MAX_MESSAGE = 600

_UINT8X4 = "uint8x4"
"""In a file, the dtype of an input that is given as uint8: an int8x4 like any other once it is stored."""

_CONTAINER_KEY = "__metadata__"  # safetensors' own entry: no tensor may be called so
_CHECKSUM = re.compile(r'\{"sha256":"([0-9a-f]{64})",')


def save(graph: Graph, structure: Structure, path: Path) -> None:
    """Writes a model to `path` by way of a temporary file in the same folder.

    Raises ModelFileError if the model could not be loaded again or the file cannot be written; a file that was there
    before is then unharmed.
    """
    constants = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in graph.constants.items()}
    try:
        body = json.dumps(_encode(graph, structure), separators=(",", ":"), allow_nan=False)
        _decode(_parse(body), constants)
    except (GraphError, ValueError, TypeError) as error:
        raise ModelFileError(f"cannot save {path}, the model is not valid: {_short(error)}") from error
    text = f'{{"sha256":"{_digest(body, constants)}",{body[1:]}'
    try:
        _replace(path.resolve(), to_bytes(constants, {"q8ta": text}))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error  # an OSError's text names the temporary file
        raise ModelFileError(f"cannot write {path}: {reason}") from error


def _replace(path: Path, data: bytes) -> None:
    """Makes `path` hold `data`, or stay as it was; the file keeps its permissions."""
    temporary = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def load(path: str | Path) -> tuple[Graph, Structure]:
    """Reads a .q8ta file.

    Raises ModelFileError for a file that is missing, unreadable, truncated, foreign, from a later version, altered
    (its checksum differs), or whose graph breaks a rule.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise ModelFileError(f"{path} is not a file: model.save(path) writes one")
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            constants = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, TypeError, LookupError, AttributeError, MemoryError) as error:
        raise ModelFileError(f"{path} is not a readable .q8ta (safetensors) file: {_short(error)}") from error
    text = metadata.get("q8ta")
    if text is None:
        raise ModelFileError(f"{path} is a safetensors file, but holds no q8ta model (no 'q8ta' in its metadata)")
    found = _CHECKSUM.match(text)
    body = "{" + text[found.end() :] if found else text
    intact = found is not None and found[1] == _digest(body, constants)
    try:
        data = _parse(body)
        _check_version(data)
        if not intact:
            raise GraphError("it was damaged or altered, its contents do not match its checksum")
        return _decode(data, constants)
    except (GraphError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        state = "holds no valid model" if intact else "was damaged or altered (its checksum does not match)"
        raise ModelFileError(f"{path} {state}: {_short(error)}") from error


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _parse(text: str) -> Any:
    """JSON without its ambiguities: no NaN, no Infinity, no key twice in an object."""

    def no_number(token: str) -> NoReturn:
        raise GraphError(f"its JSON holds {token}, which is no number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
            raise GraphError(f"its JSON names {twice[:MAX_NAME]!r} twice in one object")
        return found

    return json.loads(text, parse_constant=no_number, object_pairs_hook=unique)


def _check_version(data: Any) -> None:
    version = _get(data, "version", int, "the file")
    if version > VERSION:
        raise GraphError(f"it has format version {version}, this library reads up to {VERSION}: upgrade q8ta-wgpu")
    if version < 1:
        raise GraphError(f"there is no format version {version}")


def _digest(text: str, constants: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        array = constants[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _encode(graph: Graph, structure: Structure) -> dict[str, Any]:
    def encode_type(name: str, t: TensorType) -> dict[str, Any]:
        plain: dict[str, Any] = {"shape": list(t.shape), "dtype": _UINT8X4 if name in graph.uint8 else t.dtype}
        return plain if t.q is None else {**plain, "scale": t.q.scale, "zero": t.q.zero}

    return {
        "version": VERSION,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "structure": structure.tree,
        "notes": graph.notes,
        "values": {name: encode_type(name, t) for name, t in graph.types.items()},
        "nodes": [
            {"op": n.op, "inputs": list(n.inputs), "output": n.output, "attrs": dict(n.attrs), "source": n.source}
            for n in graph.nodes
        ],
    }


def _decode(data: Any, constants: dict[str, Array]) -> tuple[Graph, Structure]:
    values, nodes = _get(data, "values", dict, "the file"), _get(data, "nodes", list, "the file")
    if len(nodes) > MAX_NODES:
        raise GraphError(f"it has {len(nodes)} nodes, more than {MAX_NODES}")
    graph = Graph(
        inputs=_names(data, "inputs", "the file"),
        outputs=_names(data, "outputs", "the file"),
        notes=[_text(note, "a note") for note in _get(data, "notes", list, "the file")],
        types={_name(name): _type(name, t) for name, t in values.items()},
        constants={_name(name): array for name, array in constants.items()},
        uint8={name for name, t in values.items() if t["dtype"] == _UINT8X4},
    )
    graph.nodes = [_node(item) for item in nodes]
    verify(graph, RUNNABLE)
    if "structure" not in data:
        raise GraphError("the file: 'structure' is missing")
    structure = Structure(data["structure"])
    structure.check(len(graph.outputs))
    return graph, structure


def _get(data: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(data, dict):
        raise GraphError(f"{where} must be an object, found {type(data).__name__}")
    if key not in data:
        raise GraphError(f"{where}: {key!r} is missing")
    value = data[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise GraphError(f"{where}: {key!r} must be a {kind.__name__}, found {type(value).__name__}")
    return value


def _text(value: Any, where: str) -> str:
    """Text that may be printed on a terminal as it is."""
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


def _type(name: str, data: Any) -> TensorType:
    where = f"value {name}"
    shape = _get(data, "shape", list, where)
    if len(shape) > 8 or not all(type(d) is int and 0 < d <= MAX_ELEMENTS for d in shape):
        raise GraphError(f"{where}: a shape has at most 8 positive sizes, found {ascii(shape)[:MAX_NAME]}")
    q = None
    if "scale" in data or "zero" in data:
        q = QParams(_get(data, "scale", float, where), _get(data, "zero", int, where))
    dtype = _get(data, "dtype", str, where)
    found = TensorType(tuple(shape), INT8X4 if dtype == _UINT8X4 else dtype, q)
    if found.numel > MAX_ELEMENTS:
        raise GraphError(f"{where} would have {found.numel} elements, more than {MAX_ELEMENTS}")
    return found


def _node(data: Any) -> Node:
    output = _name(_get(data, "output", str, "a node"))
    where = f"node {output}"
    attrs = _get(data, "attrs", dict, where)
    return Node(
        _name(_get(data, "op", str, where)),
        tuple(_names(data, "inputs", where)),
        output,
        {key: tuple(value) if isinstance(value, list) else value for key, value in attrs.items()},
        _text(_get(data, "source", str, where), f"{where}: its source"),
    )
