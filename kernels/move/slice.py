"""slice: a range of one dimension. select, narrow, split, chunk and unbind are imported as slices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Array, Attrs, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Layout, Shape, packed_axis
from q8ta_wgpu.ir.op import MAX_EXTENT, Attr, Builder, Import, extent, reads_beside_dim
from q8ta_wgpu.kernels.lib import onnx_calls
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


def _slice(b: Builder, x: str, dim: int, start: int, end: int, step: int = 1, extent: int = 0) -> str:
    """A slice, or `x` itself if everything is selected. Negative bounds stay negative, so that they are also correct
    for other input sizes."""
    shape = b.type(x).shape
    dim %= max(len(shape), 1)
    if start == 0 and end >= shape[dim] and step == 1:
        return x
    bounds = {"start": max(start, -MAX_EXTENT), "end": min(max(end, -MAX_EXTENT), MAX_EXTENT)}
    return b.emit("slice", (x,), {"dim": dim, **bounds, "step": step, "extent": extent})


def _fixed(b: Builder, x: str, dim: int, end: int) -> int:
    """The attribute `extent` of a slice that ends at `end`. If the end is the input's extent, it could mean a number or
    the end of the dimension, so that the slice is only defined for this extent."""
    count = b.type(x).shape[dim]
    return count if end == count else 0


def _import_slice(b: Builder, args: Mapping[str, Any]) -> str:
    x, dim, start = args["self"], args["dim"], args["start"] or 0
    end = MAX_EXTENT if args["end"] is None else args["end"]
    return _slice(b, x, dim, start, end, args["step"], _fixed(b, x, dim, end))


def _import_narrow(b: Builder, args: Mapping[str, Any]) -> str:
    x, dim, start = args["self"], args["dim"], args["start"]
    if start < 0:
        start += b.type(x).shape[dim]
    end = start + args["length"]
    return _slice(b, x, dim, start, end, extent=_fixed(b, x, dim, end))


def _select(b: Builder, x: str, dim: int, index: int, extent: int = 0) -> str:
    shape = b.type(x).shape
    dim %= len(shape)
    row = _slice(b, x, dim, index, index + 1 if index != -1 else MAX_EXTENT, extent=extent)
    # In the shape of a view, 0 keeps the dimension of the same index, -2 that at the same distance from the end.
    return b.emit("view", (row,), {"shape": [0] * dim + [-2] * (len(shape) - 1 - dim)})


def _import_select(b: Builder, args: Mapping[str, Any]) -> str:
    return _select(b, args["self"], args["dim"], args["index"])


def _import_unbind(b: Builder, args: Mapping[str, Any]) -> list[str]:
    count = b.type(args["self"]).shape[args["dim"]]
    return [_select(b, args["self"], args["dim"], i, count) for i in range(count)]


def _slices(b: Builder, x: str, dim: int, sizes: Sequence[int]) -> list[str]:
    count, ends = b.type(x).shape[dim], list(itertools.accumulate(sizes))
    return [_slice(b, x, dim, end - size, end, extent=count) for size, end in zip(sizes, ends, strict=True)]


def _import_split(b: Builder, args: Mapping[str, Any]) -> list[str]:
    x, dim = args["self"], args["dim"]
    count = b.type(x).shape[dim]
    if isinstance(args.get("split_sizes", args.get("split_size")), list):
        return _slices(b, x, dim, args.get("split_sizes", args.get("split_size")) or ())
    size = args["split_size"] if "split_size" in args else -(-count // args["chunks"])
    return _slices(b, x, dim, [min(size, count - start) for start in range(0, count, size)])


_IMPORTS: Mapping[str, Import] = {
    "slice.Tensor": _import_slice,
    "narrow.default": _import_narrow,
    "select.int": _import_select,
    "unbind.int": _import_unbind,
    "split.Tensor": _import_split,
    "split.sizes": _import_split,
    "split_with_sizes.default": _import_split,
    "chunk.default": _import_split,
}


def _onnx_slice(b: Builder, args: Mapping[str, Any]) -> str:
    """ONNX's Slice. A negative step is a flip and a slice."""
    x, rank = args["inputs"][0], len(b.type(args["inputs"][0]).shape)
    starts = onnx_calls.integers(b, args, 1, "starts") or []
    ends = onnx_calls.integers(b, args, 2, "ends") or []
    axes = onnx_calls.axes(b, args, rank, 3)
    steps = onnx_calls.integers(b, args, 4, "steps") or [1] * len(starts)
    for dim, start, end, step in zip(range(rank) if axes is None else axes, starts, ends, steps, strict=False):
        extent = b.type(x).shape[dim]
        first, last, step = slice(start, end, step).indices(extent)
        if not range(first, last, step):
            raise b.refuse(f"it takes no element of dimension {dim}, {start}:{end}:{step} of {extent}")
        if step > 0:
            x = _slice(b, x, dim, first, last, step, extent)
        else:
            x = b.aten("aten.flip.default", {"self": x, "dims": [dim]})
            x = _slice(b, x, dim, extent - 1 - first, extent - 1 - last, -step, extent)
    return str(x)


def _onnx_split(b: Builder, args: Mapping[str, Any]) -> list[str]:
    """ONNX's Split, into slices of the sizes in its input, or into equal slices for all outputs."""
    x, shape = args["inputs"][0], b.type(args["inputs"][0]).shape
    dim = onnx_calls.axis(b, args, len(shape))
    sizes = onnx_calls.integers(b, args, 1, "split")
    if sizes is None:
        count = int(args.get("num_outputs") or args["outputs"])
        each = -(-shape[dim] // max(count, 1))
        sizes = [min(each, shape[dim] - start) for start in range(0, shape[dim], max(each, 1))]
    if sum(sizes) != shape[dim] or min(sizes, default=0) < 1:
        raise b.refuse(f"its parts {sizes} are not those of {shape[dim]} elements")
    return _slices(b, x, dim, sizes)


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
    aten={f"aten.{name}": rule for name, rule in _IMPORTS.items()},
    onnx={"Slice": _onnx_slice, "Split": _onnx_split},
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
