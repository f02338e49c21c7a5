"""Compares networks that ONNX Runtime quantized with the same networks quantized by PT2E, in this library: bytes on
every adapter, agreement with ONNX Runtime's CPU provider, and times in turns. Writes docs/onnx.json.

Needs torch and onnxruntime. `--names` selects networks and forms by parts of their names; other rows are kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.options import Options
from bench.runtimes import swiftshader
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device

DATA = Path("docs/onnx.json")
PT2E = "PT2E"
CALIBRATED = 4
"""Calibration inputs of both quantizers."""

ROUNDS, ENOUGH = 9, 20.0
"""Timed calls of each program, in turns; only 3 if all of them would take more than ENOUGH seconds."""


def part_onnx(options: Options) -> None:
    """Measures every network in every form, and writes the figures."""
    from testbed.onnx.modules import FORMS, MODULES

    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"rows": {}}
    devices = dict(_devices())
    data |= origin("python -m bench onnx", list(devices), ("onnx", "onnxruntime", "torch"))
    wanted = [
        (name, form)
        for name in MODULES
        for form in FORMS
        if not options.names or any(part.lower() in f"{name} {form}".lower() for part in options.names)
    ]
    for name in dict.fromkeys(name for name, _ in wanted):
        forms = [form for each, form in wanted if each == name]
        rows, models, x = {}, {}, np.zeros(0)
        for form in forms:
            models[form], x = _model(name, form)
            rows[form] = _compared(name, form, models[form], x, devices)
            print(name, form, rows[form], flush=True)
        milliseconds = _timed({**models, PT2E: _by_torch(name)}, x, next(iter(devices.values())))
        for form in forms:
            rows[form]["times"] = milliseconds[form] / milliseconds[PT2E]
        print(name, {key: round(ms, 1) for key, ms in milliseconds.items()}, flush=True)
        data["rows"][name] = {**data["rows"].get(name, {}), **rows}
        write(DATA, data)


def _devices() -> Iterator[tuple[str, Any]]:
    """The adapters of this machine; SwiftShader only through Dawn."""
    dawn = engines.dawn()
    if dawn is not None and "VK_ADD_DRIVER_FILES" not in os.environ:
        swiftshader()
        dawn.adapters()  # kept for the whole process
        os.environ.pop("VK_ADD_DRIVER_FILES", None)
    for number, (engine, adapter) in enumerate(engines.listed()):
        try:
            yield engine.describe(adapter), open_device(number)
        except DeviceError as error:
            print(f"{engine.describe(adapter)} is left out: {error}")


def _model(name: str, form: str) -> tuple[q8.Model, Array]:
    """A network in a form, as read from its ONNX file, and an input that is not one of the calibration's."""
    from testbed.onnx.modules import MODULES, inputs, quantized

    (x,) = inputs(MODULES[name].shape, 1)
    return q8.from_onnx(quantized(name, form, small=False)), x.numpy()


def _compared(name: str, form: str, model: q8.Model, x: Array, devices: Mapping[str, Any]) -> dict[str, Any]:
    from testbed.onnx.modules import agreement, quantized

    row = asdict(agreement(quantized(name, form, small=False), model, x))
    expected = np.asarray(q8.Session(model, device="reference")(x))
    row["differ"] = []
    for device in devices.values():
        with q8.Session(model, device) as session:
            found = np.asarray(session(x))
        largest = float(np.abs(found - expected).max() / np.abs(expected).max())
        row["differ"].append([int((found != expected).sum()), largest])
    return row


def _by_torch(name: str) -> q8.Model:
    """The same module by torch's quantization, every value in int8 as in the files."""
    from testbed.onnx.modules import MODULES, inputs

    module = MODULES[name]
    x, *items = inputs(module.shape, 1), *inputs(module.shape, CALIBRATED, 100)
    quantizer = q8.Quantizer(precision="int8", residual="int8")
    program = q8.quantize(module.make(), (x[0],), items, quantizer, progress=False)
    return q8.compile(program)


def _timed(models: Mapping[str, q8.Model], x: Array, device: Any) -> dict[str, float]:
    """Median milliseconds of a call from numpy to numpy, in turns."""
    sessions = {key: q8.Session(model, device) for key, model in models.items()}
    for session in sessions.values():
        session(x)
    samples: dict[str, list[float]] = {key: [] for key in sessions}
    begun = time.perf_counter()
    for turn in range(ROUNDS):
        if turn >= 3 and time.perf_counter() - begun > ENOUGH:
            break
        for key, session in list(sessions.items())[:: 1 if turn % 2 else -1]:
            start = time.perf_counter()
            session(x)
            samples[key].append(time.perf_counter() - start)
    for session in sessions.values():
        session.close()
    return {key: 1e3 * float(np.median(found)) for key, found in samples.items()}
