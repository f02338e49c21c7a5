"""bench zoo: a row for a network, the file that rows are appended to, the figures they become."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench import architectures, builders, zoo
from bench.zoo_table import figures
from testbed.blocks import conv


def _built(monkeypatch: pytest.MonkeyPatch, build: Callable[[str], nn.Module]) -> None:
    """Names that begin with `small:` are networks of a test, on images of 8 x 8."""
    monkeypatch.setattr(zoo, "BUILDERS", {"small": build})
    monkeypatch.setattr(builders, "SIZES", (8,))


def test_rows_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that runs, one that cannot be imported and one that cannot be built; the last row of a name counts."""

    class Sorted(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.logcumsumexp(-1)

    made = {"net": nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 5)), "sorted": Sorted()}
    _built(monkeypatch, made.__getitem__)
    rows = [{**zoo.measured(f"small:{name}", "llvmpipe"), "seconds": 1.0} for name in ("net", "sorted", "missing")]
    net, refused, missing = rows
    assert (net["mismatches"], net["macs_int8"], net["inputs"]) == (0, net["macs"], [[1, 3, 8, 8]])
    assert net["macs"] > 0
    assert (net["woken"], net["snr_db"] > 20, 30 < net["float_db"] < 50) == (False, True, True)
    assert "quantize: UnsupportedError" in refused["error"]
    assert "build: KeyError" in missing["error"]
    path = tmp_path / "zoo.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"name": "small:net", "error": "old"}, *rows]))
    assert zoo.read(path) == rows
    data = figures(rows)
    assert (data["tried"], data["ran"], data["equal"], data["int8_share"], data["others"]) == (3, 1, 1, 1.0, [])
    (shown,) = (row for row in data["rows"] if row["name"] == "small net")
    assert (shown["input"], shown["exceptions"], shown["snr_db"] > 20) == ("1x3x8x8", "", True)
    assert any("aten.logcumsumexp.default" in row.get("error", "") for row in data["rows"])
    elsewhere = {**net, "device": "another", "mismatches": 3, "error_share": 0.5}
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, elsewhere]))
    differs = f"small net 3 of {net['elements']} (by 5.0e-01)"
    assert figures(zoo.read(path))["others"] == [{"device": "another", "ran": 1, "mismatches": [differs]}]
    halves = {**net, "macs": 2 * net["macs"], "float32": {"softmax": 2}, "islands": 1}
    (shown,) = figures([{**halves, "mismatches": 3, "error_share": 0.5}])["rows"]
    expected = f"50.0 % int8 macs, softmax 2, 1 islands, mismatches 3 of {net['elements']} (by 5.0e-01)"
    assert shown["exceptions"] == expected


def test_an_idle_network_is_woken() -> None:
    """Values shrink from layer to layer, the head begins at zero, and norms begin near it."""
    torch.manual_seed(0)
    head = nn.Linear(256, 5)
    layers = [nn.Sequential(conv(4, 4), nn.BatchNorm2d(4), nn.SiLU()) for _ in range(12)]
    module = nn.Sequential(conv(3, 4), *layers, nn.Flatten(), head).eval()
    inputs = (torch.randn(1, 3, 8, 8),)
    assert builders.is_idle(module, inputs, torch)
    nn.init.zeros_(head.weight)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.weight, std=0.02)
    builders.wake(module, inputs, torch)
    assert not builders.is_idle(module, inputs, torch)
    assert all(part.weight.min() > 0.1 for part in module.modules() if isinstance(part, nn.BatchNorm2d))
    assert not module.training
    assert all(not part.training for part in module.modules())


def test_a_network_of_several_inputs_has_its_own_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timestep lies in its range; a list among the arguments is a constant; the first output counts."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.time = conv(3, 4), nn.Linear(1, 4)

        def forward(self, sample: Any, timestep: Any, shift: Any, scale: float) -> Any:
            return self.conv(sample) * scale + self.time(timestep[:, None])[..., None, None] + shift, None

    arguments = {"sample": (1, 3, 8, 8), "timestep": range(500, 1000), "shift": [[[0.5]]], "scale": 2.0}
    module = builders.positional(Denoiser(), arguments, torch)
    x, timestep = builders.example_inputs(module, torch)
    assert (x.shape, 500 <= float(timestep) < 1000) == ((1, 3, 8, 8), True)
    _built(monkeypatch, lambda name: module)
    row = zoo.measured("small:denoiser", "llvmpipe", items=2)
    assert (row["mismatches"], row["inputs"]) == (0, [[1, 3, 8, 8], [1]])
    (shown,) = figures([row])["rows"]
    assert (shown["name"], shown["input"], shown["items"]) == ("small denoiser", "1x3x8x8, 1", 2)


def test_rows_of_several_draws_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw has weights and inputs of its own; one that fails is said."""
    _built(monkeypatch, lambda name: nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 5)))
    rows = [zoo.measured("small:net", "llvmpipe", draw=draw) for draw in range(3)]
    assert len({row["snr_db"] for row in rows}) == 3
    row = zoo.mean_of(rows)
    assert row["snr_db"] == pytest.approx(sum(each["snr_db"] for each in rows) / 3, abs=0.051)
    assert figures([row])["rows"][0]["draws"] == [[each["snr_db"], each["yardstick_db"]] for each in rows]
    assert zoo.mean_of(rows[:1]) == rows[0]
    assert zoo.mean_of([*rows, {"name": "small:net", "error": "build: no"}])["error"] == "build: no"


def test_every_name_has_a_builder() -> None:
    names = architectures.names()
    assert len(names) == len(set(names))
    assert {name.partition(":")[0] for name in names} == set(builders.BUILDERS)
