"""The benchmark of peers: what it measures of a runtime that is there, and how it names one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import peer, peers
from bench.runtimes import PEERS
from testbed.networks import NETWORKS, example_input
from testbed.noise import decibels


def test_ours_and_torch_compute_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "SECONDS", 0.0)
    entry = NETWORKS["linear_chain"]
    module, x = entry.factory(), example_input(entry.small_shape)
    found = {}
    for name in (peers.OURS, peers.REFERENCE):
        one = PEERS[name]
        one.make(module, x, tmp_path)
        found[name], figures = peer.timed(lambda one=one: one.load(tmp_path, 1), x.numpy())  # type: ignore[misc]
        others = figures.pop("others", 0.0)
        assert all(value > 0 for value in figures.values()) and set(figures) == {"load_s", "ms", "memory_mib"}
        assert 0 <= others <= 1
    error = decibels(found[peers.REFERENCE], found[peers.OURS])
    assert error is not None and 20 < error < 100


def test_every_peer_has_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails is named with its error; the others have medians, and their distance from float32."""
    figures = {"load_s": 1.0, "ms": 2.0, "memory_mib": 3.0}

    def child(doing: str, name: str, network: str, folder: Path, threads: int) -> tuple[str, str]:
        if "tinygrad" in name:
            return "", "make: ModuleNotFoundError: No module named 'tinygrad'"
        result = np.array([1.0, 2.0]) + 0.01 * (name != peers.REFERENCE)
        np.save(folder / "y.npy", result if "ncnn" not in name else np.zeros(3))
        return json.dumps({**figures, "others": 0.5 if name == peers.REFERENCE else 0.25}), ""

    monkeypatch.setattr(peers, "_child", child)
    names = [peers.OURS, peers.REFERENCE, "ncnn int8, CPU", "tinygrad float32, WebGPU"]
    rows = peers.measured("subpixel", names, tmp_path, 1)
    assert rows[peers.OURS]["ms"] == 2.0 and rows[peers.OURS]["decibels"] == pytest.approx(43.98, abs=0.01)
    assert rows[peers.OURS]["times"] == 1.0 and rows["ncnn int8, CPU"]["missing"] == "gave 3 values of 2"
    text = peers.table(rows).splitlines()[2:]
    assert len(text) == 4 and "not measured: make: ModuleNotFoundError: No module named 'tinygrad'" in text[-1]
    assert next(line for line in text if "q8ta" in line).endswith("| 2 | 1.00 | 1.0 | 3 | 44.0 | 25% |")
    assert next(line for line in text if peers.REFERENCE in line).endswith("| 2 | 0.67 | 1.0 | 3 |  | 50% |")


@pytest.mark.parametrize("others", [0.09, 0.11])
def test_a_run_beside_other_programs_writes_nothing(
    others: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {peers.OURS: {"version": "1", "missing": "", "load_s": 1.0, "ms": 2.0, "memory_mib": 3.0, "others": others}}
    rows[peers.OURS] |= {"times": 1.0, "decibels": None}
    monkeypatch.setattr(peers, "DATA", tmp_path / "DATA")
    monkeypatch.setattr(peers, "measured", lambda *given: rows)
    options: Any = SimpleNamespace(names=["subpixel"], device=SimpleNamespace(name="an adapter"))
    if others < peers.QUIET:
        peers.part_peers(options)
        data = json.loads(peers.DATA.read_text())
        assert data["networks"] == {"subpixel": rows} and data["command"] == "python -m bench peers"
        return
    with pytest.raises(SystemExit, match="other programs took 11% of the processors while subpixel was timed"):
        peers.part_peers(options)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_by_its_process(tmp_path: Path) -> None:
    line, missing = peers._child("run", "ncnn int8, CPU", "subpixel", tmp_path, 1)
    assert line == "" and missing.startswith("run: ") and "Error" in missing
