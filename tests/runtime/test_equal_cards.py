"""Several equal cards, and the same card by two engines: which one is taken."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.target import BASELINE, MatrixUnit, Target
from q8ta_wgpu.runtime import adapters, engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.dawn import Dawn
from q8ta_wgpu.runtime.device import Device
from testbed import insides
from testbed.devices import SWIFTSHADER
from testbed.small import small_model

ROOT = Path(__file__).parents[2]


class _WithUnits(Dawn):
    """Dawn whose adapters offer matrix units."""

    def matrix_units(self, adapter: Any) -> tuple[MatrixUnit, ...]:
        return (MatrixUnit(16, 16, 32, 32),)


@pytest.mark.usefixtures("nothing_open")
@pytest.mark.parametrize("usable", [True, False])
def test_dawn_is_taken_for_its_matrix_units(usable: bool, swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody asks for an engine, the adapter is the same one, its units compute right and products need them."""
    other = _WithUnits()
    own = engines.dawn()
    assert own is not None
    insides.listed(other).extend(own.adapters())
    monkeypatch.setattr(engines, "dawn", lambda: other)
    native = open_device("wgpu-native:vulkan")
    info = {**native.wgpu.adapter.info, **{k: swiftshader.info[k] for k in ("vendor_id", "device_id")}}
    monkeypatch.setattr(native.wgpu.adapter, "_adapter_info", info)
    found = Target(matrix_units=(MatrixUnit(16, 16, 32, 32),) if usable else ())
    monkeypatch.setattr(Device, "_measured_target", lambda device: found)
    assert open_device("vulkan", matrix_work=True).engine.name == ("dawn" if usable else "wgpu-native")
    assert open_device("vulkan").engine.name == "wgpu-native"
    assert open_device("wgpu-native:vulkan", matrix_work=True).engine.name == "wgpu-native"


class _Card:
    """An adapter that is one of several equal cards."""

    def __init__(self, adapter: Any) -> None:
        self.features, self.limits = adapter.features, adapter.limits
        self.info = {**adapter.info, "vendor_id": 4318, "device_id": 9019, "backend_type": "Vulkan"}


@pytest.mark.parametrize("listed", [1, 2, 3])
def test_of_equal_cards_the_same_is_taken(listed: int, swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two; wgpu-native's own where Dawn does not list as many."""
    native, other = engines.native(), _WithUnits()
    cards = [_Card(swiftshader.wgpu.adapter) for _ in range(2 + listed)]
    monkeypatch.setattr(native, "_listed", cards[:2])
    insides.listed(other).extend(cards[2:])
    monkeypatch.setattr(engines, "dawn", lambda: other)
    asked = []

    def opened(engine: Any, adapter: Any, number: int) -> Any:
        asked.append((engine.name, cards.index(adapter), number))
        units = (MatrixUnit(16, 16, 32, 32),)
        made = SimpleNamespace(engine=engine, target=Target(matrix_units=units))
        made.wgpu = SimpleNamespace(adapter=adapter)
        return made

    monkeypatch.setattr(adapters, "_from_adapter", opened)
    found = adapters._with_matrix_units(native, cards[1])
    assert asked == ([("dawn", 3, 1)] if listed == 2 else [])
    assert (found is None) == (listed != 2)


def _fake(device: Any, adapter: Any) -> None:
    device.adapter, device.alive, device.target = adapter, True, BASELINE


@pytest.mark.usefixtures("nothing_open")
def test_one_of_equal_cards_is_named(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number; a device's name has it, and names that device again."""
    native = engines.native()
    cards = [_Card(swiftshader.wgpu.adapter) for _ in range(2)]
    monkeypatch.setattr(native, "_listed", cards)
    monkeypatch.setattr(native, "request", lambda adapter: adapter)
    monkeypatch.setattr(adapters, "Device", type("Fake", (SimpleNamespace,), {"__init__": _fake}))
    for number, card in enumerate(cards):
        found: Any = open_device(f"swiftshader#{number}")
        assert found.adapter is card and found.name.endswith(f"(Vulkan, wgpu-native)#{number}")
        assert open_device(found.name) is found and open_device(f"wgpu-native:#{number}") is found
    assert open_device("swiftshader") is open_device("swiftshader#0")
    with pytest.raises(DeviceError, match=r"no adapter is called 'swiftshader#2'; there are 0: .*#0, 1: .*#1, "):
        open_device("swiftshader#2")


_OF_TWO = """
import sys
import numpy as np
import q8ta_wgpu as q8
from q8ta_wgpu.runtime.adapters import titles
names = [name for name in titles() if name.startswith("SwiftShader") and "dawn" in name]
print(names)
model = q8.load(sys.argv[1])
(t,) = model.inputs.values()
x = [np.random.default_rng(i).normal(0, 1, t.shape).astype(np.float32) for i in range(3)]
sessions = [q8.Session(model, name) for name in (*names, "reference")]
print([session.name for session in sessions[:-1]], sessions[0].device is not sessions[1].device)
found = [q8.run_many(some, x) for some in (sessions[:2], sessions[2:])]
print([all(np.array_equal(a, b) for a, b in zip(one, other)) for one, other in zip(*found)])
"""


def test_dawn_lists_each_of_two_equal_cards(tmp_path: Path, swiftshader: Device) -> None:
    """Its package leaves out the second one. Two copies of SwiftShader stand for two GPUs."""
    folder = next(folder for folder in SWIFTSHADER if (folder / "libvk_swiftshader.so").exists())
    for number in range(2):
        library = tmp_path / f"copy{number}.so"
        shutil.copy(folder / "libvk_swiftshader.so", library)
        icd = {"file_format_version": "1.0.0", "ICD": {"library_path": str(library), "api_version": "1.0.5"}}
        (tmp_path / f"{number}.json").write_text(json.dumps(icd))
    small_model().save(tmp_path / "net.q8ta")
    drivers = os.pathsep.join(str(tmp_path / f"{number}.json") for number in range(2))
    command = [sys.executable, "-c", _OF_TWO, str(tmp_path / "net.q8ta")]
    variables = {**os.environ, "VK_ADD_DRIVER_FILES": drivers}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
    names = [f"SwiftShader Device (Subzero) (Vulkan, dawn)#{number}" for number in range(2)]
    assert done.stdout.splitlines() == [str(names), f"{names} True", "[True, True, True]"]


def test_dawn_makes_a_device_of_the_card_asked_for(swiftshader: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two equal ones, which it lists anew for every device."""
    made: list[Any] = []
    other = Dawn()
    fresh = [[_Card(swiftshader.wgpu.adapter) for _ in range(2)] for _ in range(2)]
    gpu = SimpleNamespace(enumerate_adapters_sync=lambda: fresh[len(made)])
    extras = SimpleNamespace(request_device_sync=lambda adapter, **_: made.append(adapter))
    monkeypatch.setattr(other, "package", SimpleNamespace(gpu=gpu))
    monkeypatch.setattr(other, "_extras", extras)
    listed = [_Card(swiftshader.wgpu.adapter) for _ in range(2)]
    insides.listed(other).extend(listed)
    for _ in range(2):
        other._request(listed[1], [], {})
    assert made == [fresh[0][1], fresh[1][1]]
