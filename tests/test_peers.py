"""The benchmark of peers: what it measures of a runtime that is there, and how it names one that is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import peer, peers
from tests.networks import NETWORKS, example_input


def test_ours_and_torch_compute_the_same_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "SECONDS", 0.0)
    entry = NETWORKS["linear_chain"]
    module, x = entry.factory(), example_input(entry.small_shape)
    found = {}
    for name in ("q8ta_wgpu int8", peers.REFERENCE):
        one = peer.PEERS[name]
        one.make(module, x, tmp_path)
        found[name], figures = peer.timed(lambda one=one: one.load(tmp_path, 1), x.numpy())  # type: ignore[misc]
        assert all(value > 0 for value in figures.values()) and set(figures) == {"load_s", "ms", "memory_mib"}
    error = peers.decibels(found[peers.REFERENCE], found["q8ta_wgpu int8"])
    assert 20 < error < 100


def test_every_peer_has_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that fails is named with its error; the others have medians, and their distance from float32."""
    figures = {"load_s": 1.0, "ms": 2.0, "memory_mib": 3.0}

    def child(doing: str, name: str, network: str, folder: Path, threads: int) -> tuple[str, str]:
        if "tinygrad" in name:
            return "", "make: ModuleNotFoundError: No module named 'tinygrad'"
        np.save(folder / "y.npy", np.array([1.0, 2.0]) + 0.01 * (name != peers.REFERENCE))
        return json.dumps(figures), ""

    monkeypatch.setattr(peers, "_child", child)
    names = ["q8ta_wgpu int8", peers.REFERENCE, "tinygrad float32, WebGPU"]
    rows = peers.measured("subpixel", names, tmp_path, 1)
    assert rows["q8ta_wgpu int8"]["ms"] == 2.0 and rows["q8ta_wgpu int8"]["decibels"] == pytest.approx(43.98, abs=0.01)
    text = peers.table("subpixel", rows).splitlines()
    assert len(text) == 4 and text[-1].endswith("not measured: make: ModuleNotFoundError: No module named 'tinygrad'")
    assert next(line for line in text if peers.REFERENCE in line).endswith(" inf")
    assert next(line for line in text if "q8ta" in line).endswith(" 44.0")
    drawn: list[dict[str, Any]] = [{"network": "subpixel", "peer": name, **row} for name, row in rows.items()]
    peers.draw(drawn, tmp_path / "peers.svg")
    assert (tmp_path / "peers.svg").read_text().count("2 ms") >= 2


def test_a_missing_package_is_named_by_its_process(tmp_path: Path) -> None:
    line, missing = peers._child("run", "ncnn int8, CPU", "subpixel", tmp_path, 1)
    assert line == "" and missing.startswith("run: ") and "Error" in missing
