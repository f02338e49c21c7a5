"""Devices under test, and how many pipelines the suite compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

from q8ta_wgpu.runtime import device as devices
from q8ta_wgpu.runtime.device import Device, open_device

hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
hypothesis.settings.load_profile("suite")

PIPELINES = 1600
"""Distinct pipelines the whole suite may compile: each costs about a quarter of a second on lavapipe."""

BACKENDS = tuple(os.environ.get("Q8TA_TEST_BACKENDS", "vulkan,opengl").split(","))
"""Backends the kernel tests run on: a machine without OpenGL compute (a headless NVIDIA one) tests Vulkan alone."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--every-pair`: each kernel with each epilogue, which takes many minutes."""
    parser.addoption(
        "--every-pair", action="store_true", help="test every kernel of a weighted sum with every epilogue"
    )


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """torch's own threads fight with lavapipe's on a small machine."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """The best Vulkan adapter: a missing one is a failure, not a skip."""
    return open_device("vulkan")


@pytest.fixture(scope="session", params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Device:
    """Every backend the contract is proved on."""
    return open_device(request.param)


@pytest.hookimpl(hookwrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    yield
    texts = {text for opened in devices.open_devices() for text in opened.pipeline_texts}
    terminalreporter.write_line(f"distinct pipelines compiled: {len(texts)} (limit {PIPELINES})")
    for opened in devices.open_devices():
        terminalreporter.write_line(f"  {opened.name}: {opened.compiled}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    texts = {text for opened in devices.open_devices() for text in opened.pipeline_texts}
    if len(texts) > PIPELINES and not session.config.getoption("--every-pair"):
        session.exitstatus = 1
