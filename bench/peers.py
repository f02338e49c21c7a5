"""Compares all installed int8 runtimes on the same networks, input and threads: docs/peers.md, its JSON and a picture.

Each runtime writes its file and runs it in processes of its own (`bench/peer.py`), in turns over several rounds, so
that none is timed only while the machine is busy. If a runtime cannot run a network, its row says why. On a machine
without a GPU, Vulkan and WebGPU mean software drivers on the same cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu
from bench.noise import decibels
from bench.options import Options
from bench.runtimes import PEERS
from q8ta_wgpu.progress import through

NAMES = ("resnet50", "mobilenet_v2", "subpixel")
OURS, REFERENCE = "q8ta_wgpu int8", "torch float32, CPU"
ROUNDS, MINUTES = 3, 10
SLOW = 10_000
"""Runtimes whose call takes at least so many milliseconds run only one round."""

QUIET = 0.1
"""Limit of the share of the processors that other programs may use. Beyond it times may be wrong by factors."""

DATA, PAGE, PICTURE = Path("docs/peers.json"), Path("docs/peers.md"), Path("docs/images/peers.svg")

HEAD = """\
# Beside other engines

On a machine without a GPU, runtimes with kernels for the CPU are fastest: ONNX Runtime and ExecuTorch. Of those that go
through Vulkan or WebGPU, which are software there, this library is the fastest. `python -m bench peers` wrote the
tables; `pip install -r bench/requirements.txt` brings the runtimes.

Each runtime makes its own file from the same torch module and runs it as its users would, on one image, with the same
number of threads, in processes of its own, all in turns. Times are medians, from numpy to numpy.

| column | is |
|---|---|
| times | a call against ours of the same run, both without what other programs took of the processors |
| load | seconds from the file to the first result, imports included |
| memory | the most that the process took |
| dB | signal to noise against torch's float32: 20 to 40 is what int8 keeps, near 0 or below is a wrong result |
| others | share of the processors that other programs took meanwhile |

A run that finds more than 10% of the processors taken by others writes nothing. Weights are random, so dB says how
exactly int8 was computed, not how accurate a trained network is.
"""
LOUD = """\
**Other programs took up to {most:.0%} of the processors when this was measured, before such runs were refused. These
times are wrong, by factors where rows differ in others.**
"""


def part_peers(options: Options) -> None:
    """Times every peer on every requested network. --names also selects peers by a part of their name. Other rows stay
    as in the last run on this machine."""
    networks = [name for name in options.names if name.isidentifier() and name in _networks()] or list(NAMES)
    patterns = [name for name in options.names if name not in networks]
    peers = [p for p in PEERS if p in (OURS, REFERENCE) or not patterns or any(part in p for part in patterns)]
    threads = os.cpu_count() or 1
    data = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    if data.get("machine") != (here := machine(options.device.name, threads)):
        data = {"machine": here, "networks": {}}
    for network in networks:
        with tempfile.TemporaryDirectory() as scratch:
            found = measured(network, peers, Path(scratch), threads)
        print(f"{network}\n\n{table(found)}\n", flush=True)
        if (share := loudest(found)) > QUIET:
            sys.exit(
                f"other programs took {share:.0%} of the processors while {network} was timed, a quiet run has at most "
                f"{QUIET:.0%}: nothing of this run is kept for {network}; end them and run it again"
            )
        data["networks"][network] = {**data["networks"].get(network, {}), **found}
        DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(data), encoding="utf-8")
        draw(data, PICTURE)


def _networks() -> set[str]:
    from tests.networks import NETWORKS

    return set(NETWORKS)


def machine(adapter: str, threads: int) -> str:
    """The processor, threads and adapter."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {threads} threads; {adapter}"


