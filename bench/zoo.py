"""Tries the architectures of `bench.architectures` with random weights, one after another.

Each network is quantized, compiled, run and compared with the numpy reference, in a process of its own with a time
limit. Its row is appended to a JSON file, so that an interrupted run can be continued. docs/zoo.json has
all rows. Needs the extra `zoo`. Runs with another `--device` add rows for that adapter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib import metadata
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.architectures import names
from bench.builders import BUILDERS, example_inputs, is_idle, other_inputs, wake
from bench.figures import write
from bench.options import Options
from bench.zoo_table import RATIOS, Row, figures, share, summary
from q8ta_wgpu.frontend.notes import PRECISION, noted
from testbed.noise import worst_decibels
from testbed.yardstick import yardstick

_SEEDS = 1000
"""From one draw of a network to the next: how far the seeds of its inputs lie apart."""

LIMIT = 600
"""Limit of seconds for one network."""

RESULTS = Path("out/zoo.json")
FIGURES = Path("docs/zoo.json")


def measured(name: str, adapter: str | None, items: int = 1, draw: int = 0) -> Row:
    """The row of one network; `error` has the step that failed, and the reason. It is calibrated with one input and
    judged by the same one, or with several `items`, and judged by as many others. Each `draw` has weights and inputs of
    its own."""
    import torch

    from examples.vision import declare_operators

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(draw)
    library, _, short = name.partition(":")
    row: Row = {"name": name, "versions": _versions("torch", "torchao", library)}
    try:
        step = "build"
        declare_operators()
        module = BUILDERS[library](short).eval()
        inputs = example_inputs(module, torch)
        row["inputs"] = [list(x.shape) for x in inputs]
        if row.setdefault("woken", is_idle(module, inputs, torch)):
            wake(module, inputs, torch)
        seeds = range(_SEEDS * draw + 2, _SEEDS * draw + 2 * items + 1)
        first = other_inputs(module, inputs, seeds.start - 1, torch) if draw else inputs
        every = [first, *(other_inputs(module, inputs, seed, torch) for seed in seeds)]
        calibration, judged = every[:items], every[items:] if items > 1 else [first]
        with torch.no_grad():
            floats = [_arrays(module(*x)) for x in judged]
            row["float_db"] = _ratio(floats, [_arrays(module(*map(_rounded, x))) for x in judged])
        row["items"] = items
        step, start = "quantize", time.process_time()
        program = q8.quantize(module, inputs, calibration=calibration, progress=False)
        row["quantize_s"] = round(time.process_time() - start, 1)
        row["predicted_db"] = _predicted(program)
        step, start = "compile", time.process_time()
        model = q8.compile(program)
        row["compile_s"] = round(time.process_time() - start, 1)
        row["yardstick_db"] = _yardstick(module, calibration, judged, floats)
        row |= described(model)
        step = "run"
        row |= _compared(model, [[x.numpy() for x in given] for given in judged], floats, adapter)
    except Exception as error:
        row["error"] = f"{step}: {type(error).__name__}: {error}"
    return row


def _predicted(program: Any) -> float | None:
    """The signal-to-noise ratio that `quantize` predicted for the output farthest below the yardstick, in dB."""
    *_, predicted = noted(program.graph_module, PRECISION, (None,))
    return None if predicted is None else round(predicted, 1)


def _versions(*packages: str) -> list[str]:
    installed = {d.name: d.version for d in metadata.distributions()}
    return [f"{package} {installed[package]}" for package in packages if package in installed]


def described(model: q8.Model) -> Row:
    """A row's fields from a model's report: multiply-adds in int8 and in total, float nodes, islands and reasons."""
    report = model.report()
    return {
        "macs": report.macs[1],
        "macs_int8": report.macs[0],
        "int8": sum(report.int8.values()),
        "float32": report.float32,
        "islands": len(report.islands),
        "exact": report.exact,
        "reasons": {cause: len(notes) for cause, notes in report.reasons.items()},
    }


Arrays = list[np.ndarray[Any, Any]]


def _compared(model: q8.Model, judged: list[Arrays], floats: list[Arrays], adapter: str | None) -> Row:
    """A row's fields from runs: elements that differ between device and reference, and by how much relative to the
    largest; the signal-to-noise ratio against the float module over all inputs."""
    start = time.perf_counter()
    with q8.Session(model, adapter) as session:
        row: Row = {"dispatches": len(session.program.dispatches)}
        found = _arrays(session(*judged[0]))
        assert session.device is not None
        row["device"] = session.device.name
    row["run_s"] = round(time.perf_counter() - start, 1)
    reference = q8.Session(model, "reference")
    every = [_arrays(reference(*inputs)) for inputs in judged]
    expected = every[0]
    differ = [np.abs(f.astype(np.float64) - e) for f, e in zip(found, expected, strict=True)]
    row["elements"] = sum(d.size for d in differ)
    row["mismatches"] = int(sum((d > 0).sum() for d in differ))
    row["error_share"] = max(
        float(d.max() / max(np.abs(e).max(), 1e-30)) for d, e in zip(differ, expected, strict=True)
    )
    row["snr_db"] = _ratio(floats, every)
    return row


def _ratio(expected: list[Arrays], found: list[Arrays]) -> float | None:
    """The signal-to-noise ratio in dB of the first outputs over all inputs, of the part that has the lowest one."""
    ratio = worst_decibels(*([arrays[0] for arrays in every] for every in (expected, found)))
    return None if ratio is None else round(ratio, 1)


def _yardstick(module: Any, calibration: list[Any], judged: list[Any], floats: list[Arrays]) -> float | None:
    """The yardstick's signal-to-noise ratio in dB; None if torch cannot export the module by itself."""
    try:
        simulated = yardstick(module, calibration)
        return _ratio(floats, [_arrays(simulated(*x)) for x in judged])
    except Exception:
        return None


