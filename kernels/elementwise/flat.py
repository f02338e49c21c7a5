"""Kernels of elementwise operators on row-major values.

A thread computes four elements if of each operand it reads a vector of four or a single element, which it finds by an
index, else one by its coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape

ROLES = ("first", "second")
"""Names in WGSL of the functions that read the operands."""


def _run(t: TensorType, shape: Shape) -> tuple[int, int] | None:
    """(inner, count) such that element i of a result of `shape` reads element i // inner % count of an operand that is
    broadcast. None where dimensions that are broadcast lie between others, so that there is no such formula."""
    padded = (1,) * (len(shape) - len(t.shape)) + tuple(t.shape)
    own = [d for d, (n, extent) in enumerate(zip(padded, shape, strict=True)) if n == extent > 1]
    first, last = (own[0], own[-1] + 1) if own else (0, 0)
    return (math.prod(shape[last:]), t.numel) if math.prod(shape[first:last]) == t.numel else None


def _ways(call: Call) -> list[str]:
    """How each operand is read, by the names of `_run`: `same` index; `line`, index % count; `run`, index // inner %
    count; or by coordinates, an empty string."""
    ways = []
    for t in call.inputs:
        run = _run(t, call.output.shape)
        repeated = "line" if run and run[0] == 1 else "run"
        ways.append("" if run is None else "same" if t.numel == call.output.numel else repeated)
    return ways


def _by_vectors(call: Call) -> bool:
    def fits(t: TensorType, way: str) -> bool:
        inner, count = _run(t, call.output.shape) or (1, 1)
        return bool(way) and (inner if way == "run" else count) % 4 == 0

    return call.output.numel % 4 == 0 and all(map(fits, call.inputs, _ways(call)))


def _source(call: Call, files: tuple[str, ...]) -> tuple[str, ...]:
    if not _by_vectors(call):
        return *files, "map"
    ways = zip(ROLES, _ways(call), strict=False)
    return *files, "flat_vectors", *(f"{role}={role}_four_{way}" for role, way in ways)


def _fields(call: Call, names: Sequence[str]) -> Params:
    """Uniform fields of each operand: the numbers of `_run`."""
    runs = [_run(t, call.output.shape) or (1, 1) for t in call.inputs]
    return {
        f"{name}_{field}": np.uint32(n)
        for name, run in zip(names, runs, strict=True)
        for field, n in zip(("inner", "count"), run, strict=True)
    }


def kernel(
    name: str,
    files: tuple[str, ...],
    operands: tuple[str, ...],
    params: Callable[[Call], Params],
    integers: tuple[str, ...] = (),
) -> Kernel:
    """The kernel of an elementwise operator on row-major values.

    Args:
        name: of the operator.
        files: WGSL that defines `computed_four(index of a vector)` and `compute(coordinates)`.
        operands: names of its operands.
        params: uniform fields.
        integers: WGSL files, one with a main, for int32 operands; empty where int32 needs none of its own.
    """

    def is_int32(call: Call) -> bool:
        return bool(integers) and call.inputs[0].dtype == INT32

    def wide(call: Call) -> tuple[str, ...]:
        if is_int32(call) or not _by_vectors(call):
            return ()
        return *(operand for operand, way in zip(operands, _ways(call), strict=True) if way != "run"), "y"

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return call.output.numel // (4 if wide(call) else 1), 1, 1

    return Kernel(
        name,
        lambda call: integers if is_int32(call) else _source(call, files),
        (FLOAT,),
        FLOAT,
        wide=wide,
        threads=threads,
        params=lambda call: {**params(call), **(_fields(call, operands) if len(operands) > 1 else {})},
    )
