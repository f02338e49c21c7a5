"""What every test is given or may ask for, beside devices."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from q8ta_wgpu.runtime import findings, transfer
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import timer
from testbed.sample import IN_THREE, is_in_turn
from testbed.small import small_model

Devices = tuple[Device | str, ...]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small model as a file."""
    path = tmp_path_factory.mktemp("saved") / "net.q8ta"
    small_model().save(path)
    return path.read_bytes()


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """torch's own threads fight with lavapipe's on a small machine."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def seed() -> None:
    """The CPU's generator alone: `torch.manual_seed` looks for accelerators, 27,000 times."""
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Nor those of a test."""
    seed()


@pytest.fixture(scope="session", autouse=True)
def _no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What probes find is kept in a folder of this run alone."""
    empty = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(findings, "folder", lambda: empty)
        yield


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> Devices:
    """The reference, and in one of three tests a device as well. Kernels meet all their cases in tests/kernels."""
    if not is_in_turn(request.node.nodeid, IN_THREE):
        return ("reference",)
    return ("reference", request.getfixturevalue("vulkan"))


@pytest.fixture
def interrupts() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a process that a shell began in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for what tuning and probes keep."""
    monkeypatch.setattr(findings, "folder", lambda: tmp_path / "caches")
    return tmp_path / "caches"


@pytest.fixture
def quick_tuning(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning takes one sample of a kernel, and keeps what it finds in a folder of the test's own."""
    for count in ("FEWEST", "SAMPLES"):
        monkeypatch.setattr(timer, count, 1)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Fills the disk: so many files more reach it."""

    def fill(fitting: int) -> None:
        written: list[int] = []

        def fsync(descriptor: int) -> None:
            written.append(descriptor)
            if len(written) > fitting:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


@pytest.fixture
def copy_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many threads copy large arrays, however many processors there are: the number that a test asks for."""
    monkeypatch.setattr(transfer, "_THREADS", request.param)
