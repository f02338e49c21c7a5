"""The graph: typed values by name, nodes in order, constants as numpy arrays.

Scale and zero point are part of a value's type. Nodes are in execution order: each reads graph inputs, constants and
outputs of earlier nodes, and writes exactly one value.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.bytes_as_int8 import store
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.layout import Layout, Shape, word_count
from q8ta_wgpu.ir.size import Dynamic
from q8ta_wgpu.ir.value import ValueInfos

Attrs = Mapping[str, Any]
Array = NDArray[Any]

FLOAT32 = "float32"
INT8X4 = "int8x4"  # activations: packed int8 with scale and zero point
INT16X4 = "int16x4"  # the same in int16: two words hold what one does in int8
INT8 = "int8"  # weights and tables
INT16 = "int16"  # tables
INT32 = "int32"  # integers of the network, weights and tables
SMALLEST_SCALE = 2.0**-126
DTYPES: dict[str, type[np.generic]] = {
    FLOAT32: np.float32,
    INT8X4: np.int8,
    INT16X4: np.int16,
    INT8: np.int8,
    INT16: np.int16,
    INT32: np.int32,
}
RANGES = {INT8X4: (-128, 127), INT16X4: (-(2**15), 2**15 - 1)}
"""Smallest and largest value of each dtype of quantized activations."""


@dataclass(frozen=True)
class QParams:
    """Per-tensor affine quantization: real = scale * (q - zero), with q of an integer dtype."""

    scale: float
    zero: int
    dtype: str = INT8X4

    def __post_init__(self) -> None:
        if not SMALLEST_SCALE <= self.scale <= 1 / SMALLEST_SCALE:
            raise GraphError(f"a scale must be > 0, and it and its inverse normal float32 numbers, found {self.scale}")
        if self.dtype not in RANGES:
            raise GraphError(f"scale and zero point belong to {' and '.join(RANGES)}, found {self.dtype!r}")
        low, high = self.range
        if not low <= self.zero <= high:
            raise GraphError(f"a zero point must be an {self.dtype[:-2]} ({low}..{high}), found {self.zero}")

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest q."""
        return RANGES[self.dtype]

    @property
    def span(self) -> int:
        """The largest possible |q - zero|."""
        low, high = self.range
        return max(high - self.zero, self.zero - low)


UINT8 = QParams(1.0, -128)
"""Quantization of an input passed as uint8: real = the number passed."""

BOOL = QParams(1.0, 0)
"""Quantization of bools: 0 and 1."""


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a value. int8x4 and int16x4 values have a `q` of that dtype, others none."""

    shape: Shape
    dtype: str = FLOAT32
    q: QParams | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise GraphError(f"dtype must be one of {', '.join(DTYPES)}, found {self.dtype!r}")
        if (self.q.dtype if self.q else None) != (self.dtype if self.dtype in RANGES else None):
            raise GraphError(f"scale and zero point belong to {' and '.join(RANGES)}, found {self.q} on {self.dtype}")
        if any(d < 1 for d in self.shape):
            raise GraphError(f"every dimension must be at least 1, found shape {self.shape}")

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def stored_bytes(self, layout: Layout) -> int:
        """Bytes of an activation in a layout, padding included."""
        return word_count(self.shape, layout) * (8 if self.dtype == INT16X4 else 4)

    def unscaled(self) -> TensorType:
        """The type with scale 1 and zero point 0, if it has any."""
        return self if self.q is None else replace(self, q=QParams(1.0, 0, self.dtype))

    def __str__(self) -> str:
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return text if self.q is None else f"{text} scale={self.q.scale:.6g} zero={self.q.zero}"


@dataclass(frozen=True)
class Node:
    """One use of an operator: reads `inputs` in order, writes `output`. `source` is its place in the user's model."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attrs: Attrs = field(default_factory=dict)
    source: str = ""

    @property
    def origin(self) -> str:
        """` (source)`, to end a part of a message with; empty where the source is unknown."""
        return f" ({self.source})" if self.source else ""


class Attributes(Mapping[str, Any]):
    """Immutable attributes, so that a call is hashable. Lists become tuples."""

    __slots__ = ("_items",)

    def __init__(self, attrs: Attrs) -> None:
        self._items = {name: tuple(value) if isinstance(value, list) else value for name, value in attrs.items()}

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True)
class Call:
    """One use of an operator as kernels and rules see it. Two calls are equal where operator, attributes, shapes,
    dtypes and quantization are; values of constants are not compared."""

    op: str
    attrs: Attrs
    inputs: tuple[TensorType, ...]
    output: TensorType

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", Attributes(self.attrs))

    @property
    def zeros(self) -> tuple[int, ...]:
        """Zero point of each input (0 where it has none)."""
        return tuple(t.q.zero if t.q else 0 for t in self.inputs)

    @property
    def q(self) -> QParams:
        """Scale and zero point of the result of a call that gives a quantized one."""
        assert self.output.q is not None
        return self.output.q

    def unscaled(self) -> Call:
        """The call with every activation at scale 1 and zero point 0: equal for calls that cost the same."""
        return replace(self, inputs=tuple(t.unscaled() for t in self.inputs), output=self.output.unscaled())


