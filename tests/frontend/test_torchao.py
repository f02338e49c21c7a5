"""How torchao is imported."""

from __future__ import annotations

import logging
import os
import sys

import pytest

from q8ta_wgpu.frontend.calibrate import pt2e
from q8ta_wgpu.frontend.export.modes import quietly


def test_torchao_is_imported_without_what_it_says_about_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Two messages and no others, and only meanwhile."""
    logger = logging.getLogger("torchao")
    with quietly():
        logger.warning("Failed to load kernels.so: built for CUDA")
        logger.warning("something of interest")
    logger.warning("Failed to load later.so")
    assert caplog.messages == ["something of interest", "Failed to load later.so"]


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="needs a loader that binds symbols apart")
def test_triton_finds_its_own_symbols_first() -> None:
    """What is imported afterwards is loaded as ever."""
    before = sys.getdlopenflags()
    with pt2e.apart():
        assert sys.getdlopenflags() == before | os.RTLD_DEEPBIND
    assert sys.getdlopenflags() == before
