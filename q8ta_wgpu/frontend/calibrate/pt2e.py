"""What is used of torchao's PT2E, imported without what torchao says about itself: kernels of its own that were built
for another torch or for CUDA, and its way of registering classes. Neither concerns who quantizes with it here.

PyTorch for CUDA brings triton, which torchao imports. Where adapters were listed before, Mesa's OpenGL has put its LLVM
where every later library finds it first, and triton, which has another LLVM inside, would end the process."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_MEANINGLESS = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("%s is an Enum subclass",),
    "torch._subclasses.fake_tensor": ("failed while attempting to run meta",),  # where another size does not fit
}
"""Beginnings of messages, by logger."""


@contextmanager
def quietly() -> Iterator[None]:
    """Leaves these messages out, and warnings on import; what else is logged is not touched."""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, beginnings in _MEANINGLESS.items():

            def wanted(record: logging.LogRecord, beginnings: tuple[str, ...] = beginnings) -> bool:
                return not str(record.msg).startswith(beginnings)

            logger = logging.getLogger(name)
            logger.addFilter(wanted)
            stack.callback(logger.removeFilter, wanted)
        yield


@contextmanager
def apart() -> Iterator[None]:
    """What is imported finds its own symbols before those of other libraries, where the system's loader can do that."""
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
        HistogramObserver,
        MinMaxObserver,
        MovingAverageMinMaxObserver,
        MovingAveragePerChannelMinMaxObserver,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import (
        FixedQParamsQuantizationSpec,
        QuantizationAnnotation,
        QuantizationSpec,
        Quantizer,
        SharedQuantizationSpec,
    )

ANNOTATION = "quantization_annotation"
"""Where PT2E finds what a quantizer says of a node."""

__all__ = [
    "ANNOTATION",
    "FakeQuantize",
    "FixedQParamsQuantizationSpec",
    "FusedMovingAvgObsFakeQuantize",
    "HistogramObserver",
    "MinMaxObserver",
    "MovingAverageMinMaxObserver",
    "MovingAveragePerChannelMinMaxObserver",
    "PerChannelMinMaxObserver",
    "QuantizationAnnotation",
    "QuantizationSpec",
    "Quantizer",
    "SharedQuantizationSpec",
    "convert_pt2e",
    "prepare_pt2e",
]
