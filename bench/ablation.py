"""What each rule of the quantizer is worth: networks of the suite with and without it.

The record of a quantized network says which rules matched its values: only without those it is quantized again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.accuracy import CALIBRATION, exact, one_array, side_by_side, signal_to_noise
from bench.figures import origin, write
from bench.suite.tasks import TASKS, inputs, trained
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.rules import RULES, left_out

FIGURES = Path("docs/rules.json")

LEAST = 0.1
"""dB from which on a difference is listed."""


def ablate(names: Sequence[str], jobs: int) -> None:
    """Prints what each rule gains in signal to noise, and writes docs/rules.json if all networks were requested."""
    wanted = [*(names or TASKS)]
    rows = [row for each in side_by_side(jobs, _rows, wanted) for row in each]
    for rule in RULES:
        own = [row for row in rows if row["rule"] == rule.name]
        said = ", ".join(f"{row['network']} {row['with'] - row['without']:+.1f}" for row in own if _differs(row))
        print(f"{rule.name}: {len(own)} networks have such values; {said or 'none differs'}; guard: {rule.guard}")
    if not names:
        guards = [{"rule": rule.name, "width": rule.width, "guard": rule.guard, "worth": rule.worth} for rule in RULES]
        now = origin("python -m bench accuracy --ablate", "reference", ("torch",))
        write(FIGURES, {**now, "rules": guards, "rows": rows}, "rules", "rows")


def _differs(row: dict[str, Any]) -> bool:
    return bool(abs(row["with"] - row["without"]) >= LEAST)


def _rows(name: str) -> list[dict[str, Any]]:
    """A row for each rule that matches values of a network of float outputs."""
    wanted = exact(name, TASKS[name].test)
    if not np.issubdtype(wanted.dtype, np.floating):
        return []
    ratio, found = _quantized(name, wanted)
    rows: list[dict[str, Any]] = []
    for rule in [rule.name for rule in RULES if rule.name in found]:
        with left_out(rule):
            without, _ = _quantized(name, wanted)
        rows.append({"network": name, "rule": rule, "with": round(ratio, 2), "without": round(without, 2)})
    return rows


def _quantized(name: str, wanted: Array) -> tuple[float, set[str]]:
    """Signal to noise in dB of a quantized network, and the names of the rules that matched."""
    arguments, _ = inputs(name, True, len(wanted))
    batches = [inputs(name, False, len(wanted), seed=seed)[0] for seed in range(CALIBRATION)]
    model = q8.compile(q8.quantize(trained(name), batches[0], batches, progress=False))
    found = q8.Session(model, "reference")(*(x.numpy() for x in arguments))
    rules = {rule for decision in model.graph.decisions for rule in decision.matched}
    return signal_to_noise(one_array(found), wanted), rules
