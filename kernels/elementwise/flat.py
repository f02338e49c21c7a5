"""Elementwise operators on row-major values, by the index of an element rather than by its coordinates: four of them a
thread where each operand is read in whole vectors, or one element of it serves all four."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape

ROLES = ("first", "second")
"""What WGSL calls the functions that read operands."""


def _run(t: TensorType, whole: Shape) -> tuple[int, int] | None:
    """Where elements of a result find theirs of an operand that it repeats: at index // inner % count. None where its
    dimensions that are not repeated do not lie beside each other."""
    padded = (1,) * (len(whole) - len(t.shape)) + tuple(t.shape)
    own = [d for d, (one, every) in enumerate(zip(padded, whole, strict=True)) if one == every > 1]
    first, last = (own[0], own[-1] + 1) if own else (0, 0)
    return (math.prod(whole[last:]), t.numel) if math.prod(whole[first:last]) == t.numel else None


def _ways(call: Call) -> list[str]:
    """How each operand is found: at the `same` index, in a `line` that is repeated, in a `run` of which each element is
    repeated, too, or, where this is empty, by coordinates."""
    ways = []
    for t in call.inputs:
        run = _run(t, call.output.shape)
        repeated = "line" if run and run[0] == 1 else "run"
        ways.append("" if run is None else "same" if t.numel == call.output.numel else repeated)
    return ways


def _by_vectors(call: Call) -> bool:
    whole = call.output

    def fits(t: TensorType, way: str) -> bool:
        inner, count = _run(t, whole.shape) or (1, 1)
        return bool(way) and (inner if way == "run" else count) % 4 == 0

    return whole.numel % 4 == 0 and all(map(fits, call.inputs, _ways(call)))


def _source(call: Call, files: tuple[str, ...]) -> tuple[str, ...]:
    ways = _ways(call)
    if not all(ways):
        return *files, "map"
    if _by_vectors(call):
        return *files, "flat_vectors", *(f"{role}={role}_four_{way}" for role, way in zip(ROLES, ways, strict=False))
    singles = ("same" if way == "same" else "run" for way in ways)
    return *files, "flat", *(f"{role}={role}_{way}" for role, way in zip(ROLES, singles, strict=False))


def _fields(call: Call, names: Sequence[str]) -> Params:
    """The uniform fields of operands that are repeated."""
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
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
    integers: tuple[str, ...] = (),
) -> Kernel:
    """The kernel of an elementwise operator on row-major values.

    Args:
        name: of the operator.
        files: WGSL that defines `computed` of an index, `computed_four` of a vector's and, where operands may be
            repeated in any dimensions, `compute` of coordinates.
        operands: names of its operands.
        params: uniform fields.
        constants: of the WGSL.
        integers: files in place of these where operands are int32, with a main; empty where there are none.
    """

    def apart(call: Call) -> bool:
        return bool(integers) and call.inputs[0].dtype == INT32

    def wide(call: Call) -> tuple[str, ...]:
        if apart(call) or not _by_vectors(call):
            return ()
        return *(operand for operand, way in zip(operands, _ways(call), strict=True) if way != "run"), "y"

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return call.output.numel // (4 if wide(call) else 1), 1, 1

    return Kernel(
        name,
        lambda call: integers if apart(call) else _source(call, files),
        (FLOAT,),
        FLOAT,
        wide=wide,
        threads=threads,
        params=lambda call: {**params(call), **(_fields(call, operands) if len(operands) > 1 else {})},
        constants=constants,
    )
