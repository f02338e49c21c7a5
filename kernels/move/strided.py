"""Strided moves: the operators view, permute, expand, slice, flip, repeat and the shuffles, run by shared kernels.

The linear index of a result element is written with digits in a mixed radix. The element is copied from the input's
element whose linear index is an offset plus the sum of digit * stride. A move is given by the (size, stride) of each
digit and by the offset.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, canonical
from q8ta_wgpu.ir.op import INTEGERS, MOVED, Attr, Case, Op, Operand, Reads
from q8ta_wgpu.ir.target import Target

Digit = tuple[int, int]
Digits = Callable[[Shape, Shape, Attrs], "tuple[list[Digit], int]"]
"""(input shape, result shape, attributes) -> ((size, stride) of each digit, the slowest first; the offset)."""

ShapeRule = Callable[[Shape, Attrs], Shape]
"""(input shape, attributes) -> result shape; raises GraphError."""

MAX_DIGITS = 8


def strides(shape: Shape) -> list[int]:
    """The strides of a row-major tensor, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def permuted(shape: Shape, dims: Sequence[int]) -> list[Digit]:
    """The digits of a permutation: dimension i of the result is dimension dims[i] of `shape`."""
    steps = strides(shape)
    return [(shape[d], steps[d]) for d in dims]


def merged(digits: Sequence[Digit]) -> list[Digit]:
    """The same move with the fewest digits: digits of size 1 are dropped, and neighbours with matching strides are
    merged."""
    found: list[Digit] = []
    for size, stride in digits:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    return found


def cut(walk: Sequence[Digit], bounds: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """Digits split so that none extends over one of the bounds of the linear index.

    Returns:
        (weight, end, stride) of each digit, the fastest first: in the linear index the digit counts `weight` elements,
        and weight * size is `end`. None if a bound does not split a digit into whole numbers.
    """
    found, weight = [], 1
    for size, stride in reversed(walk):
        end = weight * size
        cuts = sorted({weight, end, *(b for b in bounds if weight < b < end)})
        for first, last in itertools.pairwise(cuts):
            if last % first:
                return None
            found.append((first, last, stride * (first // weight)))
        weight = end
    return found


def _item_kernel(name: str, digits: Digits) -> Kernel:
    """The kernel for moves of whole items between buffers with the elements in order. An item is a vector of four words
    if possible, otherwise a word."""

    def walk_of(call: Call, item: int) -> tuple[list[Digit], int] | None:
        """Digits and offset counted in items of `item` elements; None if the move splits items."""
        walk, offset = digits(call.inputs[0].shape, call.output.shape, call.attrs)
        walk = merged(walk) or [(1, 1)]
        if item > 1:
            (size, stride), slower = walk[-1], walk[:-1]
            if stride != 1 or any(n % item for n in (size, offset, *(step for _, step in slower))):
                return None
            walk = [*((n, step // item) for n, step in slower), (size // item, 1)]
        return walk, offset // item

    def word(call: Call) -> int:
        """Elements of a word."""
        return 4 if call.output.dtype in INTEGERS else 1

    def vectors(call: Call) -> bool:
        return call.output.dtype != INT16X4 and walk_of(call, 4 * word(call)) is not None

    def item_of(call: Call) -> int:
        return word(call) * (4 if vectors(call) else 1)

    def supports(call: Call, target: Target) -> bool:
        ends = (canonical(t.shape)[3] for t in (call.inputs[0], call.output))
        in_order = call.output.dtype not in INTEGERS or all(end % 4 == 0 for end in ends)
        return in_order and walk_of(call, word(call)) is not None

    def params(call: Call) -> Params:
        found = walk_of(call, item_of(call))
        assert found is not None  # `supports` holds
        return {**_walk_params(*found), "items": np.uint32(call.output.numel // item_of(call))}

    return Kernel(
        f"{name}.items",
        ("move_items",),
        (IN_ORDER,),
        IN_ORDER,
        supports=supports,
        wide=lambda call: ("x", "y") if vectors(call) else (),
        params=params,
        threads=lambda call, layout: (-(-call.output.numel // (4 * item_of(call))), 1, 1),
    )


IN_ORDER = FLOAT | {Layout.PACKED_INT8_4W}
"""Layouts with the elements in order. 4W has them in order if rows are whole words."""


def eight(name: str, numbers: Sequence[int]) -> dict[str, tuple[int, int, int, int]]:
    """Up to eight integers, modulo 2^32, as the uniform fields `name`_low and `name`_high. The last integer is repeated
    to fill them."""
    last = numbers[-1] if numbers else 1
    a, b, c, d, e, f, g, h = (n & 0xFFFFFFFF for n in (*numbers, *[last] * (8 - len(numbers))))
    return {f"{name}_low": (a, b, c, d), f"{name}_high": (e, f, g, h)}


def _params(digits: Digits) -> Callable[[Call], Params]:
    def params(call: Call) -> Params:
        walk, offset = digits(call.inputs[0].shape, call.output.shape, call.attrs)
        return _walk_params(merged(walk), offset)

    return params


def _walk_params(walk: Sequence[Digit], offset: int) -> Params:
    found = walk[::-1]
    return {
        **eight("size", [size for size, _ in found]),
        **eight("stride", [stride for _, stride in found]),
        "offset": np.uint32(offset),
        "digits": np.uint32(len(found)),
    }


def move(
    name: str,
    *,
    shape: ShapeRule,
    digits: Digits,
    reference: Callable[[Array, Shape, Attrs], Array],
    schema: Mapping[str, Attr],
    cases: Sequence[tuple[Shape, Attrs]],
    reads: Reads | None = None,
    kernels: Sequence[Kernel] = (),
) -> Op:
    """The operator of a strided move of float32, int32, int8 or int16 elements.

    Args:
        name: of the operator.
        shape: the shape rule.
        digits: the move, for the kernels.
        reference: the definition in numpy: (input, result shape, attributes) -> result.
        schema, reads: as for Op.
        cases: (input shape, attributes) of the tested calls.
        kernels: faster kernels for some calls and layouts, preferred first.
    """

    def infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
        x = types[0]
        result = shape(x.shape, attrs)
        count = len(merged(digits(x.shape, result, attrs)[0]))
        if count > MAX_DIGITS:
            raise GraphError(f"{name} of {x.shape} takes {count} nested steps; at most {MAX_DIGITS} are supported")
        return result, x.dtype

    return Op(
        name=name,
        operands=(Operand("x", dtypes=MOVED),),
        infer=infer,
        reference=lambda call, arrays: np.array(reference(arrays[0], call.output.shape, call.attrs), order="C"),
        schema=schema,
        kernels=(
            *kernels,
            _item_kernel(name, digits),
            Kernel(name, ("move", "map"), (ANY,), ANY, params=_params(digits)),
        ),
        int8=Moves(),
        reads=reads,
        cases=tuple(Case((x,), attrs) for x, attrs in cases),
    )
