"""What probes find is kept for an adapter, its driver and its engine: only what a probe passed, by the probe's text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from q8ta_wgpu.program import resolve
from q8ta_wgpu.runtime import findings, probe, rates
from q8ta_wgpu.runtime.device import Device
from testbed.standins import noted

INFO = {"device": "a card", "backend_type": "Vulkan", "description": "driver 1.2", "engine": "wgpu 0.32"}


pytestmark = pytest.mark.usefixtures("caches")


def test_probes_run_once(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = noted(monkeypatch, probe, "prepared")
    first = (probe.contract(vulkan), probe.loop_turns(vulkan), rates.dot_rates(vulkan, 0.001))
    assert len(ran) >= 4
    ran.clear()
    assert (probe.contract(vulkan), probe.loop_turns(vulkan), rates.dot_rates(vulkan, 0.001)) == first
    assert ran == []


def test_another_probe_is_run(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is of one text: arithmetic that changes is looked at again, and what is wrong is never kept."""
    assert probe.contract(vulkan) == ""
    complete = resolve.complete
    good, bad = "vec4<f32>(acc), multiplier", "vec4<f32>(acc & vec4<i32>(-2)), multiplier"
    monkeypatch.setattr(resolve, "complete", lambda *text: complete(*text).replace(good, bad))
    ran = noted(monkeypatch, probe, "run")
    for _ in range(2):
        assert "accumulator" in probe.contract(vulkan)
    assert len(ran) == 2


def test_adapters_drivers_and_engines_are_apart() -> None:
    findings.keep(INFO, "contract", True)
    assert findings.recall(INFO, "contract") is True
    for name in INFO:
        assert findings.recall({**INFO, name: "other"}, "contract") is None
    nameless = {**INFO, "description": ""}
    findings.keep(nameless, "contract", True)
    assert findings.recall(nameless, "contract") is None, "a driver that does not say which it is"


@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"format": 2}', "\x00", "[" * 10**5])
def test_a_damaged_file_is_empty(content: str, caches: Path) -> None:
    findings.keep(INFO, "contract", True)
    (path,) = caches.iterdir()
    whole = json.loads(path.read_text())
    path.write_text(content)
    assert findings.recall(INFO, "contract") is None
    changes: tuple[dict[str, Any], ...] = ({"found": []}, {"adapter": {}}, {"format": 1})
    for changed in changes:
        path.write_text(json.dumps({**whole, **changed}))
        assert findings.recall(INFO, "contract") is None
    findings.keep(INFO, "contract", True)
    assert findings.recall(INFO, "contract") is True


def test_rates_that_are_none(vulkan: Device, caches: Path) -> None:
    before = rates.dot_rates(vulkan, 0.001)
    (path,) = caches.iterdir()
    whole = json.loads(path.read_text())
    for wrong in ([1.0], ["1", "2"], [0.0, 1.0], "fast", None):
        found = {key: wrong for key in whole["found"]}
        path.write_text(json.dumps({**whole, "found": found}))
        assert min(rates.dot_rates(vulkan, 0.001).packed, before.packed) > 0


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs permissions of Unix")
def test_a_folder_that_cannot_be_made(caches: Path) -> None:
    caches.write_text("in the way")
    findings.keep(INFO, "contract", True)
    assert findings.recall(INFO, "contract") is None
