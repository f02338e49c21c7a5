"""The same networks, input and threads in every int8 runtime that is installed: one table, JSON and a picture.

Each runtime makes its file and runs it in processes of its own (`bench/peer.py`), in turns over several rounds, so that
none is timed only while the machine is busy. What a runtime lacks is said in its row. On a machine without a GPU,
Vulkan and WebGPU mean software on the same cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.options import Options
from bench.peer import PEERS
from q8ta_wgpu.progress import through

NAMES = ("resnet50", "mobilenet_v2", "subpixel")
REFERENCE = "torch float32, CPU"
ROUNDS, MINUTES = 3, 10
FIGURES, PICTURE = Path("out/peers.json"), Path("out/peers.svg")


def part_peers(options: Options) -> None:
    """Times every peer on every network asked for; --names also takes peers by a part of their name."""
    networks = [name for name in options.names if name.isidentifier() and name in _networks()] or list(NAMES)
    parts = [name for name in options.names if name not in networks]
    peers = [peer for peer in PEERS if peer == REFERENCE or not parts or any(part in peer for part in parts)]
    rows: list[dict[str, Any]] = []
    for network in networks:
        with tempfile.TemporaryDirectory() as scratch:
            found = measured(network, peers, Path(scratch), os.cpu_count() or 1)
        print(table(network, found), flush=True)
        rows += [{"network": network, "peer": peer, **row} for peer, row in found.items()]
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    finite = [{key: None if value == float("inf") else value for key, value in row.items()} for row in rows]
    FIGURES.write_text(json.dumps({"threads": os.cpu_count(), "rows": finite}, indent=1), encoding="utf-8")
    draw(rows, PICTURE)
    print(f"{FIGURES}, {PICTURE}")


def _networks() -> set[str]:
    from tests.networks import NETWORKS

    return set(NETWORKS)


def measured(network: str, peers: list[str], scratch: Path, threads: int) -> dict[str, dict[str, Any]]:
    """What each peer reached: medians over rounds of seconds, milliseconds and MiB, and the signal to noise of its
    result against torch's float32 in decibels, None without that; or `missing`, why it could not."""
    rows: dict[str, dict[str, Any]] = {}
    results: dict[str, np.ndarray] = {}
    for peer in through(peers, f"{network}: making files"):
        folder = scratch / str(len(rows))
        folder.mkdir()
        rows[peer] = {"folder": folder, "rounds": []}
        _, rows[peer]["missing"] = _child("make", peer, network, folder, threads)
    for peer in through([*rows] * ROUNDS, f"{network}: timing"):
        row = rows[peer]
        if not row["missing"]:
            line, row["missing"] = _child("run", peer, network, row["folder"], threads)
            row["rounds"] += [json.loads(line)] if line else []
    for peer, row in rows.items():
        folder, rounds = row.pop("folder"), row.pop("rounds")
        if not row["missing"]:
            results[peer] = np.load(folder / "y.npy").ravel()
            row |= {key: float(np.median([one[key] for one in rounds])) for key in rounds[0]}
    for peer, found in results.items():
        rows[peer]["decibels"] = decibels(results[REFERENCE], found) if REFERENCE in results else None
    return rows


def decibels(expected: np.ndarray, found: np.ndarray) -> float:
    """Power of what was expected over that of the error; infinite where there is no error."""
    error = float(((expected - found) ** 2).sum())
    return 10 * float(np.log10(float((expected**2).sum()) / error)) if error else float("inf")


def _child(doing: str, peer: str, network: str, folder: Path, threads: int) -> tuple[str, str]:
    """The last line a process printed, and, if it failed, why."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.peer", doing, peer, network, str(folder), str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "LP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"took more than {MINUTES} minutes to {doing}"
    if done.returncode == 0:
        return done.stdout.strip().rpartition("\n")[2], ""
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
    reasons = [line for line in lines if "Error" in line] or lines or [f"ended with {done.returncode}"]
    return "", f"{doing}: {reasons[-1].strip()[:160]}"


def table(network: str, rows: dict[str, dict[str, Any]]) -> str:
    """A network's rows, fastest first; who could not take part last, and why."""
    lines = [f"{network:<32} {'ms':>9} {'load s':>8} {'MiB':>7} {'dB':>6}"]
    able = sorted((row["ms"], peer) for peer, row in rows.items() if not row["missing"])
    for ms, peer in able:
        row = rows[peer]
        error = f"{row['decibels']:>6.1f}" if row["decibels"] is not None else "-"
        lines.append(f"  {peer:<30} {ms:>9.2f} {row['load_s']:>8.2f} {row['memory_mib']:>7.0f} {error:>6}")
    lines += [f"  {peer:<30} not measured: {row['missing']}" for peer, row in rows.items() if row["missing"]]
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], target: Path) -> None:
    """Bars of milliseconds, a panel for each network."""
    from matplotlib.figure import Figure

    networks = list(dict.fromkeys(row["network"] for row in rows))
    figure = Figure(figsize=(5.5 * len(networks), 3.6), layout="constrained")
    for axes, network in zip(figure.subplots(1, len(networks), squeeze=False)[0], networks, strict=True):
        shown = [row for row in rows if row["network"] == network and not row["missing"]]
        shown.sort(key=lambda row: -float(row["ms"]))
        colours = ["#0072b2" if row["peer"].startswith("q8ta") else "#bbbbbb" for row in shown]
        bars = axes.barh([row["peer"] for row in shown], [row["ms"] for row in shown], color=colours)
        axes.bar_label(bars, [f"{row['ms']:.3g} ms" for row in shown], padding=2, fontsize=7)
        axes.set_title(network, fontsize=9)
        axes.margins(x=0.2)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
