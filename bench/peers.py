"""Compares all installed int8 runtimes on the same networks, input and threads: docs/peers.json.

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
from bench.figures import origin, write
from bench.options import Options
from bench.runtimes import PEERS
from testbed.noise import decibels

NAMES = ("resnet50", "mobilenet_v2", "subpixel")
OURS, REFERENCE = "q8ta_wgpu int8", "torch float32, CPU"
ROUNDS, MINUTES = 3, 10
SLOW = 10_000
"""Runtimes whose call takes at least so many milliseconds run only one round."""

QUIET = 0.1
"""Limit of the share of the processors that other programs may use. Beyond it times may be wrong by factors."""

DATA = Path("docs/peers.json")


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
    peers_of = [PEERS[peer].package for peer in peers]
    data |= origin("python -m bench peers", options.device.name, peers_of)
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
        write(DATA, data)


def _networks() -> set[str]:
    from testbed.networks import NETWORKS

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
    for peer in peers:
        folders[peer] = scratch / str(len(rows))
        folders[peer].mkdir()
        _, missing = _child("make", peer, network, folders[peer], threads)
        rows[peer] = {"version": _version(PEERS[peer].package), "missing": missing, "rounds": []}
    for peer in [*rows] * ROUNDS:
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
