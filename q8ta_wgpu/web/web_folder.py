"""Writes the folder that q8ta.js loads: programs and weights, and their hashes in net.json."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import INT8X4, Array, Graph, QParams, TensorType
from q8ta_wgpu.ir.layout import PACKINGS, Layout, canonical
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE, Target
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model, path_of
from q8ta_wgpu.model.row_indices import RowIndices, Sums
from q8ta_wgpu.model.structure import as_bytes
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import BufferRef, Dispatch, Port, Program
from q8ta_wgpu.web import bundle, pixels
from q8ta_wgpu.writing import replace

VERSION = 2
ALIGNMENT = 256
"""Offsets in the weights are multiples of these bytes."""

CPU = dataclasses.replace(SOFTWARE, unroll=False)
"""The target for Chromium's software, SwiftShader, which takes minutes to compile unrolled loops."""

_LAYOUTS = {layout.short: layout for layout in Layout}


def export_web(model: Model, folder: str | Path) -> Path:
    """Writes `model` for web pages and returns the folder, which any static server can serve.

    net.json names two programs, of which a page loads one: "gpu", which runs wherever WebGPU does, and "cpu" for
    browsers that run it in software. NAME.json has shaders and dispatches, NAME.bin has weights; net.json has their
    hashes. q8ta.js, with its types, loads and runs them. Shaders use packed dot products; for browsers without them
    q8ta.js emulates them. The export also holds a hash of what the reference computes from a made-up input, so that a
    browser which computes other bytes is refused.

    Examples:
        >>> folder = q8.export_web(model, "net/")    # net/q8ta.js loads and runs it

    Args:
        model: the model.
        folder: made if it does not exist; files of these names in it are replaced.

    Raises:
        InputError: `model` is no Model, or the folder cannot be written.
        DeviceError: a tensor is too large for WebGPU's baseline.
    """
    if not isinstance(model, Model):
        raise InputError(
            f"export_web takes a Model, found {type(model).__name__}: q8ta_wgpu.load reads a file, q8ta_wgpu.compile "
            "makes one of a program whose operators are all supported (a page has no PyTorch to run the others)"
        )
    path = path_of(folder, "export_web", "a folder")
    return write(bundle.files() | files(model, programs(model)), path)


def programs(model: Model) -> dict[str, tuple[Program, Target]]:
    """The programs of a model by their names in q8ta.js."""
    made: dict[str, tuple[Program, Target]] = {}
    for name, chosen in (("gpu", BASELINE), ("cpu", CPU)):
        graph = lower(model.graph, chosen)
        made[name] = build(graph, chosen, sync_layouts(graph, chosen)), chosen
    return made


def files(model: Model, made: Mapping[str, tuple[Program, Target]]) -> dict[str, bytes]:
    """What q8ta.js loads, by names of files: net.json is the last."""
    found: dict[str, bytes] = {}
    described, sample = {}, _sample_hash(model)
    for name, (program, chosen) in made.items():
        weights, places = _weights(program)
        whole = {**_program(model, program, places), "sample": sample}
        parts = {f"{name}.json": _json(whole), f"{name}.bin": weights}
        named = zip(("program", "weights"), (_described(*part) for part in parts.items()), strict=True)
        described[name] = {"limits": _limits(program, chosen), **dict(named)}
        found |= parts
    # Last: a half-written folder has files with other hashes, and is refused.
    found["net.json"] = _json({"format": "q8ta-web", "version": VERSION, "programs": described})
    return found


def write(contents: Mapping[str, bytes], path: Path) -> Path:
    """Writes files by their names in a folder, which is made if it does not exist, and returns it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        replace({path / name: data for name, data in contents.items()})
    except OSError as error:
        raise InputError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
    return path


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _described(url: str, data: bytes) -> dict[str, Any]:
    return {"url": url, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _weights(program: Program) -> tuple[bytes, list[tuple[int, int]]]:
    """All constants, the uniforms and what states begin with in one file, and (offset, bytes) of each."""
    data, places = bytearray(), []
    initial = (words.tobytes() for _, words in program.states)
    for part in (*(c.tobytes() for c in program.constants), program.uniforms or bytes(16), *initial):
        data += bytes(-len(data) % ALIGNMENT)
        places.append((len(data), len(part)))
        data += part
    return bytes(data), places


def _program(model: Model, program: Program, places: list[tuple[int, int]]) -> dict[str, Any]:
    def takes_picture(name: str, t: TensorType) -> bool:
        return pixels.is_picture(t) and model.graph.values[name].given != "bool"

    def port(p: Port) -> dict[str, Any]:
        return {**_port(model.graph, p), "buffer": _place(program, p.buffer)}

    def result(place: int, p: Port) -> dict[str, Any]:
        """A result, which may be stored as int8 and be uint8, the bytes of a picture."""
        t, given = model.graph.types[p.name], port(p)
        if model.structure.gives_bytes(place, t.dtype == INT8X4):
            t, given = dataclasses.replace(t, q=QParams(1 / 255, -128)), {**given, "dtype": "uint8"}
        return {**given, "draw": pixels.drawing(t, _LAYOUTS[p.layout]) if pixels.is_picture(t) else None}

    begun = zip(model.graph.states, program.states, places[len(program.constants) + 1 :], strict=True)
    states = [{**port(p), "name": state.name, "initial": at} for state, (p, _), at in begun]
    return {
        **({"states": states} if states else {}),
        **_row_indices(model.graph),
        "inputs": [
            {**port(p), "read": pixels.reading(t, _LAYOUTS[p.layout]) if takes_picture(p.name, t) else None}
            for p, t in zip(program.inputs, model.inputs.values(), strict=True)
        ],
        "outputs": [result(place, p) for place, p in enumerate(program.outputs)],
        "structure": model.structure.tree,
        "slots": program.slots,
        "constants": places[: len(program.constants)],
        "uniforms": places[len(program.constants)],
        "shaders": program.shaders,
        "dispatches": [_dispatch(program, d) for d in program.dispatches],
    }


def _dispatch(program: Program, d: Dispatch) -> dict[str, Any]:
    return {
        "kernel": d.kernel,
        "value": d.value,
        "shader": d.shader,
        "buffers": [_place(program, ref) for ref in d.buffers],
        **({"offsets": d.offsets} if d.offsets else {}),
        "uniform": d.uniform,
        "grid": d.grid,
    }


def _place(program: Program, ref: BufferRef) -> int:
    """Buffers are numbered: slots, then constants."""
    kind, index = ref
    return index if kind == "slot" else len(program.slots) + index


def _row_indices(graph: Graph) -> dict[str, Any]:
    """What q8ta.js refuses runs by, in which states have the names of the module's buffers."""
    indices = RowIndices.of(graph)
    if not indices.sources:
        return {}

    def plain(sums: Sums) -> dict[str, list[int]]:
        return {"element": sums.element.ravel().tolist(), "term": sums.term.ravel().tolist()}

    names = indices.names
    sources = [{"name": names.get(n, n), "size": size, "state": n in names} for n, size in indices.sources.items()]
    found = {
        "sources": sources,
        "rows": plain(indices.rows),
        "least": indices.least.tolist(),
        "counts": indices.counts.tolist(),
        "tables": indices.tables.tolist(),
        "described": indices.described,
        "states": {names[name]: plain(sums) for name, sums in indices.states.items()},
    }
    return {"row_indices": found}


