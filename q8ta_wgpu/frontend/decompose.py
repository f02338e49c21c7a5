"""Operators that the table lacks, in terms of those it has: torch's own decompositions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram, default_decompositions

from q8ta_wgpu.kernels import ATEN


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program without in-place operators and without composites, but for those the table knows (linear, ...)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, about its pytree classes
        result: ExportedProgram = program.run_decompositions(_table())
    return result


@functools.cache
def _table() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    return {op: rule for op, rule in dict(default_decompositions()).items() if str(op) not in ATEN}
