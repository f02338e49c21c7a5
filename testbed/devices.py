"""Devices that tests and benchmarks open, as fixtures."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import wgpu

from q8ta_wgpu.runtime import adapters, engines
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.engine import Engine
from testbed import browsers

BACKENDS = tuple(os.environ.get("Q8TA_TEST_BACKENDS", "vulkan,opengl,swiftshader").split(","))
"""Backends the kernel tests run on: Vulkan and OpenGL through wgpu-native, SwiftShader through Dawn. A machine without
OpenGL compute (a headless NVIDIA one) leaves that out."""

OPENED = {"swiftshader": "dawn:swiftshader", "dawn": "dawn"}
"""What opens a backend, where that is not wgpu-native's adapter of this name. `dawn` is Dawn's best adapter: on a GPU,
with its matrix units."""

SWIFTSHADER = (Path(sys.prefix) / "share" / "swiftshader", Path("/usr/lib/chromium"))
"""Where `.ci/adapter` puts SwiftShader, and where Debian's chromium-common does."""


def opened(backend: str) -> Device:
    """The adapter of one of BACKENDS."""
    return open_device(OPENED.get(backend, f"wgpu-native:{backend}"))


@pytest.fixture(scope="session", autouse=True)
def _swiftshader() -> None:
    """Dawn lists SwiftShader as well. wgpu-native does not, or it would be an adapter to choose in every test."""
    icd = next((found for folder in SWIFTSHADER if (found := folder / "vk_swiftshader_icd.json").exists()), None)
    if icd is not None and (dawn := engines.dawn()) is not None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("VK_ADD_DRIVER_FILES", str(icd))
            dawn.adapters()  # kept for the whole process


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """wgpu-native's best Vulkan adapter: a missing one is a failure, not a skip. On a machine without Vulkan it is the
    first of BACKENDS."""
    return opened("vulkan" if "vulkan" in BACKENDS else BACKENDS[0])


@pytest.fixture(scope="session")
def another(vulkan: Device) -> Device:
    """A second device: of the next backend, or where a machine has one alone, of the same adapter."""
    return opened(BACKENDS[1]) if len(BACKENDS) > 1 else Device(vulkan.engine.request(vulkan.wgpu.adapter))


@pytest.fixture(scope="session")
def swiftshader() -> Device:
    """SwiftShader through Dawn: a missing one is a failure, unless BACKENDS say that this machine has none."""
    if "swiftshader" not in BACKENDS:
        pytest.skip("this machine has no SwiftShader")
    return open_device("dawn:swiftshader")


@pytest.fixture(scope="session", params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Device:
    """Every backend the contract is proved on."""
    return opened(request.param)


def lacking(what: str) -> None:
    """A failure in CI, elsewhere a skip that says what to install."""
    if what and os.environ.get("CI"):
        pytest.fail(f"CI must have {what}: .ci/browser installs it")
    if what:
        pytest.skip(f"{what} is missing: `.ci/browser {sys.executable}` installs it")


@contextlib.contextmanager
def node_js() -> Iterator[browsers.Node]:
    """Node on SwiftShader."""
    lacking(browsers.missing_node())
    icd = next((f for folder in SWIFTSHADER if (f := folder / "vk_swiftshader_icd.json").exists()), None)
    assert icd is not None, "no SwiftShader: .ci/adapter installs it"
    started = browsers.Node(icd)
    yield started
    started.close()


Opened = dict[tuple[str, int], Any]
"""Open devices by their names and numbers."""


@pytest.fixture
def nothing_open(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """No device is open yet but those that a test adds; those that other tests share stay out of this one."""
    opened: Opened = {}
    monkeypatch.setattr(adapters, "_open", opened)
    return opened


class Listing(Protocol):
    """Makes a machine of these adapters of wgpu-native, or one whose driver fails as it lists them. It has no Dawn, or
    this one."""

    def __call__(self, found: Sequence[Any] | Exception, dawn: Engine | None = None) -> None: ...


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> Listing:
    def machine(found: Sequence[Any] | Exception, dawn: Engine | None = None) -> None:
        def enumerate_adapters() -> list[Any]:
            if isinstance(found, Exception):
                raise found
            return list(found)

        monkeypatch.setattr(engines, "dawn", lambda: dawn)
        monkeypatch.setattr(engines.native(), "_listed", [])
        monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", enumerate_adapters)

    return machine