@dataclass(frozen=True)
class Buffer:
    """A buffer of the user's module that stays from one run to the next.

    Attributes:
        initial: the constant that it begins with.
        dtype: the buffer's, if it holds integers (int32 in the graph) or bools or uint8 (float32 there).
    """

    initial: str
    dtype: str = FLOAT32


@dataclass(frozen=True)
class State:
    """A tensor that stays from one run to the next.

    Attributes:
        name: of the buffer of the user's module.
        read: its value before a run, an input of the graph.
        written: its value after the run, an output of the graph of the same type.
        initial: the constant that it begins with.
        dtype: the buffer's.
    """

    name: str
    read: str
    written: str
    initial: str
    dtype: str


@dataclass
class Graph:
    """Nodes in execution order, with the types of all values.

    Attributes:
        inputs, outputs: names of the values that go in and out: those of a call, then those of the states.
        types: the type of every value: inputs, constants and node outputs.
        constants: numpy arrays of the constant values.
        values: what is known of values beside their types.
        dynamic: which sizes of inputs may be any, and what follows from them.
        buffers: what stays from one run to the next, by the names of the module's buffers; its values are the last
            inputs and outputs, in this order.
        notes: notes of the passes for the report, such as why a node stays in float32.
        decisions: why each value is stored as it is, by the names of the float graph that was quantized.
    """

    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    values: ValueInfos = field(default_factory=ValueInfos)
    dynamic: Dynamic = field(default_factory=Dynamic)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    @property
    def states(self) -> list[State]:
        """What stays from one run to the next."""
        reads, written = self.inputs[len(self.arguments) :], self.outputs[len(self.results) :]
        return [
            State(name, before, after, buffer.initial, buffer.dtype)
            for (name, buffer), before, after in zip(self.buffers.items(), reads, written, strict=True)
        ]

    @property
    def arguments(self) -> list[str]:
        """The inputs of a call, in order."""
        return self.inputs[: len(self.inputs) - len(self.buffers)]

    @property
    def results(self) -> list[str]:
        """The outputs of a call, in order."""
        return self.outputs[: len(self.outputs) - len(self.buffers)]

    def call(self, node: Node) -> Call:
        """The call of a node, with the types of its inputs and output."""
        return Call(node.op, node.attrs, tuple(self.types[name] for name in node.inputs), self.types[node.output])

    def fresh(self, hint: str) -> str:
        """An unused value name derived from `hint`."""
        name, count = hint, 1
        while name in self.types:
            name, count = f"{hint}.{count}", count + 1
        return name

    def add_constant(self, hint: str, array: Array, dtype: str | None = None, q: QParams | None = None) -> str:
        """Adds a constant and returns its name. Its dtype is the array's, or `dtype` for an activation."""
        name = self.fresh(hint)
        array = np.asarray(array, order="C")
        self.types[name] = TensorType(tuple(array.shape), dtype or str(array.dtype), q)
        self.constants[name] = array
        return name

    def prune(self) -> None:
        """Removes nodes, types and constants that no output depends on."""
        live = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output in live:
                kept.append(node)
                live.update(node.inputs)
        self.nodes = kept[::-1]
        live.update((*self.inputs, *(buffer.initial for buffer in self.buffers.values())))
        self.types = {k: v for k, v in self.types.items() if k in live}
        self.constants = {k: v for k, v in self.constants.items() if k in live}

    def copy(self) -> Graph:
        """An independent graph that shares the arrays of constants."""
        return Graph(**{each.name: copy.copy(getattr(self, each.name)) for each in fields(self)})

    def array_dtype(self, name: str) -> np.dtype[Any]:
        """The numpy dtype of the arrays to pass for an input."""
        return np.dtype(self.values[name].given or DTYPES[self.types[name].dtype])

    def stored(self, name: str, array: Array) -> Array:
        """An input's array as the graph stores it."""
        if not self.values[name].given:
            return array
        found = np.empty(array.shape, np.int8)
        store(found, array)
        return found

    def described(self, name: str) -> str:
        """Name, dtype and shape of an input or output for messages."""
        return f"{name} {self.values[name].given or self.types[name].dtype}[{self.sizes(name)}]"

    def sizes(self, name: str) -> str:
        """The dimensions of a value for messages, such as `batch, 3, 6`."""
        shape = enumerate(self.types[name].shape)
        return ", ".join(repr(self.dynamic.inputs.get((name, dim), size)) for dim, size in shape)

    def __str__(self) -> str:
        given = {name: f" given as {said}" for name in self.arguments if (said := self.values[name].given)}
        lines = [f"input  {name}: {self.types[name]}{given.get(name, '')}" for name in self.arguments]
        lines += [f"state  {s.name}: {self.types[s.read]}, read as {s.read}, then {s.written}" for s in self.states]
        for node in self.nodes:
            attrs = "".join(f", {k}={v}" for k, v in node.attrs.items())
            lines.append(f"{node.output}: {self.types[node.output]} = {node.op}({', '.join(node.inputs)}{attrs})")
        return "\n".join([*lines, f"output {', '.join(self.results)}"])