def _port(graph: Graph, port: Port) -> dict[str, Any]:
    """An input or output: its dtype as in Python, and for int8 or int16 words where each element lies."""
    found = {"name": port.name, "shape": port.shape, "bytes": port.size, "dtype": str(graph.array_dtype(port.name))}
    if q := graph.types[port.name].q:
        found |= {"scale": q.scale, "zero": q.zero, "axes": _axes(port.shape, _LAYOUTS[port.layout])}
    if bounds := graph.values[port.name].bounds:
        found["bounds"] = bounds
    return found


def _axes(shape: tuple[int, ...], layout: Layout) -> list[dict[str, int]]:
    """For each of n, c, h, w: its size, how many neighbours share a block, and the distance in elements within a block
    and from one block to the next."""
    packing, sizes = PACKINGS[layout], canonical(shape)
    axes = [{"size": size, "block": packing.block(axis), "near": 0, "far": 0} for axis, size in enumerate(sizes)]
    axes[packing.packed]["near"], step = 1, packing.lanes
    for letter in reversed(packing.order):
        axis = axes["NCHW".index(letter.upper())]
        if letter.islower():
            axis["near"], step = step, step * axis["block"]
        else:
            axis["far"], step = step, step * -(-axis["size"] // axis["block"])
    return axes


def _limits(program: Program, target: Target) -> dict[str, int]:
    """The limits a device must have, by WebGPU's names."""
    largest = max([*program.slots, *(c.nbytes for c in program.constants), len(program.uniforms)])
    return {
        "maxStorageBuffersPerShaderStage": max((len(d.buffers) for d in program.dispatches), default=0),
        "maxStorageBufferBindingSize": largest,
        "maxBufferSize": largest,
        "maxComputeInvocationsPerWorkgroup": target.invocations,
        "maxComputeWorkgroupSizeX": target.invocations,
        "maxComputeWorkgroupStorageSize": target.workgroup_memory,
        "maxComputeWorkgroupsPerDimension": max((n for d in program.dispatches for n in d.grid), default=1),
    }


def sample(graph: Graph) -> dict[str, Array]:
    """The made-up inputs, which q8ta.js makes too: element i of input k is a 32-bit hash of k * 2^24 + i."""
    given = enumerate(graph.arguments)
    return {
        name: _mixed(graph.array_dtype(name), graph.types[name].shape, k << 24, graph.values[name].bounds)
        for k, name in given
    }


def _mixed(dtype: np.dtype[Any], shape: tuple[int, ...], first: int, bounds: tuple[int, int] | None) -> Array:
    h: Array = (np.arange(1, np.prod(shape) + 1, dtype=np.uint32) + np.uint32(first)) * np.uint32(0x9E3779B1)
    h = (h ^ (h >> 15)) * np.uint32(0x85EBCA77)
    h ^= h >> 13
    if bounds is not None:
        found = ((h >> 8).astype(np.int64) % (bounds[1] - bounds[0] + 1) + bounds[0]).astype(dtype)
    elif dtype == np.float32:  # 24 bits in [-2, 2)
        found = ((h >> 8).astype(np.int32) - (1 << 23)).astype(np.float32) / np.float32(1 << 22)
    elif dtype == np.bool_:
        found = (h >> 31).astype(np.bool_)
    elif dtype == np.int16:  # numbers of every magnitude
        found = (h.view(np.int32) >> np.minimum(16 + (h & 31), 31).view(np.int32)).astype(np.int16)
    else:
        found = (h >> (32 - 8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype)
    return found.reshape(shape)


def _sample_hash(model: Model) -> str | None:
    """SHA-256 of the reference's outputs for the sample; None where float operators may differ by device."""
    if not model.report().exact:
        return None
    graph = model.graph
    values = reference.run(graph, {name: graph.stored(name, array) for name, array in sample(graph).items()})
    digest = hashlib.sha256()
    for place, name in enumerate(graph.results):
        found = values[name]
        if model.structure.gives_bytes(place, found.dtype == np.int8):
            found = as_bytes(found.copy())
        digest.update(np.ascontiguousarray(found).tobytes())
    return digest.hexdigest()