def measured(network: str, peers: list[str], scratch: Path, threads: int) -> dict[str, dict[str, Any]]:
    """The figures of each peer: medians over rounds of those of `peer.timed`, the time as a multiple of ours in this
    run, and the signal-to-noise ratio of its result against torch's float32 in dB (None if there is no error). If it
    failed, only `missing`, the reason."""
    rows: dict[str, dict[str, Any]] = {}
    folders: dict[str, Path] = {}
    for peer in through(peers, f"{network}: making files"):
        folders[peer] = scratch / str(len(rows))
        folders[peer].mkdir()
        _, missing = _child("make", peer, network, folders[peer], threads)
        rows[peer] = {"version": _version(PEERS[peer].package), "missing": missing, "rounds": []}
    for peer in through([*rows] * ROUNDS, f"{network}: timing"):
        row = rows[peer]
        if not row["missing"] and not any(one["ms"] > SLOW for one in row["rounds"]):
            line, row["missing"] = _child("run", peer, network, folders[peer], threads)
            row["rounds"] += [json.loads(line)] if line else []
    for row in rows.values():
        rounds = row.pop("rounds")
        if not row["missing"]:
            row |= {key: float(np.median([one[key] for one in rounds])) for key in rounds[0]}
    able = {peer: np.load(folders[peer] / "y.npy").ravel() for peer, row in rows.items() if not row["missing"]}
    expected = able.get(REFERENCE)
    for peer, result in able.items():
        if expected is not None and result.size != expected.size:
            rows[peer] = {"version": rows[peer]["version"], "missing": f"gave {result.size} values of {expected.size}"}
            continue
        rows[peer]["decibels"] = decibels(expected, result) if expected is not None else None
        rows[peer]["times"] = _left(rows[peer]) / _left(rows[OURS]) if OURS in able else None
    return rows


def loudest(rows: dict[str, dict[str, Any]]) -> float:
    """The largest share of the processors that other programs used while a row was timed."""
    return max((row.get("others", 0.0) for row in rows.values()), default=0.0)


def _left(row: dict[str, Any]) -> float:
    """Milliseconds of a call, times the share of the processors that other programs left."""
    return float(row["ms"] * (1 - row.get("others", 0.0)))


def _version(package: str) -> str:
    """The version of an installed package, or of this library, which need not be installed."""
    if package == "q8ta_wgpu":
        return q8ta_wgpu.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _child(doing: str, peer: str, network: str, folder: Path, threads: int) -> tuple[str, str]:
    """The last line that a process printed, and the reason if it failed."""
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
    # A compiler's words, which stand below those of its Python.
    compiler = [line.partition(" error: ")[2].partition(" loc(")[0] for line in lines if " error: " in line]
    reasons = compiler[:1] or [line for line in lines if "Error" in line] or lines or [f"ended with {done.returncode}"]
    return "", f"{doing}: {reasons[-1].strip().replace(str(folder), '')[:160]}"


def table(rows: dict[str, dict[str, Any]]) -> str:
    """A network's table, fastest first; then the peers that could not run it, and why."""
    lines = ["| runtime | ms | times | load s | memory MiB | dB | others |", "|---" * 7 + "|"]
    for peer, row in sorted(rows.items(), key=lambda item: float(item[1].get("times") or np.inf)):
        name = f"{peer} ({row['version']})" if row["version"] else peer
        if row["missing"]:
            lines.append(f"| {name} | not measured: {row['missing'].replace('|', '/')} | | | | | |")
            continue
        times, error, others = row["times"], row["decibels"], row.get("others")
        cells = [
            f"{row['ms']:.3g}" if row["ms"] < 1000 else f"{row['ms']:,.0f}",
            f"{times:.2f}" if times is not None else "",
            f"{row['load_s']:.1f}",
            f"{row['memory_mib']:.0f}",
            f"{error:.1f}" if error is not None else "",
            f"{others:.0%}" if others is not None else "",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def page(data: dict[str, Any]) -> str:
    """The text of docs/peers.md: a table for each network, and the picture."""
    parts = [HEAD, f"{data['machine']}.\n", f"![Milliseconds of a call, by network](images/{PICTURE.name})\n"]
    for network, rows in data["networks"].items():
        loud = [LOUD.format(most=loudest(rows))] if loudest(rows) > QUIET else []
        parts += [f"## {network}\n", *loud, f"{table(rows)}\n"]
    return "\n".join(parts)


def draw(data: dict[str, Any], target: Path) -> None:
    """Draws bars of each peer's time relative to ours, with a panel for each network."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    networks = data["networks"]
    figure = Figure(figsize=(8, 2.9 * len(networks)), layout="constrained")
    for axes, (network, rows) in zip(
        figure.subplots(len(networks), squeeze=False)[:, 0], networks.items(), strict=True
    ):
        shown = sorted(((row["times"], peer) for peer, row in rows.items() if row.get("times")), reverse=True)
        colours = ["#1f77b4" if peer == OURS else "#bbbbbb" for _, peer in shown]
        bars = axes.barh([peer for _, peer in shown], [times for times, _ in shown], color=colours, log=True)
        axes.bar_label(bars, [f"{times:.3g}" for times, _ in shown], padding=2, fontsize=7)
        axes.set_title(f"{network}: time of a call, ours being 1 (logarithmic: less is better)", fontsize=9)
        axes.margins(x=0.1)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    target.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "peers"}):
        figure.savefig(target, metadata={"Date": None})
