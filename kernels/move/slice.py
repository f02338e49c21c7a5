"""slice: a range of one dimension. select, narrow, split, chunk and unbind are imported as slices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Layout, Shape, packed_axis
from q8ta_wgpu.ir.op import MAX_EXTENT, Attr, extent, reads_beside_dim
from q8ta_wgpu.kernels.move.runs import axis_of, kernels, run_words
from q8ta_wgpu.kernels.move.strided import Digit, move, strides


def _range(x: Shape, attrs: Attrs) -> range:
    """The selected indices, by Python's rules: negative bounds count from the end, larger ones are clamped."""
    return range(x[attrs["dim"]])[attrs["start"] : attrs["end"] : attrs["step"]]


def _shape(x: Shape, attrs: Attrs) -> Shape:
    dim = attrs["dim"]
    if dim >= len(x):
        raise GraphError(f"slice of {x} along dimension {dim}: there is no such dimension")
    if attrs["extent"] not in (0, x[dim]):
        raise GraphError(
            f"slice {attrs['start']}:{attrs['end']} of dimension {dim} of {x}: it was made for {attrs['extent']} "
            "elements, and is not defined for others"
        )
    count = len(_range(x, attrs))
    if not count:
        raise GraphError(f"slice {attrs['start']}:{attrs['end']} of dimension {dim} of {x} is empty")
    return (*x[:dim], count, *x[dim + 1 :])


def _digits(x: Shape, y: Shape, attrs: Attrs) -> tuple[list[Digit], int]:
    dim, selected, steps = attrs["dim"], _range(x, attrs), strides(x)
    offset = selected.start * steps[dim]
    steps[dim] *= selected.step
    return list(zip(y, steps, strict=True)), offset


def _runs(call: Call, layout: Layout) -> list[int] | None:
    """[words of a run of the result, words of a run of the input, words before the slice in a run of the input]; None
    if the slice would begin within a word."""
    dim, x = call.attrs["dim"], call.inputs[0].shape
    selected, axis = _range(x, call.attrs), axis_of(x, dim)
    if axis is None or selected.step != 1:
        return None
    first, block = selected.start, 4 if axis == packed_axis(layout) else 1
    run = run_words(x, layout, axis)
    step = run // -(-x[dim] // block)
    return None if first % block else [run_words(call.output.shape, layout, axis), run, first // block * step]


def _runs_params(call: Call, runs: Sequence[int]) -> Params:
    run, x_run, first = map(np.uint32, runs)
    return {"run": run, "x_run": x_run, "first": first}


def _reference(x: Array, y: Shape, attrs: Attrs) -> Array:
    index = [slice(None)] * attrs["dim"]
    return x[(*index, slice(attrs["start"], attrs["end"], attrs["step"]))]


_BOUND = Attr("int", low=-MAX_EXTENT, high=MAX_EXTENT)

slices = move(
    "slice",
    shape=_shape,
    digits=_digits,
    reference=_reference,
    schema={
        "dim": Attr("int", low=0, high=63),
        "start": _BOUND,
        "end": _BOUND,
        "step": extent(),
        "extent": extent(0),  # the only extent of the dimension for which the slice is defined, or 0 for any
    },
    reads=reads_beside_dim,
    kernels=kernels("slice.runs", "slice", _runs, _runs_params, wide=("x", "y")),
    cases=(
        ((2, 11, 3, 7), {"dim": 1, "start": 3, "end": 10, "step": 1, "extent": 0}),
        ((2, 8, 4, 9), {"dim": 3, "start": -8, "end": MAX_EXTENT, "step": 3, "extent": 0}),
        ((2, 11, 3, 7), {"dim": 2, "start": 0, "end": -1, "step": 1, "extent": 0}),
        ((13,), {"dim": 0, "start": 5, "end": 12, "step": 2, "extent": 13}),
        ((2, 48, 2, 5), {"dim": 1, "start": 16, "end": 32, "step": 1, "extent": 0}),
        ((2, 5, 3, 13), {"dim": 3, "start": 4, "end": 11, "step": 1, "extent": 0}),
        ((3, 5, 6, 7), {"dim": 0, "start": 1, "end": 3, "step": 1, "extent": 0}),
        ((2, 5, 7, 32), {"dim": 2, "start": 1, "end": 7, "step": 3, "extent": 0}),
        ((3, 3, 2, 3, 5), {"dim": 1, "start": 1, "end": 3, "step": 1, "extent": 0}),
    ),
)
