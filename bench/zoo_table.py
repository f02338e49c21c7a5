"""What docs/zoo.json says of the rows that `bench.zoo` measured."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.figures import origin

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


def figures(rows: list[Row]) -> Row:
    """What docs/zoo.json holds: all networks on the device that ran most of them, and how many ran on others."""
    devices = [device for device, _ in Counter(row.get("device", "") for row in rows).most_common() if device]
    on = {device: rank for rank, device in enumerate(devices)}
    first: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: on.get(row.get("device", ""), len(on))):
        first.setdefault(_name(row), row)
    shown = [row for _, row in sorted(first.items())]
    used = [device for device in devices if any(row.get("device") == device for row in shown)]
    ran = [row for row in shown if "error" not in row]
    data = origin("python -m bench zoo", used)
    data["versions"] = _versions(shown)
    data |= {"tried": len(shown), "ran": len(ran), "equal": sum(not row["mismatches"] for row in ran)}
    data["int8_share"] = sum(row["macs_int8"] for row in ran) / max(sum(row["macs"] for row in ran), 1)
    data["others"] = _others([row for row in rows if first[_name(row)] is not row], devices)
    return data | {"rows": [_row(row) for row in shown]}


def _versions(rows: list[Row]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for name, _, version in (line.partition(" ") for line in sorted({v for row in rows for v in row["versions"]})):
        found.setdefault(name, []).append(version)
    return {name: ", ".join(versions) for name, versions in found.items()}


def _name(row: Row) -> str:
    return str(row["name"]).replace(":", " ")


def _row(row: Row) -> Row:
    """A network's row; `draws` has the ratio of each draw of its weights and inputs, and the yardstick's."""
    if "error" in row:
        return {"name": _name(row), "error": " ".join(row["error"].split())[:300]}
    shape = ", ".join("x".join(map(str, shape)) for shape in row["inputs"])
    found = {"name": _name(row), "woken": bool(row.get("woken")), "input": shape, "dispatches": row["dispatches"]}
    found |= {key: row.get(key) for key in RATIOS} | {"quantize_s": row["quantize_s"], "exceptions": _exceptions(row)}
    return found | {key: row[key] for key in ("items", "draws") if row.get(key, 1) != 1}


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


def _others(rows: list[Row], devices: list[str]) -> list[Row]:
    """Of each other device how many networks ran there, and which of them differ."""
    found = []
    for device in devices:
        own = [row for row in rows if row.get("device") == device]
        differ = [f"{_name(row)} {_differing(row)}" for row in own if row["mismatches"]]
        found += [{"device": device, "ran": len(own), "mismatches": differ}] if own else []
    return found
