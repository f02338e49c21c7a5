"""What is used of torchao's PT2E, imported without what torchao says about itself: kernels of its own that were built
for another torch or for CUDA, and its way of registering classes. Neither concerns who quantizes with it here."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_MEANINGLESS = {
    "torchao": ("Failed to load ", "Skipping import of cpp extensions"),
    "torch.utils._pytree": ("%s is an Enum subclass",),
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


with quietly():
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

__all__ = [
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
