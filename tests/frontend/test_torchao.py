"""How torchao is imported."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from q8ta_wgpu.frontend.export.modes import quietly
from q8ta_wgpu.frontend.pt2e import torchao

ROOT = Path(__file__).parents[2]


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
    with torchao.apart():
        assert sys.getdlopenflags() == before | os.RTLD_DEEPBIND
    assert sys.getdlopenflags() == before


_WITHOUT = """
import sys, torch, q8ta_wgpu as q8
x = torch.randn(1, 3, 8, 8)
module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
quantizer = q8.Quantizer()
q8.compile(q8.quantize(module, (x,), calibration=[x], quantizer=quantizer, progress=False))
print([name for name in sys.modules if name.partition(".")[0] in ("torchao", "triton")])
from torchao.quantization.pt2e.quantizer import Quantizer
print(isinstance(q8.Quantizer(), Quantizer))
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)(x)
print(isinstance(quantizer, Quantizer))
"""


def test_our_quantizer_needs_torchao_only_for_torchaos_own_functions() -> None:
    """It takes longer to import than a small network to quantize. To torchao our quantizer is one of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.stdout.split() == ["[]", "True", "True"], done.stderr
