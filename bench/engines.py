"""Counts the bytes of each kernel's result that differ from the numpy reference's, on every engine and adapter, with
the packed and the emulated dot product.

docs/kernels.json has a column for each engine and adapter: how many kernels ran, and those that gave other bytes or
did not run. Each machine on which it runs adds its columns. `--names` selects columns by parts of their names. Node and
Chromium are included if they are installed.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.figures import origin, write
from bench.options import Options
from q8ta_wgpu.commands.check import mismatches
from q8ta_wgpu.commands.example import Sample, samples
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.target import BASELINE, Target
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.web import bundle, web_folder

DATA = Path("docs/kernels.json")
DOTS = ("packed", "emulated")
Found = dict[str, dict[str, int | str]]
"""By kernel, then by dot product: number of bytes that differ, or the reason why it did not run."""


class Runs(Protocol):
    """Runs a sample with one of the dot products; returns the number of bytes that differ."""

    def __call__(self, sample: Sample, target: Target, dot: str) -> int: ...


def part_engines(options: Options) -> None:
    """Adds the columns of this machine."""
    columns: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))["columns"] if DATA.exists() else {}
    for title, targets, opened in _columns():
        if options.names and not any(part.lower() in title.lower() for part in options.names):
            continue
        with opened as runs:
            found = _column(runs, targets)
        wrong = {kernel: cells for kernel, cells in found.items() if any(cells.values())}
        print(f"{title}: {len(found)} kernels, wrong: {wrong or 0}", flush=True)
        now = origin("python -m bench engines", sorted({*columns, title}))
        columns[title] = {"commit": now["commit"], "date": now["date"], "kernels": len(found), "wrong": wrong}
        write(DATA, {**now, "columns": dict(sorted(columns.items()))})


def _columns() -> Iterator[tuple[str, tuple[Target, ...], contextlib.AbstractContextManager[Runs]]]:
    """(title, targets, function that runs samples) for every adapter, one of equal ones, Node and Chromium."""
    titles = set[str]()
    for number, (engine, adapter) in enumerate(engines.listed()):
        title = engine.describe(adapter)
        if title in titles:
            continue
        with contextlib.suppress(DeviceError):
            yield title, (open_device(number).target,), _device(number)
            titles.add(title)
    from testbed import browsers as web
    from testbed.devices import SWIFTSHADER

    icd = next((f for folder in SWIFTSHADER if (f := folder / "vk_swiftshader_icd.json").exists()), None)
    both = (BASELINE, web_folder.CPU)
    if icd and not web.missing_node():
        yield "Node (SwiftShader)", both, _script(lambda: web.Node(icd))
    if not web.missing_chromium():
        yield "Chromium (SwiftShader)", both, _script(web.Chromium)


def _column(runs: Runs, targets: tuple[Target, ...]) -> Found:
    found: Found = {}
    for target in targets:
        for sample in samples(target):
            if sample.kernel in found:
                continue
            cells = found[sample.kernel] = {}
            text = build(sample.graph, target, sample.plan).shaders[0]
            for dot in DOTS if "dot4I8Packed" in text else DOTS[:1]:
                try:
                    cells[dot] = runs(sample, target, dot)
                except Exception as error:
                    cells[dot] = f"{type(error).__name__}: {error}"[:200]
    return found


@contextlib.contextmanager
def _device(number: int) -> Iterator[Runs]:
    device = open_device(number)

    def run(sample: Sample, target: Target, dot: str) -> int:
        return mismatches(device, replace(target, packed_dot=dot == "packed"), sample)

    yield run


_CODE = """
    const { load } = await import(given.script);
    const net = await load(given.url, { verify: false, packed: given.packed, kind: "gpu" });
    const read = async (name) => await (await fetch(`${given.url}/${name}`)).arrayBuffer();
    const arrays = { float32: Float32Array, int8: Int8Array, int16: Int16Array }, inputs = {};
    for (const { name, dtype } of net.inputs) {
        inputs[name] = new arrays[dtype](await read(`${name}.bin`));
    }
    const [found] = await net.run(inputs), expected = new arrays[net.outputs[0].dtype](await read("expected.bin"));
    net.destroy();
    if (found.length !== expected.length) throw new Error(`${found.length} elements, expected ${expected.length}`);
    return expected.reduce((count, value, i) => count + (value !== found[i]), 0);
"""


@contextlib.contextmanager
def _script(start: Any) -> Iterator[Runs]:
    """Exports samples for the web, and runs them by q8ta.js."""
    from testbed.browsers import served

    with tempfile.TemporaryDirectory() as name, served(Path(name)) as url, contextlib.closing(start()) as engine:
        folder = Path(name)
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "blank.html").write_text("<!doctype html><title>blank</title>")
        page = hasattr(engine, "driver")
        if page:
            engine.driver.get(f"{url}blank.html")

        def run(sample: Sample, target: Target, dot: str) -> int:
            made = folder / "net"
            model = Model(sample.graph, Structure({"list": [0]}))
            written = web_folder.files(model, {"gpu": (build(sample.graph, target, sample.plan), target)})
            web_folder.write(bundle.files() | written, made)
            _arrays(made, {**sample.inputs, "expected": sample.expected})
            script = f"{url}net/q8ta.js" if page else str(made / "q8ta.js")
            return int(engine.run(_CODE, url=f"{url}net", script=script, packed=dot == "packed"))

        yield run


def _arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        (folder / f"{name}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
