"""Restricts programs to some kernels of the operator table, as baselines for benchmarks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS

GENERAL = ("", "direct", "broadcast")
"""Methods of kernels that run any call of their operator."""


def general(kernel: Kernel) -> bool:
    """Whether a kernel is its operator's general one."""
    return kernel.name.partition(".")[2] in GENERAL


@contextlib.contextmanager
def only(keep: Callable[[Kernel], bool]) -> Iterator[None]:
    """During the context, only kernels that `keep` accepts are chosen; an operator without such kernels keeps all.

    Programs that were built in the context can run outside of it. It changes the operator table, so it must not be used
    from several threads.
    """
    table = cast("dict[str, Op]", OPS)
    before = dict(table)
    for name, op in before.items():
        if kernels := tuple(kernel for kernel in op.kernels if keep(kernel)):
            table[name] = replace(op, kernels=kernels)
    try:
        yield
    finally:
        table.update(before)
