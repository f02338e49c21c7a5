"""Compares this tree with another commit: `python -m bench compare OTHER [--device NAME] [--limit 1.2]`.

Both run in turns, in processes of their own. Ratios are medians over the rounds, each of two runs side by side, of
processor time: what other programs take does not count. With a limit the exit status is 1 where a call is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.compared import NETWORKS

ROOT = Path(__file__).parents[1]
ROUNDS = 5
STEPS = ("quantize", "compile", "open", "call", "gpu")
LIMITED = ("call",)
"""Not the time on the GPU, which software adapters share with other programs."""

Run = Mapping[str, Mapping[str, Any]]
"""By network, what `bench.compared` prints."""


def unpacked(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder. Ends the program where there is no such commit."""
    done = subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"compare: {done.stderr.decode(errors='replace').strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)


def ran(tree: Path, names: Sequence[str], adapter: str | None) -> Run:
    """What the commit in a tree takes. Ends the program where it fails."""
    command = [sys.executable, str(ROOT / "bench" / "compared.py"), adapter or "", *names]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"compare: {tree} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: Run = json.loads(done.stdout.splitlines()[-1])
    return found


def ratios(theirs: Sequence[Run], ours: Sequence[Run]) -> dict[tuple[str, str], list[float]]:
    """By network and step, our time divided by theirs in each round."""
    found: dict[tuple[str, str], list[float]] = {}
    for their, our in zip(theirs, ours, strict=True):
        for name, row in our.items():
            for step in STEPS:
                if step in row and step in their[name]:
                    found.setdefault((name, step), []).append(row[step] / their[name][step])
    return found


def report(theirs: Sequence[Run], ours: Sequence[Run], limit: float | None) -> tuple[str, bool]:
    """(table of milliseconds and ratios, whether a step that has the limit passes it)."""
    lines = [f"{'network':<14}{'step':<10}{'other ms':>12}{'this ms':>12}{'ratio':>8}   lowest to highest"]
    slower = False
    for (name, step), found in ratios(theirs, ours).items():
        other, this = (1e3 * statistics.median(run[name][step] for run in runs) for runs in (theirs, ours))
        ratio = statistics.median(found)
        passed = limit is not None and step in LIMITED and ratio > limit
        slower |= passed
        spread = f"{min(found):.2f} to {max(found):.2f}{f', more than {limit}' if passed else ''}"
        lines.append(f"{name:<14}{step:<10}{other:>12.3f}{this:>12.3f}{ratio:>8.2f}   {spread}")
    changed = [name for name in ours[0] if ours[0][name]["result"] != theirs[0][name]["result"]]
    lines.append(f"results that differ: {', '.join(changed) or 'none'}")
    return "\n".join(lines), slower


def main(arguments: Sequence[str]) -> None:
    """Runs the comparison, and ends with 1 where a call is slower than the limit allows."""
    parser = argparse.ArgumentParser(prog="python -m bench compare", description=__doc__)
    parser.add_argument("other", metavar="OTHER", help="a commit, a branch or a tag")
    parser.add_argument("--device", help="part of an adapter's name")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each, behind one that warms caches")
    parser.add_argument("--limit", type=float, help="largest ratio of a call")
    parser.add_argument("--names", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    options = parser.parse_args(arguments)
    theirs: list[Run] = []
    ours: list[Run] = []
    with tempfile.TemporaryDirectory() as folder:
        unpacked(options.other, Path(folder))
        for turn in range(options.rounds + 1):
            sides = [(Path(folder), theirs), (ROOT, ours)]
            for tree, runs in sides if turn % 2 else reversed(sides):
                runs.append(ran(tree, options.names, options.device))
    text, slower = report(theirs[1:], ours[1:], options.limit)
    print(text)
    sys.exit(int(slower))
