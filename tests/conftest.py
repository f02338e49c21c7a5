"""Devices under test, and how many pipelines the suite compiled."""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from q8ta_wgpu.runtime import engines, findings
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.pipelines import Pipeline
from q8ta_wgpu.tuning import cache
from tests.sample import of_sampled_backends
from tests.small import small_model

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")

BACKENDS = tuple(os.environ.get("Q8TA_TEST_BACKENDS", "vulkan,opengl,swiftshader").split(","))
"""Backends the kernel tests run on: Vulkan and OpenGL through wgpu-native, SwiftShader through Dawn. A machine without
OpenGL compute (a headless NVIDIA one) leaves that out."""

OPENED = {"swiftshader": "dawn:swiftshader", "dawn": "dawn"}
"""What opens a backend, where that is not wgpu-native's adapter of this name. `dawn` is Dawn's best adapter: on a GPU,
with its matrix units."""

SWIFTSHADER = (Path(sys.prefix) / "share" / "swiftshader", Path("/usr/lib/chromium"))
"""Where `.ci/adapter` puts SwiftShader, and where Debian's chromium-common does."""


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small model as a file."""
    path = tmp_path_factory.mktemp("saved") / "net.q8ta"
    small_model().save(path)
    return path.read_bytes()


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """torch's own threads fight with lavapipe's on a small machine."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)


def _seed() -> None:
    """The CPU's generator alone: `torch.manual_seed` looks for accelerators, 27,000 times."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Which tests ran before, in the same process, must not choose the weights of what a module's tests share."""
    _seed()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Nor those of a test."""
    _seed()


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What probes find is kept in a folder of this run alone."""
    empty = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(findings, "folder", lambda: empty)
        yield


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a process that a shell began in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for what tuning keeps."""
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "caches")
    return tmp_path / "caches"


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
    """wgpu-native's best Vulkan adapter: a missing one is a failure, not a skip."""
    return open_device("wgpu-native:vulkan")


@pytest.fixture(scope="session")
def swiftshader() -> Device:
    """SwiftShader through Dawn: a missing one is a failure, unless BACKENDS say that this machine has none."""
    if "swiftshader" not in BACKENDS:
        pytest.skip("this machine has no SwiftShader")
    return open_device("dawn:swiftshader")


@pytest.fixture(scope="session", params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Device:
    """Every backend the contract is proved on."""
    return open_device(OPENED.get(request.param, f"wgpu-native:{request.param}"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """OpenGL and SwiftShader meet a sample."""
    kept = of_sampled_backends(items)
    left_out = set(items) - set(kept)
    config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
    items[:] = kept


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Python's collector leaves out what stays until the end: a million objects of torch and of the tests' modules.
    Looking through them again and again took a third of the time of tests that make many objects."""
    gc.disable()
    yield
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)  # 700 new objects are one call of torch
    gc.enable()


compiled: dict[str, set[str]] = {}
"""Digests of the pipelines compiled by each device of every worker."""


def pytest_configure() -> None:
    """Notes what is compiled: a device keeps only what is in use, and what was a short while ago."""
    original = Device._compile

    def noted(device: Device, text: str, buffers: int) -> Pipeline:
        compiled.setdefault(device.name, set()).add(hashlib.blake2b(text.encode(), digest_size=8).hexdigest())
        return original(device, text, buffers)

    Device._compile = noted  # type: ignore[method-assign, assignment]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes over what a worker compiled."""
    for name, found in getattr(node, "workeroutput", {}).get("compiled", {}).items():
        compiled.setdefault(name, set()).update(found)


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    terminalreporter.write_line("distinct pipelines compiled")
    for name, found in compiled.items():
        terminalreporter.write_line(f"  {name}: {len(found)}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["compiled"] = {name: sorted(found) for name, found in compiled.items()}
