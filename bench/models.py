"""Saves models on a machine with torch, and reads them for benchmarks on machines without.

NAME.q8ta is the int8 network. Large networks that are only timed are saved as NAME.q8ta.gz: all output channels of a
layer have the weights of the first one, so that the file is small when compressed, and as fast as the real one. So are
the float32 networks, NAME.float32.q8ta.gz, and ViT-B/16's encoder.
"""

from __future__ import annotations

import gzip
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.options import Options
from q8ta_wgpu.ir.graph import Array

Made = tuple[Callable[[], Any], tuple[int, ...]]
"""A function that makes a module, and the shape of its input."""

FLOAT32 = ("resnet50", "mobilenet_v2", "subpixel", "demo", "vit_b16")
LARGEST = 32 << 20
"""Models with more bytes of constants are written only in the compressed form."""


def alike(model: q8.Model) -> q8.Model:
    """The model with all output channels of a layer equal to its first one, so that it can be compressed."""
    graph = model.graph.copy()
    for node in graph.nodes:
        stored = [name for name in node.inputs if name in graph.constants]
        if not stored or graph.constants[stored[0]].ndim < 2:
            continue
        for name in stored:
            graph.constants[name] = _first(graph.constants[name])
    return replace(model, graph=graph)


def _first(array: Array) -> Array:
    return np.ascontiguousarray(np.broadcast_to(array[:1], array.shape))


def write(model: q8.Model, path: Path) -> None:
    """Writes a model to NAME.q8ta, or, if the name ends in .gz, the compressed form with equal channels."""
    if path.suffix != ".gz":
        model.save(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.stem
        alike(model).save(plain)
        path.write_bytes(gzip.compress(plain.read_bytes(), 6))


def read(folder: Path, stem: str) -> q8.Model:
    """Reads STEM.q8ta or STEM.q8ta.gz from a folder that `python -m bench save` wrote."""
    packed = folder / f"{stem}.q8ta.gz"
    if not packed.exists():
        return q8.load(folder / f"{stem}.q8ta")
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / f"{stem}.q8ta"
        plain.write_bytes(gzip.decompress(packed.read_bytes()))
        return q8.load(plain)


def part_save(options: Options) -> None:
    """Writes the requested models, by default all but the decoders; needs torch."""
    import torch

    from bench.decoder import STEMS, quantized
    from demo.network import trained
    from testbed.networks import NETWORKS, OfBytes, example_input, photograph, vit_b16

    made: dict[str, Made] = {
        **{name: (entry.factory, entry.shape) for name, entry in NETWORKS.items() if not name.endswith("block")},
        "subpixel": (NETWORKS["subpixel"].factory, (1, 1, 240, 426)),
        "demo": (trained, (1, 1, 240, 426)),
        "vit_b16": (vit_b16, (1, 197, 768)),
        "resnet50_uint8": (lambda: OfBytes(NETWORKS["resnet50"].factory(), normalized=True), (1, 3, 224, 224)),
        "demo_uint8": (lambda: OfBytes(trained(), image=True), (1, 1, 240, 426)),
    }
    if unknown := set(options.names) - {*made, *STEMS}:
        sys.exit(f"unknown network {', '.join(sorted(unknown))}: there are {', '.join([*made, *STEMS])}")
    options.models.mkdir(parents=True, exist_ok=True)
    for name in options.names or made:
        if name in STEMS:
            write(quantized(STEMS[name]), options.models / f"{name}.q8ta.gz")
            continue
        factory, shape = made[name]
        module, x = factory().eval(), (photograph if name.endswith("_uint8") else example_input)(shape)
        if name == "demo":
            x = x - x.min()  # a picture's values are not negative
            x = x / x.max()
        int8 = q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False))
        size = sum(array.nbytes for array in int8.graph.constants.values())
        paths = [options.models / (f"{name}.q8ta.gz" if size > LARGEST else f"{name}.q8ta")]
        write(int8, paths[0])
        if name in FLOAT32:
            paths.append(options.models / f"{name}.float32.q8ta.gz")
            write(q8.compile(torch.export.export(module, (x,))), paths[1])
        print(", ".join(f"{path} {path.stat().st_size / 2**20:.1f} MiB" for path in paths), flush=True)
