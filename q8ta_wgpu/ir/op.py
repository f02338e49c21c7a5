"""What an operator is: one frozen value with everything the library knows about it.

A file of `kernels/` defines its operators as `Op` values. Passes, reference, plans, importers, quantizer, tests and
benchmarks read them. Nothing is registered: `kernels.OPS` finds them in the folder.
"""

from __future__ import annotations

import itertools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, INT32, RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8, Monotonic, Moves
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.layout import Shape, canonical

MAX_EXTENT = 1 << 24
"""Largest kernel size, stride, padding or dimension in an attribute."""

FLOAT_MAX = float(np.finfo(np.float32).max)
"""Stands for an infinity in an attribute, which must be finite: the absent bound of a clamp, which lets infinities
pass."""

MAX_WORK = 1 << 42
"""Most loop steps (multiply-accumulates, window taps) of one dispatch. The largest real layers (a 4K image, 128
channels, 3 x 3) stay below 2^41. A hostile file must not keep a device busy for hours."""


MAX_PADDED = 1 << 31
"""Most elements of a convolution's padded image: the reference allocates it, and a file may ask for any padding."""


def check_padded(*extents: int) -> None:
    """Raises GraphError where a padded image of these extents has more than MAX_PADDED elements."""
    if math.prod(extents) > MAX_PADDED:
        raise GraphError(f"the padded image would have {math.prod(extents)} elements, more than {MAX_PADDED}")


@dataclass(frozen=True)
class Attr:
    """Allowed values of an attribute.

    Attributes:
        kind: 'int', 'ints', 'float', 'floats', 'bool', 'enum' or 'value'.
        low, high: inclusive bounds of each number.
        length: number of entries of a list, or None for any up to 64.
        choices: the allowed strings of an enum.
        type: the class of a value, which checks itself when it is made.
    """

    kind: str
    low: float = -MAX_EXTENT
    high: float = MAX_EXTENT
    length: int | None = None
    choices: tuple[str, ...] = ()
    type: type[Any] = object

    def check(self, value: Any) -> str:
        """What is wrong with `value`; empty if nothing is."""
        match self.kind:
            case "enum":
                return (
                    ""
                    if isinstance(value, str) and value in self.choices
                    else f"must be one of {', '.join(self.choices)}"
                )
            case "value":
                return "" if isinstance(value, self.type) else f"must be an {self.type.__name__}"
            case "bool":
                return "" if isinstance(value, bool) else "must be true or false"
            case "ints" | "floats":
                if not isinstance(value, (tuple, list)) or len(value) > 64:
                    return "must be a list of at most 64 numbers"
                if self.length is not None and len(value) != self.length:
                    return f"must have {self.length} entries"
                return next((text for v in value if (text := self._check_number(v))), "")
            case _:
                return self._check_number(value)

    def _check_number(self, value: Any) -> str:
        whole = self.kind in ("int", "ints")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            return f"must be {'an integer' if whole else 'a number'}"
        if not self.low <= value <= self.high:  # false for NaN, and exact for integers no float can hold
            return f"must be in [{self.low:g}, {self.high:g}]"
        return ""


def extent(low: int = 1) -> Attr:
    """An integer attribute that bounds a loop or a size."""
    return Attr("int", low=low)


def pair(low: int = 1) -> Attr:
    """Two integers, for height and width."""
    return Attr("ints", low=low, length=2)


INT8_RANGE = Attr("int", low=-128, high=127)
RANGE: Mapping[str, Attr] = {"lo": INT8_RANGE, "hi": INT8_RANGE}
"""What an int8 result is clamped to."""

INT16_RANGE = Attr("int", low=RANGES[INT16X4][0], high=RANGES[INT16X4][1])
WIDE_RANGE: Mapping[str, Attr] = {"lo": INT16_RANGE, "hi": INT16_RANGE}
"""What an int8 or int16 result is clamped to; `verify` holds it to the range of the result's own dtype."""


