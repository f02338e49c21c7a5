"""cat: any number of tensors concatenated along one dimension. stack is imported as views and a cat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, packed_axis
from q8ta_wgpu.ir.op import MOVED, Attr, Case, Op, Operand, reads_same_place
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.move.runs import axis_of, kernels, run_words
from q8ta_wgpu.kernels.move.strided import eight

MAX_INPUTS = 8
"""The most operands: their ends must fit uniform fields. Larger cats are split (passes/split.py)."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    dim, first = attrs["dim"], types[0]
    if dim >= len(first.shape):
        raise GraphError(f"cat of {first.shape} along dimension {dim}: there is no such dimension")
    for position, t in enumerate(types):
        same = (*t.shape[:dim], first.shape[dim], *t.shape[dim + 1 :]) == first.shape if dim < len(t.shape) else False
        if not same or t.dtype != first.dtype:
            raise GraphError(f"cat along dimension {dim}: input {position} is {t}, the first is {first}")
    return (*first.shape[:dim], sum(t.shape[dim] for t in types), *first.shape[dim + 1 :]), first.dtype


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return np.concatenate(arrays, call.attrs["dim"])


def _params(call: Call) -> Params:
    shape, dim = call.output.shape, call.attrs["dim"]
    trailing = len(shape) - 3
    ends = list(itertools.accumulate(t.shape[dim] for t in call.inputs))
    return {
        **eight("end", ends),
        "axis": np.uint32(max(dim - trailing + 1, 0)),
        "inner": np.uint32(math.prod(shape[dim + 1 : trailing]) if dim < trailing else 1),
        "extent": np.uint32(shape[dim]),
    }


def _runs(call: Call, layout: Layout) -> list[int] | None:
    """The number of words of each operand in a run of the result. A run has the elements of the concatenated dimension
    and of all dimensions inside it. None if an operand would begin within a word."""
    dim, shape = call.attrs["dim"], call.output.shape
    axis = axis_of(shape, dim)
    cut = axis == packed_axis(layout) and any(t.shape[dim] % 4 for t in call.inputs[:-1])
    if axis is None or cut or len(call.inputs) > MAX_INPUTS:
        return None
    return [run_words(t.shape, layout, axis) for t in call.inputs]


def _runs_params(call: Call, runs: Sequence[int]) -> Params:
    ends = list(itertools.accumulate(runs))
    return {**eight("end", ends), "run": np.uint32(ends[-1])}


def _fits(call: Call, target: Target) -> bool:
    return len(call.inputs) <= MAX_INPUTS


def _along(dim: int, extents: Sequence[int], shape: Shape) -> tuple[Shape, ...]:
    return tuple((*shape[:dim], e, *shape[dim + 1 :]) for e in extents)


OPS = (
    Op(
        name="cat",
        operands=(Operand("x", dtypes=MOVED),),
        infer=_infer,
        reference=_reference,
        schema={"dim": Attr("int", low=0, high=63)},
        variadic=True,
        kernels=(
            *kernels(
                "cat.runs",
                "cat",
                _runs,
                _runs_params,
                wide=(*(f"x{i}" for i in range(MAX_INPUTS)), "y"),
                constants=lambda call: {"INPUTS": len(call.inputs)},
            ),
            Kernel("cat", ("cat", "map"), (ANY,), ANY, supports=_fits, params=_params),
        ),
        int8=Moves(),
        reads=reads_same_place,
        cases=(
            Case(_along(1, (3, 5, 7), (2, 1, 3, 5)), {"dim": 1}),
            Case(_along(1, (1, 2, 3, 4, 5, 6, 7), (1, 1, 3, 5)), {"dim": 1}),
            Case(_along(3, (3, 6), (2, 5, 2, 1)), {"dim": 3}),
            Case(_along(2, (3, 6), (2, 5, 1, 3)), {"dim": 2}),
            Case(_along(0, (1, 2), (1, 5, 3, 3)), {"dim": 0}),
            Case(((5,), (7,), (1,)), {"dim": 0}),
            Case(_along(1, (2, 3), (2, 1, 2, 3, 5)), {"dim": 1}),
            Case(_along(0, (2, 3), (1, 2, 2, 3, 5)), {"dim": 0}),
            Case(_along(1, (16, 32, 16), (2, 1, 3, 5)), {"dim": 1}),
            Case(_along(1, (4, 8, 3), (2, 1, 3, 5)), {"dim": 1}),
            Case(tuple((1, 3 + 2 * (i % 3), 2, 3) for i in range(24)), {"dim": 1}),
        ),
    ),
)
