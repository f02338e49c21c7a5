"""Tries the architectures of `bench.architectures` with random weights, one after another.

Each network is quantized, compiled, run and compared with the numpy reference, in a process of its own with a time
limit. Its row is appended to a JSON file, so that an interrupted run can be continued. The rows are written as a table
to docs/zoo.md. Needs the extra `zoo`. Runs with another `--device` add rows for that adapter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.architectures import names
from bench.builders import BUILDERS, example_inputs, is_idle, other_inputs, wake
from bench.noise import decibels
from bench.options import Options
from bench.yardstick import yardstick
from q8ta_wgpu.frontend.notes import PRECISION, noted
from q8ta_wgpu.progress import through

Row = dict[str, Any]

RATIOS = ("snr_db", "yardstick_db", "predicted_db", "float_db")
"""The signal-to-noise ratios in a row, in the order of the table's columns."""

LIMIT = 600
"""Limit of seconds for one network."""

RESULTS = Path("out/zoo.json")
TABLE = Path("docs/zoo.md")


def measured(name: str, adapter: str | None, items: int = 1) -> Row:
    """The row of one network; `error` has the step that failed, and the reason. It is calibrated with one input and
    judged by the same one, or with several `items`, and judged by as many others."""
    import torch

    from examples.vision import declare_operators

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
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
        every = [inputs, *(other_inputs(module, inputs, seed, torch) for seed in range(2, 2 * items + 1))]
        calibration, judged = every[:items], every[items:] if items > 1 else [inputs]
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
    """The signal-to-noise ratio of the first outputs over all inputs, in dB."""
    ratio = decibels(*(np.concatenate([arrays[0].ravel() for arrays in every]) for every in (expected, found)))
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


def _in_a_process(name: str, adapter: str | None, items: int) -> Row:
    command = [sys.executable, "-m", "bench.zoo", name, "--items", str(items)]
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
    """Runs the networks without a row, or those in `--names`, `jobs` at a time, and writes the table."""
    RESULTS.parent.mkdir(exist_ok=True)
    done = {row["name"] for row in read(RESULTS)}
    wanted = list(options.names) or [name for name in names() if name not in done]

    def one(name: str) -> Row:
        start = time.perf_counter()
        row = _in_a_process(name, options.adapter, options.items)
        return row | {"seconds": round(time.perf_counter() - start, 1)}

    with ThreadPoolExecutor(options.jobs) as pool, RESULTS.open("a") as file:
        running = [pool.submit(one, name) for name in wanted]
        for _, future in zip(through(wanted, "zoo"), running, strict=True):
            row = future.result()
            print(json.dumps(row), file=file, flush=True)
            print(_line(row), flush=True)
    rows = read(RESULTS)
    print(summary(rows))
    TABLE.write_text(table(rows), encoding="utf-8")


def _line(row: Row) -> str:
    if "error" in row:
        return f"{row['name']}: {row['error'].splitlines()[0]} ({row['seconds']} s)"
    return (
        f"{row['name']}: {_share(row)} of the multiply-adds in int8, {row['mismatches']} mismatches, {row['seconds']} s"
    )


def _share(row: Row) -> str:
    return f"{100 * row['macs_int8'] / max(row['macs'], 1):.1f} %"


def summary(rows: list[Row]) -> str:
    """A sentence: how many networks run, how many without a mismatch, and how much of their work is int8."""
    ran = [row for row in rows if "error" not in row]
    equal = [row for row in ran if not row["mismatches"]]
    share = sum(r["macs_int8"] for r in ran) / max(sum(r["macs"] for r in ran), 1)
    return (
        f"{len(ran)} of {len(rows)} architectures that were tried compile and run, {len(equal)} with 0 mismatches; "
        f"{100 * share:.1f} % of their multiply-adds are int8."
    )


