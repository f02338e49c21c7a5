"""Which moves keep words whole, against every element's address."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from q8ta_wgpu.ir.graph import INT8X4, Call, QParams, TensorType
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.move.strided import aligned, keeps_words, merged, permuted, strides


def whole(sources: np.ndarray, x: tuple[int, ...], axis: int) -> bool:
    """The definition: the lanes of every word of the result are the lanes of one word of the input, in order."""
    step, extent = math.prod(x[axis + 1 :]), x[axis]
    moved = np.moveaxis(sources, axis, -1)
    for start in range(0, moved.shape[-1], 4):
        lanes = moved[..., start : start + 4]
        place = lanes // step % extent
        steady = lanes == lanes[..., :1] + step * np.arange(lanes.shape[-1])
        if (
            (place[..., 0] % 4).any()
            or not steady.all()
            or (place != place[..., :1] + np.arange(lanes.shape[-1])).any()
        ):
            return False
    return True


extents = st.tuples(*[st.sampled_from((1, 2, 3, 4, 5, 8, 12))] * 4)


@given(extents, st.permutations(range(4)), st.tuples(*[st.sampled_from((1, -1, 2))] * 4), st.data())
def test_words_are_kept_only_where_they_are(
    x: tuple[int, ...], dims: list[int], steps: tuple[int, ...], data: st.DataObject
) -> None:
    """Permutations of strided slices: whatever is said to keep words does, along channels and along width."""
    ranges = [range(d)[::step] for d, step in zip(x, steps, strict=True)]
    first = [data.draw(st.sampled_from((0, 4 if len(r) > 4 else 0))) for r in ranges]
    ranges = [r[f:] for r, f in zip(ranges, first, strict=True)]
    index = np.arange(math.prod(x)).reshape(x)
    sources = index[np.ix_(*map(list, ranges))].transpose(dims)
    digits = [(len(ranges[d]), strides(x)[d] * ranges[d].step) for d in dims]
    offset = int(sources.reshape(-1)[0])
    for axis in (1, 3):
        if keeps_words(merged(digits), offset, canonical(x), canonical(sources.shape), axis):
            assert whole(sources, x, axis)


@given(extents, st.tuples(*[st.sampled_from((1, 2, 3))] * 4), st.permutations(range(4)), st.booleans())
def test_aligned_moves_are_broadcasts(
    x: tuple[int, ...], grown: tuple[int, ...], dims: list[int], flipped: bool
) -> None:
    """Permutations, flips, repeats and broadcasts: those whose sources are their own places, or the first along
    dimensions of extent 1, and no others."""
    index = np.arange(math.prod(x)).reshape(x)
    sources = np.broadcast_to(index, tuple(max(a, b) if a == 1 else a for a, b in zip(x, grown, strict=True)))
    steps = [0 if d == 1 else s for d, s in zip(x, strides(x), strict=True)]
    digits = [(sources.shape[d], steps[d]) for d in dims]
    offset, sources = 0, sources.transpose(dims)
    if flipped:
        size, step = digits[0]
        offset, digits[0], sources = (size - 1) * step, (size, -step), sources[::-1]
    own = [np.minimum(np.arange(new), old - 1) for new, old in zip(sources.shape, x, strict=True)]
    is_broadcast = all(old in (1, new) for old, new in zip(x, sources.shape, strict=True))
    wanted = is_broadcast and np.array_equal(sources, index[np.ix_(*own)])
    assert aligned(merged(digits), offset, canonical(x), canonical(sources.shape)) == wanted


def test_moves_known_to_keep_words() -> None:
    x = (2, 8, 3, 12)
    for dims, channels, columns in (
        ((0, 1, 2, 3), True, True),
        ((2, 1, 0, 3), True, True),
        ((0, 1, 3, 2), True, False),
        ((1, 0, 2, 3), False, True),
    ):
        y = tuple(x[d] for d in dims)
        walk = merged(permuted(x, dims))
        assert [keeps_words(walk, 0, x, canonical(y), axis) for axis in (1, 3)] == [channels, columns], dims


@pytest.mark.parametrize(
    ("name", "shape", "attrs", "kept"),
    [
        ("view", (2, 8, 3, 4), {"shape": (2, 2, 4, 3, 4)}, (True, True)),
        ("view", (2, 6, 3, 4), {"shape": (4, 3, 3, 4)}, (False, True)),
        ("view", (1, 8, 2, 6), {"shape": (1, 8, 12)}, (False, False)),
        ("channel_shuffle", (1, 16, 2, 2), {"groups": 2}, (False, True)),
        ("channel_shuffle", (1, 16, 2, 4), {"groups": 8}, (False, True)),
        ("permute", (1, 16, 2, 2), {"dims": (0, 2, 3, 1)}, (False, False)),
        ("flip", (1, 8, 3, 5), {"dims": (2, 3)}, (True, False)),
        ("expand", (1, 8, 1, 1), {"shape": (3, -1, 2, 5)}, (True, False)),
    ],
)
def test_operators_whose_digits_are_no_dimensions(
    name: str, shape: Shape, attrs: dict[str, Any], kept: tuple[bool, bool]
) -> None:
    op, t = OPS[name], TensorType(shape, INT8X4, QParams(0.1, 0))
    y, _ = op.check((t,), attrs)
    call = Call(name, attrs, (t,), TensorType(y, INT8X4, t.q))
    sources = op.reference(call, [np.arange(t.numel).reshape(shape)]).reshape(canonical(y))
    assert tuple(k.runs(call, BASELINE) for k in op.kernels if ".words_" in k.name) == kept
    assert all(whole(sources, canonical(shape), axis) for axis, keeps in zip((1, 3), kept, strict=True) if keeps)
