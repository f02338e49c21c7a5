"""torchvision beside any build of torch: classifiers and segmentation networks use none of its compiled operators."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import torch


@functools.cache
def declare_operators() -> Any:
    """Two operators that torchvision names when it is imported, where its own library does not load, as one from
    another index than torch's. Call it before that import; the operators are there as long as the process.

    Returns the library they are declared in, or None where torchvision's own is there.
    """
    spec = importlib.util.find_spec("torchvision")
    try:
        load: Any = torch.ops.load_library
        load(next(Path(str(spec and spec.origin)).parent.glob("_C*")))
    except (OSError, StopIteration):
        library: Any = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None
