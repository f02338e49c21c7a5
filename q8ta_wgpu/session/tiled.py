"""Runs large images in tiles: overlapping windows of one size, so that the result has the bytes of an untiled run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np

from q8ta_wgpu.errors import InputError, counted, is_integer, shown
from q8ta_wgpu.ir.graph import Array, Graph, Node
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, ROW_MAJOR, Shape
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.session.inputs import as_array
from q8ta_wgpu.session.runner import device_for, is_reference
from q8ta_wgpu.session.session import Session, check_model
from q8ta_wgpu.session.timing import Timing

_AXES = (2, 3)


@dataclass(frozen=True)
class Window:
    """One tile along an axis.

    Attributes:
        start: its first row in the whole input.
        origin: its first row in the whole output.
        keep_first, keep_last: it supplies rows keep_first to keep_last - 1 of the whole output.
    """

    start: int
    origin: int
    keep_first: int
    keep_last: int


class TiledSession:
    """Runs a fully convolutional model on images that are too large for one program: a Session on windows of one size.

    Examples:
        >>> tiled = q8.TiledSession(model, shape=(1, 3, 720, 1280))
        >>> image = np.zeros((1, 3, 720, 1280), np.float32)
        >>> y = tiled(image)    # the bytes that one large run would give

    Args:
        model: one input (n, c, h, w) and one output (n, k, h*f, w*f). Every operator must be local in h and w.
        shape: (n, c, h, w) of the whole image.
        device, tune: as for Session.
        max_bytes: limit of bytes of any value within a window; by default the largest binding of the device.

    Attributes:
        session: the session that runs windows.
        shape: the shape of the whole image.
        window: rows and columns of a window.

    Raises:
        InputError: the model is not fully convolutional, keeps states from call to call (every window would change
            them), or its halo alone does not fit into `max_bytes`; or as Session does.
        DeviceError: as Session does.

    A call returns the bytes, dtype and structure (a tuple, a dict of one tensor ...) of an untiled Session. An image
    that fits is one window.
    """

    def __init__(
        self,
        model: Model,
        shape: Shape | None = None,
        device: Any = None,
        max_bytes: int | None = None,
        tune: bool = False,
    ) -> None:
        check_model(model)
        names, outputs = model.graph.arguments, model.graph.results
        found = [model.graph.types[name].shape for name in (*names, *outputs)]
        if (len(names), len(outputs), [len(s) for s in found]) != (1, 1, [4, 4]):
            raise InputError(
                f"tiling takes a model of one 4-D input and one 4-D output, found {counted(len(names), 'input')} and "
                f"{counted(len(outputs), 'output')} of shapes {', '.join(map(str, found))}"
            )
        if model.graph.states:
            kept = ", ".join(state.name for state in model.graph.states)
            raise InputError(
                f"the model keeps {kept} from call to call, which every window would change: take a Session"
            )
        if not (isinstance(shape, Sequence) and len(shape) == 4):
            raise InputError(f"tiling takes the shape (n, c, h, w) of the whole image, found {shown(shape)}")
        if max_bytes is not None and not (is_integer(max_bytes) and max_bytes > 0):
            raise InputError(f"max_bytes must be an integer of at least 1, found {shown(max_bytes)}")
        target = BASELINE if is_reference(device) else device_for(model.graph, device).target
        limit = max_bytes or target.binding_size
        strips = _strips(model, shape)
        types = [strip.types[strip.outputs[0]].shape for strip in strips]
        self.shape = tuple(shape)
        self._output = (*types[0][:3], types[1][3])
        self.window = _window_size(strips, model, self.shape, limit)
        if self.window == self.shape[2:]:
            self._rows: tuple[Window, ...] = (Window(0, 0, 0, self._output[2]),)
            self._columns: tuple[Window, ...] = (Window(0, 0, 0, self._output[3]),)
        else:
            self._rows, self._columns = (
                tuple(_windows(strip, axis, size)) for strip, axis, size in zip(strips, _AXES, self.window, strict=True)
            )
        self.session = Session(model.reshape((*self.shape[:2], *self.window)), device, tune=tune)

    @property
    def windows(self) -> int:
        """Number of windows of the image."""
        return len(self._rows) * len(self._columns)

    def __call__(self, x: Any) -> Any:
        """Runs every window. `x` is an array of `shape`, of the model's input dtype; returns the whole output."""
        model = self.session.model
        pairs, windows = list(itertools.product(self._rows, self._columns)), self._windows(x)
        result = None
        for (r, c), outputs in zip(pairs, self.session.run_many(windows), strict=True):
            rows = slice(r.keep_first - r.origin, r.keep_last - r.origin)
            (found,) = model.structure.flatten(outputs)
            result = np.empty(self._output, found.dtype) if result is None else result
            cropped = found[:, :, rows, c.keep_first - c.origin : c.keep_last - c.origin]
            result[:, :, r.keep_first : r.keep_last, c.keep_first : c.keep_last] = cropped
        return model.structure.unflatten([result])

    def time(self, x: Any, repeats: int = 20, warmup: int = 5) -> Timing:
        """The times of the first window, as `Session.time`. The whole image takes `windows` times as long."""
        return self.session.time(next(self._windows(x)), repeats=repeats, warmup=warmup)

    def _windows(self, x: Any) -> Iterator[Array]:
        x = as_array(self.session.model.graph.inputs[0], x)
        if x.shape != self.shape:
            raise InputError(f"the image must have shape {self.shape}, found {x.shape}")
        height, width = self.window
        pairs = itertools.product(self._rows, self._columns)
        return (x[:, :, r.start : r.start + height, c.start : c.start + width] for r, c in pairs)

    def __reduce__(self) -> NoReturn:
        """Raises InputError, as a Session does."""
        self.session.__reduce__()

    def close(self) -> None:
        """Frees device memory."""
        self.session.close()

    def __enter__(self) -> TiledSession:
        self.session.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _strips(model: Model, shape: Shape) -> tuple[Graph, Graph]:
    """The model for an image of full height, and for one of full width; the other size is as compiled. Each axis can be
    planned alone, and a graph for the whole image might be too large."""
    height, width = model.graph.types[model.graph.inputs[0]].shape[2:]
    n, c, h, w = shape
    return model.reshape((n, c, h, width)).graph, model.reshape((n, c, height, w)).graph


