"""Strided moves: the operators view, permute, expand, slice, flip, repeat and the shuffles, run by shared kernels.

The linear index of a result element is written with digits in a mixed radix. The element is copied from the input's
element whose linear index is an offset plus the sum of digit * stride. A move is given by the (size, stride) of each
digit and by the offset.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.kernel import ANY, FLOAT, Kernel, LayoutSet, Names, Params, four_words
from q8ta_wgpu.ir.layout import CHANNELS_PACKED_INT8, WIDTH_PACKED_INT8, Layout, Shape, Shape4, canonical
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


def keeps_words(walk: Sequence[Digit], offset: int, x: Shape4, y: Shape4, axis: int) -> bool:
    """Whether each word of the result is a word of the input, where both are packed along canonical `axis`.

    Args:
        walk, offset: digits and offset of the move.
        x, y: canonical extents of input and result.
        axis: 1 for words along C, 3 for words along W.
    """
    step, extent = math.prod(x[axis + 1 :]), x[axis]
    first, last = math.prod(y[axis + 1 :]), math.prod(y[axis:])
    pieces = cut(walk, (first, last))
    if pieces is None:
        return False
    moves: list[Digit] = []
    lanes = 1
    for weight, end, stride in pieces:
        if weight == first and end <= last and end > weight:
            # The digit that counts lanes must have the stride of the input's axis. It must end with the axis or a word.
            lanes = end // weight
            if stride != step or (end != last and lanes % 4):
                return False
        else:
            moves.append((end // weight, stride))
    offset += sum((size - 1) * stride for size, stride in moves if stride < 0)
    within, along = offset % step, offset // step % extent + lanes - 1
    starts = [offset // step % extent]
    for size, stride in ((size, abs(stride)) for size, stride in moves):
        if stride % (step * extent):
            within += (size - 1) * (stride % step)
            along += (size - 1) * (stride // step)
            starts.append(stride // step)
    carries = along < extent or extent % 4 == 0
    return within < step and carries and not any(start % 4 for start in starts)


def aligned(walk: Sequence[Digit], offset: int, x: Shape4, y: Shape4) -> bool:
    """Whether a move is a broadcast of canonical extents: each element reads the same coordinates of the input, or 0
    along dimensions of extent 1. Such a move needs no divisions."""
    steps = [0 if old == 1 else step for old, step in zip(x, strides(x), strict=True)]
    broadcast = merged(list(zip(y, steps, strict=True)))
    return offset == 0 and all(old in (1, new) for old, new in zip(x, y, strict=True)) and list(walk) == broadcast


def _source(digits: Digits, *files: str) -> Callable[[Call], tuple[str, ...]]:
    """The WGSL of a move: kernels/move/move.wgsl, then `files`."""

    def source(call: Call) -> tuple[str, ...]:
        x, y = call.inputs[0].shape, call.output.shape
        walk, offset = digits(x, y, call.attrs)
        sources = ("source_of=aligned_source",) if aligned(merged(walk), offset, canonical(x), canonical(y)) else ()
        return "move", *files, *sources

    return source


def word_kernels(
    name: str,
    source: Names,
    supports: Callable[[Call, Target, int], bool],
    params: Callable[[Call], Params],
    cost: Callable[[Call], float] = lambda call: 0.0,
    x: LayoutSet | None = None,
) -> tuple[Kernel, ...]:
    """Two kernels that compute whole words of int8 or int16: `name`_C for layouts packed along C, `name`_W along W.

    Args:
        name, source, params, cost: as for Kernel.
        supports: (call, target, canonical axis of the words) -> whether a kernel can run the call.
        x: layouts of the operand; None for those of the result.
    """

    def takes(call: Call, target: Target, axis: int) -> bool:
        return call.output.dtype in INTEGERS and supports(call, target, axis)

    return tuple(
        Kernel(
            f"{name}_{'NCHW'[axis]}",
            source,
            (x or layouts,),
            layouts,
            supports=functools.partial(takes, axis=axis),
            params=params,
            threads=four_words,
            cost=cost,
        )
        for axis, layouts in ((1, CHANNELS_PACKED_INT8), (3, WIDTH_PACKED_INT8))
    )


def _word_kernels(name: str, digits: Digits) -> tuple[Kernel, ...]:
    def keeps(call: Call, target: Target, axis: int) -> bool:
        x, y = call.inputs[0].shape, call.output.shape
        walk, offset = digits(x, y, call.attrs)
        return keeps_words(merged(walk), offset, canonical(x), canonical(y), axis)

    source = _source(digits, "words")
    return word_kernels(f"{name}.words", source, keeps, _params(digits), lambda call: 3.0 * call.output.numel)


def splats_words(walk: Sequence[Digit], y: Shape4, axis: int) -> bool:
    """Whether all lanes of a word of the result, packed along canonical `axis`, are copies of one input element."""
    first, last = math.prod(y[axis + 1 :]), math.prod(y[axis:])
    lanes = next((piece for piece in cut(walk, (first, last)) or () if piece[0] == first), None)
    return lanes is not None and lanes[2] == 0 and (lanes[1] == last or lanes[1] // first % 4 == 0)


def splat_kernels(name: str, digits: Digits) -> tuple[Kernel, ...]:
    """The kernels of moves where all lanes of a word are copies of one element, which is read once."""

    def splats(call: Call, target: Target, axis: int) -> bool:
        walk, _ = digits(call.inputs[0].shape, call.output.shape, call.attrs)
        return splats_words(merged(walk), canonical(call.output.shape), axis)

    source = _source(digits, "words", "load=load_splat")
    return word_kernels(f"{name}.splat", source, splats, _params(digits), lambda call: 0.5 * call.output.numel, ANY)


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
    keeps_words: bool = True,
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
        keeps_words: whether the operator can move whole words at all; False leaves out the kernels for that.
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
            *(_word_kernels(name, digits) if keeps_words else ()),
            Kernel(name, ("move", "map"), (ANY,), ANY, params=_params(digits)),
        ),
        int8=Moves(),
        reads=reads,
        cases=tuple(Case((x,), attrs) for x, attrs in cases),
    )