def _rounded(x: Any) -> Any:
    """An input rounded to 256 steps over its range, which adds noise of some -40 dB; integers are unchanged."""
    if not x.is_floating_point():
        return x
    step = (x.max() - x.min()) / 255
    return (x / step).round() * step if step else x


def _arrays(outputs: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(outputs, np.ndarray):
        return [outputs]
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    nested = outputs.values() if isinstance(outputs, dict) else outputs
    return [array for part in nested if part is not None for array in _arrays(part)]


def mean_of(rows: list[Row]) -> Row:
    """The row of several draws of a network: that of the first, with ratios that are means of all, and `draws`, each
    draw's ratios of the outputs and of the yardstick in dB. If a draw failed, its row."""
    failed = [row for row in rows if "error" in row]
    if failed or len(rows) == 1:
        return (failed or rows)[0]
    means: Row = {}
    for key in RATIOS:
        known = [row[key] for row in rows if row.get(key) is not None]
        means[key] = round(mean(known), 1) if len(known) == len(rows) else None
    worst = max(rows, key=lambda row: row["mismatches"])
    differing = {key: worst[key] for key in ("elements", "mismatches", "error_share")}
    return {**rows[0], **means, **differing, "draws": [[row["snr_db"], row["yardstick_db"]] for row in rows]}


def _in_a_process(name: str, adapter: str | None, items: int, draw: int) -> Row:
    command = [sys.executable, "-m", "bench.zoo", name, "--items", str(items), "--draw", str(draw)]
    command += ["--device", adapter] if adapter else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"took more than {LIMIT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"name": name, "error": f"the process ended with {done.returncode}: {done.stderr[-300:]}"}
    row: Row = json.loads(lines[-1])
    return row


def read(path: Path) -> list[Row]:
    """The rows of a results file, of which only the last for each network and device counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = {(row["name"], row.get("device", "")): row for row in map(json.loads, lines)}
    ran = {name for name, device in rows if device}
    return [row for (name, device), row in rows.items() if device or name not in ran]


def part_zoo(options: Options) -> None:
    """Runs the networks without a row, or those in `--names`, `jobs` at a time, each with as many draws of its weights
    and inputs as asked for, and writes the figures."""
    RESULTS.parent.mkdir(exist_ok=True)
    done = {row["name"] for row in read(RESULTS)}
    wanted = list(options.names) or [name for name in names() if name not in done]

    def one(name: str) -> Row:
        start = time.perf_counter()
        row = mean_of([_in_a_process(name, options.adapter, options.items, draw) for draw in range(options.draws)])
        return row | {"seconds": round(time.perf_counter() - start, 1)}

    with ThreadPoolExecutor(options.jobs) as pool, RESULTS.open("a") as file:
        running = [pool.submit(one, name) for name in wanted]
        for future in as_completed(running):
            row = future.result()
            print(json.dumps(row), file=file, flush=True)
            print(_line(row), flush=True)
    rows = read(RESULTS)
    print(summary(rows))
    write(FIGURES, figures(rows), "rows")


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['name']}: {row['error'].splitlines()[0]} ({row['seconds']} s)"
    return (
        f"{row['name']}: {share(row)} of the multiply-adds in int8, {row['mismatches']} mismatches, {row['seconds']} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--device")
    parser.add_argument("--items", type=int, default=1)
    parser.add_argument("--draw", type=int, default=0)
    arguments = parser.parse_args()
    print(json.dumps(measured(arguments.name, arguments.device, arguments.items, arguments.draw)))
