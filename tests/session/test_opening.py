"""What is done while a device opens: a network is planned for the target that the same argument gave last."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.target import BASELINE, MatrixUnit, Target
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, sync_layouts
from q8ta_wgpu.runtime import expected, findings
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session import programs, runner
from testbed.harness import flat
from testbed.small import small_input, small_model

pytestmark = pytest.mark.usefixtures("caches")
WANTED = "a card"
UNITS = replace(BASELINE, name="a card with units", matrix_units=(MatrixUnit(16, 16, 32, 32), MatrixUnit(8, 8, 32, 16)))


def opened(patch: pytest.MonkeyPatch, device: Device, meanwhile: Callable[[], bool]) -> tuple[Session, list[Target]]:
    """A session whose device is there after `meanwhile`, and the targets that its network was planned for."""
    planned: list[Target] = []

    def noted(graph: Graph, target: Target, layouts: str) -> Plan:
        planned.append(target)
        return sync_layouts(graph, target, layouts)

    def slow(graph: Graph, wanted: Any) -> Device:
        assert wanted == WANTED
        assert meanwhile()
        return device

    with patch.context() as patched:
        patched.setattr(programs, "sync_layouts", noted)
        patched.setattr(runner, "device_for", slow)
        patched.setattr(runner, "_AT_ONCE", 0.0)
        return Session(small_model(), WANTED), planned


def right(session: Session) -> bool:
    found, wanted = (flat(s(small_input())) for s in (session, Session(session.model, "reference")))
    return all(np.array_equal(f, e) for f, e in zip(found, wanted, strict=True))


def until_planned(patch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Waits for the next program that is made, or refused."""
    done, shared = threading.Event(), programs.shared

    def told(*args: Any) -> Any:
        try:
            return shared(*args)
        finally:
            done.set()

    patch.setattr(programs, "shared", told)
    return lambda: done.wait(60)


def test_a_network_is_planned_while_its_device_opens(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time, when its target is known: the device is there only after the program."""
    first, planned = opened(monkeypatch, vulkan, lambda: not threading.Event().wait(0.1))
    assert planned == [vulkan.target] and right(first)
    second, planned = opened(monkeypatch, vulkan, until_planned(monkeypatch))
    assert planned == [vulkan.target] and right(second)


@pytest.mark.parametrize("other", [UNITS, replace(BASELINE, binding_size=64)], ids=["another card", "too small"])
def test_another_target_is_planned_again(other: Target, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess was wrong: the session has the device's own program, and the next guess is right."""
    expected.remember(WANTED, True, other)
    session, planned = opened(monkeypatch, vulkan, until_planned(monkeypatch))
    assert planned == [other, vulkan.target] and right(session)
    assert expected.target(WANTED, True) == vulkan.target


@pytest.mark.parametrize("wrong", [{"storage_buffers": "8"}, {"uniform_alignment": 0}], ids=str)
def test_a_guess_that_cannot_be_planned_for(
    wrong: dict[str, Any], vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file of targets never keeps a session from opening."""
    expected.remember(WANTED, True, replace(BASELINE, **wrong))
    session, planned = opened(monkeypatch, vulkan, until_planned(monkeypatch))
    assert planned[-1] == vulkan.target and right(session)
    assert expected.target(WANTED, True) == vulkan.target


def test_a_program_that_was_made_meanwhile_tells_of_matrix_units(
    vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Device(vulkan.wgpu)
    other.unit_faults = {MatrixUnit(16, 16, 32, 32): "wrong words"}
    expected.remember(WANTED, True, other.target)
    session, planned = opened(monkeypatch, other, until_planned(monkeypatch))
    assert planned == [other.target]
    assert session.program.notes == ("matrix unit 16x16x32 is not used: wrong words",)


def test_targets_are_told_apart() -> None:
    """By argument, and by whether the network has products. What this version cannot read is not known."""
    assert expected.target(None, True) is None
    expected.remember(None, True, UNITS)
    expected.remember(0, True, BASELINE)
    assert expected.target(None, True) == UNITS
    assert expected.target(0, True) == BASELINE
    assert expected.target("0", True) is None and expected.target(None, False) is None


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"found": []}', *(f'{{"found": {{"None": {f}}}}}' for f in ("3", "{}", '{"name": "x"}'))],
)
def test_a_damaged_file_is_no_guess(content: str, caches: Path) -> None:
    expected.remember(None, False, BASELINE)
    (path,) = caches.iterdir()
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, **json.loads(content)}) if content.startswith('{"found') else content)
    assert expected.target(None, False) is None
    expected.remember(None, False, UNITS)
    assert expected.target(None, False) == UNITS


def test_without_a_folder_nothing_is_kept(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    caches.write_text("in the way")
    expected.remember(None, False, BASELINE)
    assert expected.target(None, False) is None

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(findings, "folder", homeless)
    expected.remember(None, False, BASELINE)
    assert expected.target(None, False) is None