def table(rows: list[Row]) -> str:
    """The text of docs/zoo.md: all networks on the device that ran most of them, and how many ran on others."""
    devices = [device for device, _ in Counter(row.get("device", "") for row in rows).most_common() if device]
    on = {device: rank for rank, device in enumerate(devices)}
    first: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: on.get(row.get("device", ""), len(on))):
        first.setdefault(_name(row), row)
    used = [device for device in devices if any(row.get("device") == device for row in first.values())]
    versions = sorted({version for row in first.values() for version in row["versions"]})
    lines = [
        "# Zoo",
        "",
        summary(list(first.values())),
        "",
        "Small architectures of each family of torchvision, timm, transformers, diffusers, segmentation_models_pytorch",
        "and torchaudio, with random weights, are quantized with one batch, compiled, run and compared with the numpy",
        "reference, each in its own process. `python -m bench zoo` wrote this table with",
        *textwrap.wrap(f"{', '.join(versions)}, on {', '.join(used)}.", 120),
        "",
        *_compared_with(list(first.values())),
        "| column | is |",
        "|---|---|",
        "| SNR | signal to noise of the first output against the float module's, in dB |",
        "| yardstick | the same of a simulation that rounds inputs and weights of convolutions, linears and recurrent "
        "layers to int8, and nothing else; empty where it was not measured |",
        "| predicted | SNR as `quantize` predicted it, of the output that is farthest below the yardstick |",
        "| limit | the float module's own SNR when only its input is rounded to int8, which leaves 40 dB of that |",
        "| seconds | to quantize, on one processor of a machine that did other work as well; DINOv2 at 518 pixels took "
        "21 by the clock on two cores that did other work as well |",
        "| exceptions | what is not int8 or differs from the reference; empty: everything is int8, 0 mismatches |",
        "",
        "Weights are random, so SNR says what int8 adds to a network of this depth, not how accurate a trained one is.",
        "It changes by a decibel from draw to draw. A limit far below 40 dB means that the network makes any noise",
        "larger. Where only the SNR is low, int8 is the cause. Mismatches are output elements that differ in any bit;",
        "float32 operators have a tolerance, so the largest difference is given as a share of the largest output.",
        "Networks with a star hardly depend on their input as they are made: they got other initial values, and",
        "batch norm statistics of random inputs. Outputs that are zeros have no SNR. Where rounding the input changes",
        "nothing there is no limit. Rows that say *of 8* are calibrated with 8 inputs and judged by 8 others.",
        "",
        "| architecture | input | dispatches | SNR dB | yardstick dB | predicted dB | limit dB | seconds | "
        "exceptions |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(row) for _, row in sorted(first.items())),
    ]
    lines += _others([row for row in rows if first[_name(row)] is not row], devices)
    return "\n".join(lines) + "\n"


def _compared_with(rows: list[Row]) -> list[str]:
    """A paragraph that compares SNR with the yardstick and the predictions, if any row has them."""
    differences = {
        key: [row["snr_db"] - row[key] for row in rows if row.get("snr_db") is not None and row.get(key) is not None]
        for key in ("yardstick_db", "predicted_db")
    }
    beside, errors = differences.values()
    if not beside or not errors:
        return []
    near = [sum(abs(error) <= most for error in errors) for most in (1, 2)]
    below = sum(d < -1.5 for d in beside)
    text = (
        f"The median of SNR less yardstick is {median(beside):+.1f} dB; {below} of {len(beside)} rows are more than "
        f"1.5 dB below it. Of {len(errors)} SNRs `quantize` predicted {near[0]} within a decibel, {near[1]} within two."
    )
    return [*textwrap.wrap(text, 120), ""]


def _name(row: Row) -> str:
    return str(row["name"]).replace(":", " ")


def _row(row: Row) -> str:
    if "error" in row:
        return f"| {_name(row)} | | | | | | | | {_escaped(row['error'])} |"
    shape = ", ".join("x".join(map(str, shape)) for shape in row["inputs"])
    ratios = ("" if row.get(key) is None else str(row[key]) for key in RATIOS)
    marks = (" *" if row.get("woken") else "") + (f" of {row['items']}" if row.get("items", 1) > 1 else "")
    return (
        f"| {_name(row)}{marks} | {shape} | {row['dispatches']} | {' | '.join(ratios)} "
        f"| {row['quantize_s']} | {_exceptions(row)} |"
    )


def _exceptions(row: Row) -> str:
    """A cell: multiply-adds and operators that are not int8, float islands, elements that differ; empty without any."""
    found = [] if _share(row) == "100.0 %" else [f"{_share(row)} int8 macs"]
    found += [f"{op} {count}" for op, count in sorted(row["float32"].items())]
    found += [f"{row['islands']} islands"] if row["islands"] else []
    found += [f"mismatches {_differing(row)}"] if row["mismatches"] else []
    return ", ".join(found)


def _differing(row: Row) -> str:
    size = f" of {row['elements']} (by {row['error_share']:.1e})" if row["mismatches"] else ""
    return f"{row['mismatches']}{size}"


def _others(rows: list[Row], devices: list[str]) -> list[str]:
    """A paragraph on devices that are not in the table: how many networks ran on each, and which of them differ."""
    again = [device for device in devices if any(row.get("device") == device for row in rows)]
    if not again:
        return []
    lines = ["", "## Other devices", "", "| device | architectures | mismatches |", "|---|---|---|"]
    for device in again:
        own = [row for row in rows if row.get("device") == device]
        differ = [f"{_name(row)} {_differing(row)}" for row in own if row["mismatches"]]
        lines.append(f"| {device} | {len(own)} | {', '.join(differ) or 'none'} |")
    return lines


def _escaped(text: str) -> str:
    return " ".join(text.split())[:300].replace("|", "\\|")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--device")
    parser.add_argument("--items", type=int, default=1)
    arguments = parser.parse_args()
    print(json.dumps(measured(arguments.name, arguments.device, arguments.items)))
