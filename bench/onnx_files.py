"""Compares networks that ONNX Runtime quantized with the same networks quantized by PT2E, in this library: bytes on
every adapter, agreement with ONNX Runtime's CPU provider, and times in turns. Writes docs/onnx_networks.md and its
JSON.

Needs torch and onnxruntime. `--names` selects networks and forms by parts of their names; other rows are kept.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.options import Options
from bench.runtimes import swiftshader
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.progress import through
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.adapters import open_device

DATA, PAGE = Path("docs/onnx.json"), Path("docs/onnx_networks.md")
PT2E = "PT2E"
CALIBRATED = 4
"""Calibration inputs of both quantizers."""

ROUNDS, ENOUGH = 9, 20.0
"""Timed calls of each program, in turns; only 3 if all of them would take more than ENOUGH seconds."""

HEAD = """\
# ONNX networks that were tried

`python -m bench onnx` exports torch modules as ONNX, quantizes them by ONNX Runtime's static quantizer (QDQ in int8,
QOperator in uint8) and its dynamic one, reads the files, and wrote this table.

| column | is |
|---|---|
| in int8 | share of the multiply-adds |
| float operators | those that the file leaves in float, then those beyond them |
| equal | int8 elements that are ONNX Runtime's, each operator given ONNX Runtime's operands |
| steps | the largest difference of these; two where an operator is two roundings |
| dB | the results of the whole network, signal to noise against ONNX Runtime's |
| differ | elements of the result that are not the reference's, on each adapter |
| times | a call beside that of the same module quantized by PT2E to int8, in turns on the first adapter |

ONNX Runtime is its processor provider, node by node as the file says. An element of an early layer that is at a tie
reaches many others: hence dB. Adapters: {adapters}.
"""
TAIL = """\
Other programs ran while these times were taken: they may be a tenth off. Those of BERT-base were not taken whole: one
layer of it from QDQ takes 0.98 to 1.07 times what PT2E's takes.

A dynamic file leaves most of a network in float32, whose last bits differ between devices; `differ` then says how far
the results are from the reference's, as a share of the largest. ONNX Runtime's static quantizer leaves recurrent layers
in float32, where PT2E's are int8: their times are no like for like.
"""


def part_onnx(options: Options) -> None:
    """Measures every network in every form, and writes the page."""
    from tests.onnx_import.modules import FORMS, MODULES

    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {"rows": {}}
    devices = dict(_devices())
    data["adapters"] = list(devices)
    wanted = [
        (name, form)
        for name in MODULES
        for form in FORMS
        if not options.names or any(part.lower() in f"{name} {form}".lower() for part in options.names)
    ]
    for name in dict.fromkeys(name for name, _ in wanted):
        forms = [form for each, form in wanted if each == name]
        rows, models, x = {}, {}, np.zeros(0)
        for form in through(forms, f"{name}: reading and comparing"):
            models[form], x = _model(name, form)
            rows[form] = _compared(name, form, models[form], x, devices)
            print(name, form, rows[form], flush=True)
        milliseconds = _timed({**models, PT2E: _by_torch(name)}, x, next(iter(devices.values())))
        for form in forms:
            rows[form]["times"] = milliseconds[form] / milliseconds[PT2E]
        print(name, {key: round(ms, 1) for key, ms in milliseconds.items()}, flush=True)
        data["rows"][name] = {**data["rows"].get(name, {}), **rows}
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(data), encoding="utf-8")


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
    from tests.onnx_import.modules import MODULES, inputs, quantized

    (x,) = inputs(MODULES[name].shape, 1)
    return q8.from_onnx(quantized(name, form, small=False)), x.numpy()


def _compared(name: str, form: str, model: q8.Model, x: Array, devices: Mapping[str, Any]) -> dict[str, Any]:
    from tests.onnx_import.modules import agreement, quantized

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
    from tests.onnx_import.modules import MODULES, inputs

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


def page(data: Mapping[str, Any]) -> str:
    """The text of docs/onnx_networks.md."""
    lines = ["| network | form | in int8 | float operators | equal | steps | dB | differ | times |", "|---" * 9 + "|"]
    for name, forms in data["rows"].items():
        for form, row in forms.items():
            cells = [
                name,
                form,
                f"{100 * row['macs']:.3g} %",
                _floats(row["left"], row["beyond"]),
                f"{100 * row['equal']:.3f} %" if form != "dynamic" else "",
                str(row["steps"]) if form != "dynamic" else "",
                "equal" if row["decibels"] > 200 else f"{row['decibels']:.1f}",
                _differ(row["differ"]),
                "" if row["times"] is None else f"{row['times']:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([HEAD.format(adapters="; ".join(data["adapters"])), *lines, "", TAIL])


def _floats(left: Sequence[str], beyond: Sequence[str]) -> str:
    kinds = f"{', '.join(left[:4])}{' …' if len(left) > 4 else ''}" if left else "none"
    return f"{kinds}; beyond: {', '.join(beyond)}" if beyond else kinds


def _differ(found: Sequence[Sequence[float]]) -> str:
    """A cell: differing elements by adapter; for float32 results the largest difference."""
    if not any(count for count, _ in found):
        return ", ".join("0" for _ in found)
    return f"up to {max(largest for _, largest in found):.1e}"
