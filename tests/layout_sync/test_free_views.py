"""Tensors of equal address order hold equal elements at equal addresses: against the address formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, QParams, TensorType
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, PART_ALIGNMENT, ROW_MAJOR, Layout, Shape
from q8ta_wgpu.passes.layout_sync.free_views import address_order, part_offset
from testbed.layout_graphs import addresses

L4W, L4C, L4C1W = Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W
L4W4C, L4H4W = Layout.PACKED_INT8_4W4C, Layout.PACKED_INT8_4H4W
extents = st.sampled_from([1, 1, 2, 3, 4, 5, 6, 8, 12])
shapes = st.lists(extents, min_size=1, max_size=6).map(tuple).filter(lambda s: math.prod(s) <= 4000)
layouts = st.sampled_from([*INT8_LAYOUTS, ROW_MAJOR])


def walked(shape: Shape, layout: Layout, dims: tuple[int, ...] | None = None) -> Array:
    found = addresses(shape, layout)
    return (found if dims is None else found.transpose(dims)).reshape(-1)


@st.composite
def regrouped(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """A shape and another with as many elements: leading dimensions joined, or split at a divisor."""
    shape = draw(shapes)
    total, parts = math.prod(shape), []
    for _ in range(draw(st.integers(0, 3))):
        part = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        parts.append(part)
        total //= part
    return shape, (*parts, total)


@given(regrouped(), layouts, layouts)
def test_views(pair: tuple[Shape, Shape], a: Layout, b: Layout) -> None:
    if address_order(pair[0], a) == address_order(pair[1], b):
        np.testing.assert_array_equal(walked(pair[0], a), walked(pair[1], b))


@given(shapes, st.randoms(use_true_random=False), layouts, layouts)
def test_permutations(shape: Shape, random: object, a: Layout, b: Layout) -> None:
    dims = list(range(len(shape)))
    random.shuffle(dims)  # type: ignore[attr-defined]
    order = address_order(shape, a, tuple(dims))
    permuted = tuple(shape[d] for d in dims)
    if order is not None and order == address_order(permuted, b):
        np.testing.assert_array_equal(walked(shape, a, tuple(dims)), walked(permuted, b))


@given(shapes.filter(lambda s: len(s) <= 4), shapes.filter(lambda s: len(s) <= 4), layouts, layouts)
def test_whole_blocks_miss_nothing(x: Shape, y: Shape, a: Layout, b: Layout) -> None:
    """Of tensors without partly filled blocks none of equal addresses is overlooked."""
    x, y = (tuple(4 * d for d in s) if len(s) > 1 else (1, 4 * s[0]) for s in (x, y))
    if a.is_int8 != b.is_int8 or math.prod(x) != math.prod(y) or math.prod(x) > 20000:
        return
    same = np.array_equal(walked(x, a), walked(y, b))
    assert same == (address_order(x, a) == address_order(y, b))


FREE = [
    ((2, 10, 1, 1), L4C, (2, 10), L4W),
    ((2, 10, 1, 1), L4C1W, (2, 10), L4W),
    ((1, 10, 1, 1), L4C1W, (10,), L4W),
    ((2, 3, 5, 7), L4W, (30, 7), L4W),
    ((2, 3, 5, 7), L4W, (1, 6, 5, 7), L4W),
    ((4, 6, 5, 7), L4C, (2, 2, 6, 5, 7), L4C),
    ((2, 3, 8, 8), L4H4W, (6, 8, 8), L4H4W),
    ((2, 3, 5, 8), L4W, (2, 3, 40), L4W),
    ((7, 9), ROW_MAJOR, (63,), ROW_MAJOR),
]
DEAR = [
    ((2, 10, 1, 1), L4W, (2, 10), L4W),
    ((2, 10, 1, 1), L4W4C, (2, 10), L4W),
    ((2, 3, 5, 7), L4W, (2, 3, 35), L4W),
    ((2, 8, 5, 7), L4C, (2, 8, 35), L4C1W),
    ((2, 3, 5, 7), L4C, (30, 7), L4W),
]


@pytest.mark.parametrize(("x", "a", "y", "b", "free"), [(*f, True) for f in FREE] + [(*d, False) for d in DEAR])
def test_known_views(x: Shape, a: Layout, y: Shape, b: Layout, free: bool) -> None:
    assert (address_order(x, a) == address_order(y, b)) is free


def test_channels_last() -> None:
    """NCHW in 4C is NHWC in 4W, for any number of channels; 4C1W is not."""
    for channels in (1, 6, 8):
        order = address_order((2, 5, 7, channels), L4W)
        assert address_order((2, channels, 5, 7), L4C, (0, 2, 3, 1)) == order
    assert address_order((2, 6, 5, 7), L4C1W, (0, 2, 3, 1)) != address_order((2, 5, 7, 6), L4W)


def test_folded_dimensions_do_not_move() -> None:
    assert address_order((2, 3, 4, 5, 6), L4W, (1, 0, 2, 3, 4)) is None
    assert address_order((2, 3, 4, 5, 6), L4C, (0, 1, 3, 4, 2)) == address_order((2, 3, 5, 6, 4), L4W)


def test_a_part_of_a_buffer_has_the_addresses_of_its_own() -> None:
    """Of every dimension, start and end of some shapes, in every layout."""
    free = 0
    for shape in ((1, 768), (6, 64), (1, 1, 3, 256), (2, 256, 1, 3), (3, 8, 4, 64), (5, 16, 4, 4)):
        for layout, dim in itertools.product((*INT8_LAYOUTS, ROW_MAJOR), range(len(shape))):
            whole = addresses(shape, layout)
            for start, end in (
                (0, shape[dim]),
                (0, -(-shape[dim] // 2)),
                (shape[dim] // 3, shape[dim]),
                (1, 2),
                (4, 9),
            ):
                index = (*[slice(None)] * dim, slice(start, end))
                if not (part := whole[index]).size:
                    continue
                q = QParams(1.0, 0) if layout.is_int8 else None
                x, y = (TensorType(s, INT8X4 if q else "float32", q) for s in (shape, part.shape))
                found = part_offset(x, y, dim, start, layout)
                own = addresses(part.shape, layout)
                if found is not None:
                    np.testing.assert_array_equal(part - found, own)
                    free += start > 0
                elif layout is Layout.PACKED_INT8_4W and len(set((part - own).reshape(-1))) == 1:
                    assert (part - own).flat[0] % PART_ALIGNMENT
    assert free > 40
    wide = QParams(1.0, 0, INT16X4)
    assert part_offset(TensorType((1, 768), INT16X4, wide), TensorType((1, 256), INT16X4, wide), 1, 256, L4W) == 512
