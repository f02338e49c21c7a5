"""Fixtures of all tests and benchmarks, what part of the tests runs, and how many pipelines they compile."""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.pipelines import Pipeline
from testbed.devices import _swiftshader, another, device, listing, nothing_open, swiftshader, vulkan
from testbed.fixtures import (
    _no_cache_of_the_user,
    _one_torch_thread,
    _same_random_numbers,
    caches,
    copy_threads,
    devices,
    full_disk,
    interrupts,
    quick_tuning,
    saved,
    seed,
)
from testbed.sample import QUICK, is_slow, of_sampled_backends, quick

__all__ = [
    "_no_cache_of_the_user",
    "_one_torch_thread",
    "_same_random_numbers",
    "_swiftshader",
    "another",
    "caches",
    "copy_threads",
    "device",
    "devices",
    "full_disk",
    "interrupts",
    "listing",
    "nothing_open",
    "quick_tuning",
    "saved",
    "swiftshader",
    "vulkan",
]

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Which tests ran before, in the same process, must not choose the weights of what a module's tests share."""
    seed()


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """`make quick` does not even import what takes seconds."""
    return True if QUICK and collection_path.suffix == ".py" and is_slow(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """OpenGL and SwiftShader meet a sample; `make quick` is a smaller one."""
    kept = of_sampled_backends(quick(items) if QUICK else items)
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
    terminalreporter.write_line(f"shaders compiled: {sum(map(len, compiled.values()))}")
    for name, found in compiled.items():
        terminalreporter.write_line(f"  {name}: {len(found)}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line says what a machine lacks to run everything."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    count = sum(".ci/browser" in str(report.longrepr) for report in skipped)
    if reporter and count:
        reporter.write_line(
            f"{count} tests of web pages were skipped: .ci/browser {sys.executable} brings what they need"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["compiled"] = {name: sorted(found) for name, found in compiled.items()}