def largest_value(graph: Graph) -> int:
    """Bytes of the largest value of a graph, in its least compact layout."""
    values = [*graph.inputs, *(node.output for node in graph.nodes)]
    sizes = []
    for name in values:
        t = graph.types[name]
        sizes.append(max(t.stored_bytes(layout) for layout in (INT8_LAYOUTS if t.q else (ROW_MAJOR,))))
    return max(sizes)


def _window_size(strips: tuple[Graph, Graph], model: Model, shape: Shape, limit: int) -> tuple[int, int]:
    """The size of windows: that of the image, its longer side halved until every value fits."""
    size = [shape[2], shape[3]]
    multiples = [_alignment(strip, axis) for strip, axis in zip(strips, _AXES, strict=True)]
    while not _fits(model, (*shape[:2], *size), limit):
        longer = 0 if size[0] >= size[1] else 1
        size[longer] = _half(size[longer], shape[2 + longer], multiples[longer])
    return size[0], size[1]


def _fits(model: Model, shape: Shape, limit: int) -> bool:
    try:
        return largest_value(model.reshape(shape).graph) <= limit
    except InputError:  # both strips were possible, so this shape is only too large for a graph
        return False


def _half(size: int, extent: int, multiple: int) -> int:
    """The next smaller window. `extent - size` is a multiple, so that the last window can end with the image."""
    half = size // 2
    half -= (half - extent) % multiple
    if half < multiple:
        raise InputError(f"not even a tile of {multiple} rows or columns fits: raise max_bytes")
    return half


def _scales(graph: Graph, axis: int) -> dict[str, Fraction]:
    """Rows (or columns) of each value for each row of the input, as exact fractions."""
    scales = {graph.inputs[0]: Fraction(1)}
    for node in graph.nodes:
        reads = []
        for position, name in enumerate(node.inputs):
            if name in scales:
                first, _ = _span(graph, node, position, axis, 0, 0)
                later, _ = _span(graph, node, position, axis, _FAR, _FAR)
                reads.append(scales[name] * Fraction(_FAR, later - first) if later > first else None)
        if len(set(reads)) > 1 or None in reads:
            raise InputError(f"the model cannot run in tiles: {node.op} combines images of different sizes")
        if reads and reads[0] is not None:
            scales[node.output] = reads[0]
    return scales


_FAR = 5040
"""An output position far from the border at which an operator's stride is measured; divisible by all usual factors."""


def _alignment(graph: Graph, axis: int) -> int:
    """Windows may start at multiples of this many rows, so that they start at a whole row of every value."""
    return math.lcm(*(scale.denominator for scale in _scales(graph, axis).values()))


def needed(graph: Graph, axis: int, first: int, last: int) -> tuple[int, int]:
    """(first, last) of the input rows (axis 2) or columns (axis 3) that output rows or columns first..last depend on.

    Both are clipped to the image. Raises InputError for an operator that is not local along the axis.
    """
    spans: dict[str, tuple[int, int]] = {graph.outputs[0]: (first, last)}
    for node in reversed(graph.nodes):
        if node.output not in spans:
            continue
        for position, name in enumerate(node.inputs):
            shape = graph.types[name].shape
            if name in graph.constants or len(shape) != 4:
                continue
            span = _span(graph, node, position, axis, *spans[node.output])
            clipped = max(span[0], 0), min(span[1], shape[axis] - 1)
            old = spans.get(name, clipped)
            spans[name] = min(old[0], clipped[0]), max(old[1], clipped[1])
    return spans[graph.inputs[0]]


def _span(graph: Graph, node: Node, position: int, axis: int, first: int, last: int) -> tuple[int, int]:
    op, factor = OPS[node.op], epilogue.factor(node.attrs)
    if op.operand(position, node.attrs).at_result:
        return first // factor, last // factor
    reads = op.reads
    span = reads(graph.call(node), axis, first, last) if reads else None
    if span is None:
        raise InputError(
            f"the model cannot run in tiles: {node.op}{node.origin} reads more than a neighbourhood of the image"
        )
    return span


def _windows(graph: Graph, axis: int, size: int) -> Iterator[Window]:
    """Windows of `size` that cover the axis. Each keeps the output rows that depend on no input outside of it."""
    extent = graph.types[graph.inputs[0]].shape[axis]
    outputs = graph.types[graph.outputs[0]].shape[axis]
    multiple, scale = _alignment(graph, axis), _scales(graph, axis)[graph.outputs[0]]
    covered = 0
    while covered < outputs:
        first, _ = needed(graph, axis, covered, covered)
        start = min(first // multiple * multiple, extent - size)
        last = outputs - 1 if start + size == extent else min(outputs, math.floor((start + size) * scale)) - 1
        while last >= covered and needed(graph, axis, covered, last)[1] >= start + size:
            last -= 1
        if last < covered:
            raise InputError(f"a tile of {size} is smaller than what one output row or column needs: raise max_bytes")
        yield Window(start, int(start * scale), covered, last + 1)
        covered = last + 1
