"""The names of torchao's PT2E that are used, imported without torchao's own messages: about kernels that were built for
another torch or for CUDA, and about how it registers classes. Only torchao's own functions need it: importing takes a
second and a half.

PyTorch for CUDA brings triton, which torchao imports. If adapters were listed before, Mesa's OpenGL has loaded its LLVM
so that every later library finds it first. triton, which has another LLVM inside, would then end the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from q8ta_wgpu.frontend.export.modes import quietly


@contextmanager
def apart() -> Iterator[None]:
    """Lets imported libraries find their own symbols before those of other libraries, if the system's loader supports
    it."""
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | getattr(os, "RTLD_DEEPBIND", 0))
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


with quietly():
    if sys.platform == "linux":
        with apart(), suppress(ImportError):
            import triton  # noqa: F401
    from torchao.quantization.pt2e import (
        FakeQuantize,
        FusedMovingAvgObsFakeQuantize,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.observer import UniformQuantizationObserverBase
    from torchao.quantization.pt2e.quantizer import (
        FixedQParamsQuantizationSpec,
        QuantizationAnnotation,
        QuantizationSpec,
        Quantizer,
        SharedQuantizationSpec,
    )

ANNOTATION = "quantization_annotation"
"""The key of node.meta at which PT2E finds a quantizer's annotation."""

__all__ = [
    "ANNOTATION",
    "FakeQuantize",
    "FixedQParamsQuantizationSpec",
    "FusedMovingAvgObsFakeQuantize",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "PerChannelMinMaxObserver",
    "QuantizationAnnotation",
    "QuantizationSpec",
    "Quantizer",
    "SharedQuantizationSpec",
    "UniformQuantizationObserverBase",
]
