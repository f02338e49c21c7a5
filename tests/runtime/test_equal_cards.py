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
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.runtime import adapters, engines
from q8ta_wgpu.runtime.adapters import open_device, with_units_by
from q8ta_wgpu.runtime.dawn import Dawn
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import Engine
from testbed import insides
from testbed.devices import SWIFTSHADER, Listing, Opened
from testbed.small import small_model

ROOT = Path(__file__).parents[2]


UNITS = (MatrixUnit(16, 16, 32, 32),)


class _WithUnits(Dawn):
    """Dawn whose adapters offer matrix units."""

    def matrix_units(self, adapter: Any) -> tuple[MatrixUnit, ...]:
        return UNITS


class _Card:
    """An adapter that is one of several equal cards."""

    def __init__(self, device: Device) -> None:
        adapter = device.wgpu.adapter
        self.features, self.limits = adapter.features, adapter.limits
        self.info = {**adapter.info, "vendor_id": 4318, "device_id": 9019, "backend_type": "Vulkan"}

    def opens(self, opened: Opened, engine: Engine, number: int, units: tuple[MatrixUnit, ...] = ()) -> None:
        """The device that an engine makes of it."""
        key = engine.describe(self), number
        name, target = adapters.title(engine, *key), Target(matrix_units=units)
        opened[key] = SimpleNamespace(engine=engine, adapter=self, alive=True, name=name, target=target)


@pytest.mark.parametrize("usable", [True, False])
def test_dawn_is_taken_for_its_matrix_units(
    usable: bool, swiftshader: Device, listing: Listing, nothing_open: Opened
) -> None:
    """Where nobody asks for an engine, the adapter is the same one, its units compute right and products need them."""
    dawn, card, other = _WithUnits(), _Card(swiftshader), _Card(swiftshader)
    insides.listed(dawn).append(other)
    listing([card], dawn)
    card.opens(nothing_open, engines.native(), 0)
    other.opens(nothing_open, dawn, 0, UNITS if usable else ())
    for name in ("vulkan", None):
        taken = open_device(name, products=True).engine.name
        assert taken == ("dawn" if usable else "wgpu-native")
        assert open_device(name).engine.name == "wgpu-native"
    assert open_device("wgpu-native:vulkan", products=True).engine.name == "wgpu-native"


@pytest.mark.parametrize("listed", [1, 2, 3])
def test_of_equal_cards_the_same_is_taken(listed: int, swiftshader: Device) -> None:
    """The second of two; none where Dawn does not list as many."""
    native, dawn = _WithUnits(), _WithUnits()
    insides.listed(native).extend(_Card(swiftshader) for _ in range(2))
    insides.listed(dawn).extend(_Card(swiftshader) for _ in range(listed))
    found = with_units_by(dawn, native, native.adapters()[1])
    assert found is (dawn.adapters()[1] if listed == 2 else None)


def test_one_of_equal_cards_is_named(swiftshader: Device, listing: Listing, nothing_open: Opened) -> None:
    """By its number; a device's name has it, and names that device again."""
    cards = [_Card(swiftshader) for _ in range(2)]
    listing(cards)
    for number, card in enumerate(cards):
        card.opens(nothing_open, engines.native(), number)
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


def test_dawn_makes_a_device_of_the_card_asked_for(swiftshader: Device) -> None:
    """Of two equal ones, which it lists anew for every device."""
    made: list[Any] = []
    dawn: Any = Dawn()
    fresh = [[_Card(swiftshader) for _ in range(2)] for _ in range(2)]
    dawn.package = SimpleNamespace(gpu=SimpleNamespace(enumerate_adapters_sync=lambda: fresh[len(made)]))
    dawn._extras = SimpleNamespace(request_device_sync=lambda adapter, **_: made.append(adapter))
    insides.listed(dawn).extend(_Card(swiftshader) for _ in range(2))
    for _ in range(2):
        dawn._request(dawn.adapters()[1], [], {})
    assert made == [fresh[0][1], fresh[1][1]]
