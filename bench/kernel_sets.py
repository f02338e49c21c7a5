"""Programs restricted to some of the operator table's kernels: the baselines that benchmarks compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS

GENERAL = ("", "direct", "dw", "broadcast")
"""Variants that run any call of their operator: what the first version of every operator was."""


def general(kernel: Kernel) -> bool:
    """Whether a kernel is its operator's general one."""
    return kernel.name.partition(".")[2] in GENERAL


@contextlib.contextmanager
def only(keep: Callable[[Kernel], bool]) -> Iterator[None]:
    """Inside, schedules choose among the kernels that `keep` accepts; an operator it leaves none keeps all of its own.

    What was scheduled inside runs the same outside. Not for several threads: it alters the operator table.
    """
    table = cast("dict[str, Op]", OPS)
    before = dict(table)
    for name, op in before.items():
        if kept := tuple(kernel for kernel in op.kernels if keep(kernel)):
            table[name] = replace(op, kernels=kept)
    try:
        yield
    finally:
        table.update(before)
