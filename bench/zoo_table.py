"""The text of docs/zoo.md, from rows that `bench.zoo` measured."""

from __future__ import annotations

import textwrap
from collections import Counter
from statistics import mean, median, stdev
from typing import Any

Row = dict[str, Any]

RATIOS = ("snr_db", "yardstick_db", "predicted_db", "float_db")
"""The signal-to-noise ratios in a row, in the order of the table's columns."""


def share(row: Row) -> str:
    """The share of a network's multiply-adds that are int8, in percent."""
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
        "| seconds | to quantize, on one processor of a machine that did other work as well; by the clock on two cores "
        "that did nothing else DINOv2 at 518 pixels took 19, coat_tiny 17 to 22, dm_nfnet_f0 15 |",
        "| exceptions | what is not int8 or differs from the reference; empty: everything is int8, 0 mismatches |",
        "",
        "Weights are random, so SNR says what int8 adds to a network of this depth, not how accurate a trained one is.",
        "It changes by a decibel from draw to draw. A limit far below 40 dB means that the network makes any noise",
        "larger. Where only the SNR is low, int8 is the cause. Mismatches are output elements that differ in any bit;",
        "float32 operators have a tolerance, so the largest difference is given as a share of the largest output.",
        "Networks with a star hardly depend on their input as they are made: they got other initial values, and",
        "batch norm statistics of random inputs. Outputs that are zeros have no SNR. Where rounding the input changes",
        "nothing there is no limit. Rows that say *of 8* are calibrated with 8 inputs and judged by 8 others. Rows of",
        "several draws are means: each draw has other weights and other inputs.",
        "",
        *_draws(list(first.values())),
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


def _draws(rows: list[Row]) -> list[str]:
    """A table of the networks that were drawn several times: their SNR less the yardstick's."""
    drawn = [row for row in rows if all(None not in ratios for ratios in row.get("draws", [(None,)]))]
    found = [(row, [snr - yardstick for snr, yardstick in row["draws"]]) for row in drawn]
    if not found:
        return []
    lines = ["| architecture | draws | SNR less yardstick dB, mean and its standard error | lowest to highest |"]
    lines.append("|---|---|---|---|")
    for row, less in sorted(found, key=lambda each: _name(each[0])):
        error = stdev(less) / len(less) ** 0.5
        lines.append(
            f"| {_name(row)} | {len(less)} | {mean(less):+.1f} ± {error:.1f} | {min(less):+.1f} to {max(less):+.1f} |"
        )
    return [*lines, ""]


def _name(row: Row) -> str:
    return str(row["name"]).replace(":", " ")


def _row(row: Row) -> str:
    if "error" in row:
        return f"| {_name(row)} | | | | | | | | {_escaped(row['error'])} |"
    shape = ", ".join("x".join(map(str, shape)) for shape in row["inputs"])
    ratios = ("" if row.get(key) is None else str(row[key]) for key in RATIOS)
    marks = (" *" if row.get("woken") else "") + (f" of {row['items']}" if row.get("items", 1) > 1 else "")
    marks += f", {len(row['draws'])} draws" if "draws" in row else ""
    return (
        f"| {_name(row)}{marks} | {shape} | {row['dispatches']} | {' | '.join(ratios)} "
        f"| {row['quantize_s']} | {_exceptions(row)} |"
    )


def _exceptions(row: Row) -> str:
    """A cell: multiply-adds and operators that are not int8, float islands, elements that differ; empty without any."""
    found = [] if share(row) == "100.0 %" else [f"{share(row)} int8 macs"]
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
