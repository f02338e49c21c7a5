"""What the tests of model files share: a small model as a file, reading files, and files edited by hand."""

from __future__ import annotations

import hashlib
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as safetensors_bytes

import q8ta_wgpu as q8
from q8ta_wgpu.errors import ModelFileError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model.model import Model
from testbed.small import small_model

MODEL = small_model()
SECONDS = 2.0
"""Of processor time: no file may keep `load` busy for longer (it takes a few ms)."""


def same(a: Model, b: Model) -> bool:
    graphs = a.graph, b.graph
    return (
        str(graphs[0]) == str(graphs[1])
        and graphs[0].types == graphs[1].types
        and graphs[0].nodes == graphs[1].nodes
        and graphs[0].notes == graphs[1].notes
        and a.structure == b.structure
        and graphs[0].constants.keys() == graphs[1].constants.keys()
        and all(np.array_equal(c, graphs[1].constants[n], equal_nan=True) for n, c in graphs[0].constants.items())
    )


def read(data: bytes, folder: Path) -> Model:
    path = folder / "read.q8ta"
    path.write_bytes(data)
    return q8.load(path)


def refused(data: bytes, folder: Path) -> str:
    """Loads, and returns the message of the ModelFileError that must come, soon and in one readable piece."""
    started = time.process_time()
    with pytest.raises(ModelFileError) as caught:
        read(data, folder)
    assert time.process_time() - started < SECONDS
    assert "read.q8ta" in str(caught.value)
    assert len(str(caught.value)) < 1200
    return str(caught.value)


Edit = Callable[[dict[str, Any], dict[str, Array]], object]


def forge(saved: bytes, edit: Edit) -> bytes:
    """The file after `edit` changed its JSON and tensors, with the checksum the format asks for."""
    data, constants = unpacked(saved)
    edit(data, constants)
    return sealed(json.dumps(data, separators=(",", ":")), constants)


def unpacked(saved: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    (length,) = struct.unpack("<Q", saved[:8])
    header = json.loads(saved[8 : 8 + length])
    data = json.loads(header.pop("__metadata__")["q8ta"])
    del data["sha256"]
    dtypes = {"F32": np.float32, "I32": np.int32, "I8": np.int8}
    constants = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        raw = saved[8 + length + first : 8 + length + last]
        constants[name] = np.frombuffer(raw, dtypes[entry["dtype"]]).reshape(entry["shape"]).copy()
    return data, constants


def sealed(text: str, constants: dict[str, Array]) -> bytes:
    digest = hashlib.sha256(text.encode())
    for name in sorted(constants):
        digest.update(f"{name} {constants[name].dtype} {constants[name].shape}".encode() + constants[name].tobytes())
    return safetensors_bytes(constants, {"q8ta": f'{{"sha256":"{digest.hexdigest()}",{text[1:]}'})


def stages(node: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node["attrs"].get("epilogue", [])
    return found


def node(data: dict[str, Any], op: str) -> dict[str, Any]:
    """The first node of an operator, or of 'operator stage'."""
    op, _, last = op.partition(" ")
    found = (n for n in data["nodes"] if n["op"] == op and (not last or stages(n)[-1]["stage"] == last))
    first: dict[str, Any] = next(found)
    return first


def field(**fields: Any) -> Edit:
    """Top-level fields of the JSON."""
    return lambda data, _: data.update(fields)
