"""The .q8ta file: a safetensors container with constants as tensors and the graph as JSON in its metadata.

A file contains no pickle and no shader text, only data, which is checked against the operator table before anything is
allocated on a device. The metadata has one entry, `q8ta`: the JSON. Its first field is `sha256`, the checksum of the
rest and of all tensors. Its second is the format version. Both are checked before the JSON is parsed. The same model
always gives the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from q8ta_wgpu.errors import GraphError, ModelFileError
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.model.encoding import VERSION, decode, encode
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.writing import replace

MAX_TENSORS = 1 << 16
MAX_TEXT = 1 << 25
"""Limit of characters of the JSON: a hundred times those of a large network."""

MAX_MESSAGE = 600

_AGAIN = "copy it again, or write it again by model.save(path)"

_HEAD = re.compile(r'\{"sha256":"([0-9a-f]{64})",("version":([0-9]{1,40}),)')


def save(graph: Graph, structure: Structure, path: Path) -> None:
    """Writes a model to `path`.

    Raises ModelFileError if the model could not be loaded again, `path` is something else than a regular file, or the
    file cannot be written. A file that was there before is then unchanged (`q8ta_wgpu.writing`).
    """
    whole = {name: table.whole for name, table in graph.dynamic.tables.items() if name in graph.constants}
    constants = {name: np.ascontiguousarray(a).reshape(a.shape) for name, a in {**graph.constants, **whole}.items()}
    try:
        body = encode(graph, structure)
        decode(body, constants)
    except (GraphError, ValueError, TypeError) as error:
        raise ModelFileError(f"cannot save {path}, the model is not valid: {_short(error)}") from error
    text = f'{{"sha256":"{_digest(body, constants)}",{body[1:]}'
    try:
        replace({path: to_bytes(constants, {"q8ta": text})})
    except (OSError, SafetensorError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot write {path}: {reason}") from error


def load(path: str | Path) -> tuple[Graph, Structure]:
    """Reads a .q8ta file.

    Raises ModelFileError for a file that is missing, unreadable, truncated, foreign, of another version, altered
    (its checksum differs), or whose graph breaks a rule.
    """
    text, constants = _container(Path(path))
    head = _HEAD.match(text)
    if head is None:
        raise ModelFileError(
            f"{path} holds no model that starts with a checksum and a version. If model.save wrote it, it has changed "
            f"since: {_AGAIN}"
        )
    if (version := int(head[3])) != VERSION:
        way = "upgrade q8ta-wgpu" if version > VERSION else "compile the model again"
        raise ModelFileError(f"{path} has format version {version}, this library reads version {VERSION}: {way}")
    body = "{" + text[head.start(2) :]
    if head[1] != _digest(body, constants):
        raise ModelFileError(
            f"{path} has changed since model.save wrote it, as its checksum is of other contents: {_AGAIN}"
        )
    try:
        return decode(body, constants)
    except (GraphError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        way = "if another version of q8ta-wgpu wrote it, compile the model again"
        raise ModelFileError(f"{path} holds no valid model: {_short(error)}; {way}") from error


def _container(path: Path) -> tuple[str, dict[str, Array]]:
    """The JSON text and the constants of a file. Raises ModelFileError if it is no .q8ta file, or too large."""
    try:
        if not path.is_file():
            raise ModelFileError(f"{path} is not a file: model.save(path) writes one")
        with safe_open(path, framework="numpy") as file:
            metadata, names = file.metadata() or {}, file.keys()
            text = metadata.get("q8ta")
            if text is None:
                raise ModelFileError(
                    f"{path} is a safetensors file, but holds no q8ta model (no 'q8ta' in its metadata)"
                )
            if len(text) > MAX_TEXT or len(names) > MAX_TENSORS:
                raise ModelFileError(
                    f"{path} is not a model: {len(text)} characters of JSON and {len(names)} constants are more than "
                    f"{MAX_TEXT} and {MAX_TENSORS}"
                )
            return text, {name: file.get_tensor(name) for name in names}
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or _short(error)}") from error
    except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, MemoryError) as error:
        raise ModelFileError(
            f"{path} is not a readable .q8ta (safetensors) file: {_short(error)}. If model.save wrote it, it was cut "
            f"short or has changed since: {_AGAIN}"
        ) from error


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _digest(text: str, constants: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        array = constants[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
