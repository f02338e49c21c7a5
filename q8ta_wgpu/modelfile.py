"""The .q8ta file: a safetensors container with the constants as tensors and the graph as JSON in its metadata.

No pickle and no shader text: a file is data, checked against the operator table before anything is allocated on a
device. The metadata holds `q8ta` (the JSON) and `sha256` over the JSON and all tensor bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from q8ta_wgpu.errors import GraphError, ModelFileError
from q8ta_wgpu.ir import Array, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import Model
from q8ta_wgpu.structure import Structure
from q8ta_wgpu.verify import RUNNABLE, verify

VERSION = 1
"""Format version: a reader refuses files of a later one."""

MAX_ELEMENTS = 1 << 31
"""Elements one value may have: u32 addresses, and what no device could bind is refused before it is allocated."""


def save(model: Model, path: Path) -> None:
    """Writes `model` to `path` by way of a temporary file in the same folder.

    Raises ModelFileError if the file cannot be written; a file that was there before is then unharmed.
    """
    graph = model.graph
    text = json.dumps(_encode(graph, model.structure), separators=(",", ":"), allow_nan=False)
    metadata = {"q8ta": text, "sha256": _digest(text, graph.constants)}
    data = to_bytes({name: np.ascontiguousarray(a) for name, a in graph.constants.items()}, metadata)
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise ModelFileError(f"cannot write {path}: {error}") from error


def load(path: str | Path) -> Model:
    """Reads a .q8ta file.

    Raises ModelFileError for a file that is missing, unreadable, truncated, foreign, from a later version, altered
    (its checksum differs), or whose graph breaks a rule.
    """
    path = Path(path)
    if not path.is_file():
        raise ModelFileError(f"{path} is not a file: save one with model.save({str(path)!r})")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            constants = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f"{path} is not a readable safetensors file: {error}") from error
    text = metadata.get("q8ta")
    if text is None:
        raise ModelFileError(f"{path} is a safetensors file, but holds no q8ta model (no 'q8ta' in its metadata)")
    if metadata.get("sha256") != _digest(text, constants):
        raise ModelFileError(f"{path} was damaged or altered: its contents do not match its checksum")
    try:
        return _decode(json.loads(text), constants)
    except (GraphError, json.JSONDecodeError, RecursionError) as error:
        raise ModelFileError(f"{path} holds no valid model: {error}") from error


def _digest(text: str, constants: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        array = np.ascontiguousarray(constants[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _encode(graph: Graph, structure: Structure) -> dict[str, Any]:
    def encode_type(t: TensorType) -> dict[str, Any]:
        plain: dict[str, Any] = {"shape": list(t.shape), "dtype": t.dtype}
        return plain if t.q is None else {**plain, "scale": t.q.scale, "zero": t.q.zero}

    return {
        "version": VERSION,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "structure": structure.tree,
        "notes": graph.notes,
        "values": {name: encode_type(t) for name, t in graph.types.items()},
        "nodes": [
            {"op": n.op, "inputs": list(n.inputs), "output": n.output, "attrs": dict(n.attrs), "source": n.source}
            for n in graph.nodes
        ],
    }


def _decode(data: Any, constants: dict[str, Array]) -> Model:
    version = _get(data, "version", int, "the file")
    if version > VERSION:
        raise GraphError(f"it has format version {version}, this library reads up to {VERSION}: upgrade q8ta-wgpu")
    graph = Graph(
        inputs=_names(data, "inputs"),
        outputs=_names(data, "outputs"),
        notes=_names(data, "notes"),
        types={name: _type(name, t) for name, t in _get(data, "values", dict, "the file").items()},
        constants=constants,
    )
    for item in _get(data, "nodes", list, "the file"):
        graph.nodes.append(_node(item))
    verify(graph, RUNNABLE)
    structure = Structure(data.get("structure"))
    structure.check(len(graph.outputs))
    return Model(graph, structure)


def _get(data: Any, key: str, kind: type, where: str) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise GraphError(f"{where}: {key!r} must be a {kind.__name__}, found {type(value).__name__}")
    return value


def _names(data: Any, key: str) -> list[str]:
    names = _get(data, key, list, "the file")
    if not all(isinstance(name, str) for name in names):
        raise GraphError(f"{key!r} must list names")
    return list(names)


def _type(name: str, data: Any) -> TensorType:
    shape = _get(data, "shape", list, f"value {name}")
    if not all(type(d) is int and 0 < d < MAX_ELEMENTS for d in shape) or len(shape) > 8:
        raise GraphError(f"value {name}: a shape has at most 8 positive sizes, found {shape}")
    q = None
    if "scale" in data or "zero" in data:
        q = QParams(float(_get(data, "scale", float, f"value {name}")), _get(data, "zero", int, f"value {name}"))
    found = TensorType(tuple(shape), _get(data, "dtype", str, f"value {name}"), q)
    if found.numel > MAX_ELEMENTS:
        raise GraphError(f"value {name} would have {found.numel} elements, more than {MAX_ELEMENTS}")
    return found


def _node(data: Any) -> Node:
    output = _get(data, "output", str, "a node")
    where = f"node {output}"
    attrs = _get(data, "attrs", dict, where)
    return Node(
        _get(data, "op", str, where),
        tuple(_names(data, "inputs")),
        output,
        {key: tuple(value) if isinstance(value, list) else value for key, value in attrs.items()},
        _get(data, "source", str, where),
    )
