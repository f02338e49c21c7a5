"""Writes a model for web pages, or the page that checks a browser."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from q8ta_wgpu.commands.arguments import opened
from q8ta_wgpu.commands.example import Sample, samples
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.model.model import Model, path_of
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program.build import build
from q8ta_wgpu.web import bundle, web_folder


def export_web(options: argparse.Namespace) -> None:
    """`export-web FILE FOLDER`, `export-web --check [FILE] FOLDER`: writes the folder and prints its size."""
    if not options.file and not options.check:
        raise InputError("export-web takes FILE FOLDER: a model and where to write it; or --check FOLDER")
    models = {Path(options.file).stem: opened(options.file)} if options.file else {}
    if options.check:
        folder = write_check(models, options.folder, options.version)
    else:
        (model,) = models.values()
        folder = web_folder.export_web(model, options.folder)
    sizes = (f"{path.name} {path.stat().st_size / 1e3:.1f} kB" for path in sorted(folder.iterdir()))
    print(f"{folder}: {', '.join(sizes)}")


def write_check(
    models: Mapping[str, Model],
    folder: str | Path,
    version: str,
    kernels: Callable[[Target], Iterable[Sample]] = samples,
) -> Path:
    """Writes a page that says whether a browser computes the right bytes, and returns the folder.

    It runs what `check` runs: every kernel with an int8 or int16 result, on a large case that reaches it, and whole
    models by their names. `kernels` gives those of a target. Any static server can serve the page. cases.bin holds an
    export of each, compressed; reports name the `version` of this package.

    Raises InputError where the folder cannot be written.
    """
    path = path_of(folder, "export-web", "a folder")
    names: list[str] = []
    files: dict[str, bytes] = {}
    for target in (BASELINE, web_folder.CPU):
        for sample in kernels(target):
            if sample.kernel not in names:
                model = Model(sample.graph, Structure({"list": [0]}))
                made = web_folder.files(model, {"gpu": (build(sample.graph, target, sample.plan), target)})
                files |= {f"kernel/{len(names)}/{name}": data for name, data in made.items()}
                names.append(sample.kernel)
    for number, model in enumerate(models.values()):
        made = web_folder.files(model, web_folder.programs(model))
        files |= {f"network/{number}/{name}": data for name, data in made.items()}
    page = bundle.page()
    page["index.html"] = page["index.html"].replace(b"VERSION", version.encode())
    index = {"kernels": names, "networks": list(models)}
    return web_folder.write(page | {"cases.bin": _archive(index, files)}, path)


def _archive(index: Mapping[str, object], files: Mapping[str, bytes]) -> bytes:
    """What q8ta_wgpu/web/js/archive.js reads: the index with its length before it, and the contents, equal ones once,
    compressed."""
    places: dict[bytes, int] = {}
    size = 0
    for _, data in sorted(files.items(), key=lambda item: item[0].rpartition("/")[2]):  # like beside like compresses
        if data not in places:
            places[data] = size
            size += len(data)
    whole = {**index, "files": {name: (places[data], len(data)) for name, data in files.items()}}
    header = json.dumps(whole, separators=(",", ":")).encode()
    return gzip.compress(len(header).to_bytes(4, "little") + header + b"".join(places), mtime=0)