@dataclass(frozen=True)
class Operand:
    """One input of an operator.

    Attributes:
        constant: whether it is a weight or table: a compile-time array without a layout.
        valid: (call, arrays by position, None for non-constants) -> what is wrong with the values of a constant
            operand, or ''. It checks all that a kernel relies on beyond shapes, since a model file may hold anything.
        at_result: whether it is read element by element where the result is written. `Op.reads` describes the others.
        real: whether the int8 form of the operator reads it in float32, too.
        optional: whether a call may leave it out; optional operands come last.
    """

    name: str
    constant: bool = False
    dtypes: tuple[str, ...] = (FLOAT32,)
    valid: Callable[[Call, Sequence[Array | None]], str] | None = None
    at_result: bool = False
    real: bool = False
    optional: bool = False


Reads = Callable[[Call, int, int, int], "tuple[int, int] | None"]
"""(call, axis, first, last) -> (first, last): the rows (axis 2) or columns (axis 3) of the inputs that rows or columns
first..last of the result depend on. They may lie outside the input (padding). None: any may be read."""


def reads_same_place(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    """`Op.reads` of elementwise operators, and of those that work along channels only."""
    size = canonical(call.output.shape)[axis]
    moving = [t.shape for t in call.inputs if len(t.shape) == 4]
    return (first, last) if moving and all(shape[axis] == size for shape in moving) else None


def reads_beside_dim(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    """`Op.reads` of operators that work along their attribute `dim`: the same index in the other dimensions."""
    return None if call.attrs["dim"] == axis else reads_same_place(call, axis, first, last)


@dataclass(frozen=True)
class Case:
    """One tested call: shapes of the operands in order, attributes, and which data to draw.

    `values` names a rule of the tests for data: 'random', 'saturate' (results far outside int8), 'ties', 'bits32' (of
    the weight, 4 with a factor for each 32 inputs), 'int16' (of a constant that may have them).
    """

    shapes: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)
    values: str = "random"


def _no_macs(call: Call) -> int:
    return 0


@dataclass(frozen=True)
class Op:
    """One operator.

    Attributes:
        name: the name in graphs, reports and WGSL file names.
        operands: its inputs. The last one repeats if `variadic`. Operands of the attributes `prologue` and `epilogue`
            follow.
        infer: (input types, attrs) -> (shape, dtype) of the result; raises GraphError on a wrong call.
        results: other dtypes that the result may have; its type says which, as it says scale and zero point.
        reference: (call, arrays) -> result: the definition, in numpy.
        schema: attributes and their allowed values.
        variadic: whether the last operand repeats.
        kernels: ways to run it, preferred first.
        int8: what a float operator is in int8; None where it stays in float32.
        reads: which part of its inputs a part of the result needs, so that large images can run in tiles.
        cases: calls that the tests run over every kernel.
        tolerance: for float results, the largest relative error against the reference; 0 for exact.
        work: loop steps of all threads of one dispatch, for shaders that loop over a window or over an activation's
            dimension. Elementwise operators and weighted sums need none.
        rows: of an operator that reads or writes rows at computed places, its last operand: how many rows there are.
        macs: multiply-accumulates of a call; 0 where its time does not depend on them.
        bounds: attributes that are upper bounds, such as the largest index. The bound for the largest sizes of the
            inputs is also right for smaller ones.
    """

    name: str
    operands: tuple[Operand, ...]
    infer: Callable[[tuple[TensorType, ...], Attrs], tuple[Shape, str]]
    reference: Callable[[Call, Sequence[Array]], Array]
    schema: Mapping[str, Attr] = field(default_factory=dict)
    variadic: bool = False
    results: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    int8: Int8 | None = None
    reads: Reads | None = None
    cases: tuple[Case, ...] = ()
    tolerance: float = 0.0
    work: Callable[[Call], int] | None = None
    bounds: tuple[str, ...] = ()
    macs: Callable[[Call], int] = _no_macs
    rows: Callable[[Call], int] | None = None

    def inputs(self, attrs: Attrs) -> tuple[Operand, ...]:
        """The operands of a call with these attributes: the operator's own, then those of its prologue and epilogue."""
        parts = [attrs[name].operands for name in ("prologue", "epilogue") if name in self.schema]
        return tuple(itertools.chain(self.operands, *parts))

    def operand(self, position: int, attrs: Attrs) -> Operand:
        """The operand at a position of a call; the last one of a variadic operator repeats."""
        operands = self.inputs(attrs)
        return operands[min(position, len(operands) - 1)]

    def steps(self, call: Call) -> int:
        """Loop steps of all threads of one dispatch: one for each result and tap of its weight, or `work`."""
        if self.work is not None:
            return self.work(call)
        taps = [math.prod(t.shape[1:]) for i, t in enumerate(call.inputs) if self.operand(i, call.attrs).constant]
        return call.output.numel * max(taps, default=1)

    @property
    def keeps_int8(self) -> bool:
        """Whether the operator runs on int8 values as it is and keeps scale and zero point."""
        return isinstance(self.int8, Moves | Monotonic)

    def check(self, types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        """Checks a call against the schema and returns the result's shape and dtype; raises GraphError."""
        if set(attrs) != set(self.schema):
            raise GraphError(f"{self.name} has attributes {sorted(self.schema)}, found {sorted(attrs)}")
        for name, attr in self.schema.items():
            if text := attr.check(attrs[name]):
                raise GraphError(f"{self.name}: attribute {name} {text}, found {reprlib.repr(attrs[name])}")
        if {"lo", "hi"} <= set(attrs) and attrs["lo"] > attrs["hi"]:
            raise GraphError(f"{self.name}: the range lo..hi is empty, found {attrs['lo']}..{attrs['hi']}")
        expected = self.inputs(attrs)
        least, most = sum(not operand.optional for operand in expected), len(expected)
        if len(types) < least or (len(types) > most and not self.variadic):
            counts = " or ".join(map(str, sorted({least, most})))
            raise GraphError(f"{self.name} takes {counts} inputs, found {len(types)}")
        for position, given in enumerate(types):
            operand = self.operand(position, attrs)
            if given.dtype not in operand.dtypes:
                wanted = " or ".join(operand.dtypes)
                raise GraphError(
                    f"{self.name}: input {position} ({operand.name}) must be {wanted}, found {given.dtype}"
                )
        return self.infer(types, attrs)


INTEGERS = (INT8X4, INT16X4)
"""Dtypes of operators that work on int8 and int16 alike."""

ANY_DTYPE = (FLOAT32, *INTEGERS)
"""Dtypes of operators that find the largest, and so work on floats and integers alike."""

MOVED = (*ANY_DTYPE, INT32)
"""Dtypes of operators that move elements."""

NUMBERS = (FLOAT32, INT32)
"""Dtypes of operators that compute with integers as with floats: all their operands have one of the two."""


def one_dtype(types: tuple[TensorType, ...], attrs: Attrs) -> str:
    """The dtype of operands that are NUMBERS. Raises GraphError where they are of both, or where integers meet a number
    in the attributes that is none."""
    found = types[0].dtype
    if any(t.dtype != found for t in types):
        raise GraphError(f"the operands must be of one dtype, found {', '.join(t.dtype for t in types)}")
    if found == INT32 and not whole(attrs):
        raise GraphError(f"integers are computed with integers that int32 holds, found {dict(attrs)}")
    return found


def whole(attrs: Attrs) -> bool:
    """Whether all numbers of attributes are integers that int32 holds, or bounds that leave a side open."""
    floats = [v for v in attrs.values() if isinstance(v, float)]
    return all(float(v).is_integer() and (abs(v) < 1 << 31 or abs(v) == FLOAT_MAX) for v in floats)


def number(value: float, dtype: str) -> np.float32 | np.int32:
    """A number of an attribute as a uniform field beside operands of a dtype."""
    return np.int32(min(max(value, -(1 << 31)), (1 << 31) - 1)) if dtype == INT32 else np.float32(value)


def same_as_first(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of elementwise operators of one tensor."""
    return types[0].shape, types[0].dtype


def quantized_as_first(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    """The shape rule of operators that round one tensor. The result is int8, or the dtype of its quantization."""
    return types[0].shape, INT8X4


def dims(t: TensorType) -> tuple[int, int, int, int]:
    """The four extents of a tensor, as the uniform field that index functions read."""
    return canonical(t.shape)
