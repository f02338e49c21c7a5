"""view: the same elements in the same order, in another shape. reshape, flatten, squeeze and others are imported as
it."""

from __future__ import annotations

import math

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Attrs
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import MAX_EXTENT, Attr
from q8ta_wgpu.kernels.move.strided import move

LEFT, REST, RIGHT = 0, -1, -2
"""Entries of the attribute `shape` that are no extents. LEFT: the extent of the input's dimension of the same index.
REST: the extent that is left. RIGHT: the extent of the input's dimension at the same distance from the end."""


def shape_of(x: Shape, attrs: Attrs) -> Shape:
    """The shape of a view. Raises GraphError where the elements do not fit."""
    shape = list(attrs["shape"])
    missing = len(shape) - len(x)
    lost = any((d == LEFT and i >= len(x)) or (d == RIGHT and i < missing) for i, d in enumerate(shape))
    if lost or shape.count(REST) > 1:
        raise GraphError(f"view of {x} as {shape}: 0 and -2 keep dimensions of the input, -1 may stand once")
    found = [x[i] if d == LEFT else x[i - missing] if d == RIGHT else d for i, d in enumerate(shape)]
    if REST in found:
        known = -math.prod(found)
        if math.prod(x) % known:
            raise GraphError(f"view of {x} as {shape}: {math.prod(x)} elements are no multiple of {known}")
        found[found.index(REST)] = math.prod(x) // known
    if math.prod(found) != math.prod(x):
        raise GraphError(f"view of {x} as {shape}: {math.prod(x)} elements cannot become {math.prod(found)}")
    return tuple(found)


def flexible(x: Shape, y: Shape, rest: int | None = None) -> list[int]:
    """The attribute `shape` of a view from shape `x` to shape `y`, with as few fixed extents as possible, so that the
    view is also correct for other input sizes.

    Leading dimensions that stay the same are LEFT, trailing ones RIGHT. A single dimension that changes is REST. Of
    several, one is REST and the others are fixed, as heads and groups of a network are: REST is `rest`, the dimension
    that the network gave as -1, or the first one, which may be a batch.
    """
    first = next((i for i, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), min(len(x), len(y)))
    last = 0
    while last < min(len(x), len(y)) - first and x[-1 - last] == y[-1 - last]:
        last += 1
    changed = range(first, len(y) - last)
    large = [i for i in changed if y[i] != 1]
    found = [LEFT] * first + [y[i] for i in changed] + [RIGHT] * last
    if rest is not None and rest in changed:
        found[rest] = REST
    elif len(large) == 1 or (large and not first):
        found[large[0]] = REST
    return found


view = move(
    "view",
    shape=shape_of,
    digits=lambda x, y, attrs: ([(math.prod(y), 1)], 0),
    reference=lambda x, y, attrs: x.reshape(y),
    schema={"shape": Attr("ints", low=RIGHT, high=MAX_EXTENT)},
    cases=(
        ((2, 5, 3, 7), {"shape": (0, -1)}),
        ((2, 6, 5), {"shape": (0, 2, 3, -2)}),
        ((13, 6), {"shape": (78,)}),
        ((2, 3, 2, 3, 5), {"shape": (-1, 3, 10)}),
        ((1, 1, 1), {"shape": ()}),
        ((3, 8, 4, 4), {"shape": (2, -1, 2, 2, 3)}),
    ),
)
