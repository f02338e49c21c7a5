"""The laws of the layout algebra, and what upstream leaves open and we define."""

from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import q8ta_wgpu.passes.layout_sync.tensor_repr as tr
from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.passes.layout_sync.tensor_repr import (
    LAYOUT_ORDER,
    NO_STORAGE,
    PackedDimInfo,
    TensorRepr,
    TensorRepSet,
    filter_invalid_reprs,
    image_extents,
    make_tensor_repset,
)
from tests.layout_names import BUFFER, CHANNELS, CONV2D, HEIGHT, L4C, L4C1W, L4H4W, L4W, L4W4C, TEXTURE, WIDTH

# What upstream leaves open and we define.


@pytest.mark.parametrize(
    ("layout", "buffer", "texture"),
    [
        (WIDTH, (0, 1), (0, 4)),
        (HEIGHT, (1, 1), (1, 4)),
        (CHANNELS, (2, 1), (2, 4)),
        (L4W, (0, 4), (0, 4)),
        (L4H4W, (0, 4), (0, 4)),
        (L4C, (2, 4), (2, 16)),
        (L4C1W, (2, 4), (2, 16)),
        (L4W4C, (2, 4), (2, 4)),
        (CONV2D, (2, 4), (2, 4)),
    ],
    ids=repr,
)
def test_packed_dim_info(layout: Layout, buffer: tuple[int, int], texture: tuple[int, int]) -> None:
    assert PackedDimInfo.from_repr(TensorRepr(BUFFER, layout)) == PackedDimInfo(*buffer)
    assert PackedDimInfo.from_repr(TensorRepr(TEXTURE, layout)) == PackedDimInfo(*texture)


def test_default_has_no_side() -> None:
    for question in (TensorRepSet({WIDTH}).is_compatible, make_tensor_repset, PackedDimInfo.from_repr):
        with pytest.raises(GraphError, match="DEFAULT"):
            question(TensorRepr())


def test_first_member_is_defined() -> None:
    assert sorted(LAYOUT_ORDER, key=lambda layout: layout.value) == list(Layout)
    assert tr.PACKED_INT8_CHANNELS_PACKED_BUFFER.make_tensor_repr() == TensorRepr(BUFFER, L4C1W)
    assert tr.ANY_STORAGE_INCL_PACKED_INT8.make_tensor_repr() == TensorRepr(TEXTURE, WIDTH)


@pytest.mark.parametrize(
    ("layout", "extents"),
    [
        (WIDTH, (2, 6, 2 * 9)),
        (HEIGHT, (5, 2, 2 * 9)),
        (CHANNELS, (5, 6, 2 * 3)),
        (L4W, (1, 6, 2 * 9)),
        (L4C, (5, 6, 2 * 1)),
        (L4C1W, (5, 6, 2 * 1)),
        (CONV2D, (5, 6, 2 * 1)),
        (L4W4C, (2, 6, 2 * 3)),
        (L4H4W, (2, 2, 2 * 9)),
    ],
    ids=repr,
)
def test_image_extents(layout: Layout, extents: tuple[int, int, int]) -> None:
    assert image_extents((2, 9, 6, 5), layout) == extents


def test_filter_drops_textures_that_do_not_fit() -> None:
    shape = (
        1,
        3000,
        2,
        40000,
    )  # packing W saves the width but not the depth, packing C the depth but not the width
    assert filter_invalid_reprs(shape, tr.ANY_STORAGE) == tr.ANY_BUFFER
    assert filter_invalid_reprs((1, 3000, 2, 40), tr.ANY_STORAGE) == tr.ANY_BUFFER.make_union(
        tr.CHANNELS_PACKED_TEXTURE
    )
    assert filter_invalid_reprs((7, 40000), tr.ANY_STORAGE) == tr.ANY_BUFFER.make_union(tr.WIDTH_PACKED_TEXTURE)
    assert filter_invalid_reprs((8, 8), tr.ANY_TEXTURE, (8, 2, 1)) == tr.HEIGHT_PACKED_TEXTURE


def test_filter_limits_are_inclusive() -> None:
    assert filter_invalid_reprs((2048, 16384, 4 * 16384), tr.WIDTH_PACKED_TEXTURE) == tr.WIDTH_PACKED_TEXTURE
    for shape in ((2049, 1, 1), (1, 16385, 1), (1, 1, 4 * 16384 + 1)):
        assert filter_invalid_reprs(shape, tr.WIDTH_PACKED_TEXTURE).is_empty()


def test_filter_keeps_buffers_only_above_rank_four() -> None:
    assert filter_invalid_reprs((1, 1, 2, 2, 2), tr.ANY_STORAGE_INCL_PACKED_INT8) == tr.ANY_BUFFER.make_union(
        tr.PACKED_INT8_BUFFER
    )


# Laws.

LAYOUTS = [layout for layout in Layout if layout is not Layout.DEFAULT]
sides = st.frozensets(st.sampled_from(LAYOUTS))
repsets = st.builds(TensorRepSet, sides, sides)
REPRS = [TensorRepr(storage, layout) for storage, layout in product((BUFFER, TEXTURE), LAYOUTS)]


@given(repsets, repsets, repsets)
def test_lattice_laws(a: TensorRepSet, b: TensorRepSet, c: TensorRepSet) -> None:
    for combine in (TensorRepSet.make_intersect, TensorRepSet.make_union):
        assert combine(a, b) == combine(b, a)
        assert combine(combine(a, b), c) == combine(a, combine(b, c))
        assert combine(a, a) == a
    assert a.make_union(a.make_intersect(b)) == a == a.make_intersect(a.make_union(b))
    assert a.make_intersect(b.make_union(c)) == a.make_intersect(b).make_union(a.make_intersect(c))
    assert a.make_intersect(NO_STORAGE) == NO_STORAGE
    assert a.make_union(NO_STORAGE) == a


@given(repsets, repsets)
def test_membership_decides_everything(a: TensorRepSet, b: TensorRepSet) -> None:
    in_a, in_b = ({r for r in REPRS if x.is_compatible(r)} for x in (a, b))
    assert set(a.reprs()) == in_a and len(a.reprs()) == len(in_a)
    assert set(a.make_intersect(b).reprs()) == in_a & in_b
    assert set(a.make_union(b).reprs()) == in_a | in_b
    assert a.any_in_common(b) == b.any_in_common(a) == bool(in_a & in_b)
    assert a.is_empty() == (not in_a)
    assert a.is_constrained() == (len(in_a) < 2) != a.is_ambiguous()
    assert (a == b) == (in_a == in_b)


@given(repsets)
def test_a_set_is_the_union_of_its_members(a: TensorRepSet) -> None:
    rebuilt = NO_STORAGE
    for member in a.reprs():
        rebuilt = rebuilt.make_union(make_tensor_repset(member))
    assert rebuilt == a


@given(repsets, st.randoms())
def test_choice_depends_on_the_members_alone(a: TensorRepSet, random: Random) -> None:
    buffers, textures = list(a.buffer_layouts), list(a.texture_layouts)
    random.shuffle(buffers)
    random.shuffle(textures)
    chosen = a.make_tensor_repr()
    assert TensorRepSet(buffers, textures).make_tensor_repr() == chosen
    assert str(TensorRepSet(buffers, textures)) == str(a)
    assert a.is_compatible(chosen) if not a.is_empty() else chosen == TensorRepr()
    assert not a.texture_layouts or chosen.storage_type is TEXTURE


@given(repsets, repsets)
def test_packed_dim_predicates(a: TensorRepSet, b: TensorRepSet) -> None:
    infos_a, infos_b = ({(r.storage_type, PackedDimInfo.from_repr(r)) for r in x.reprs()} for x in (a, b))
    assert a.has_compatible_packed_dim_info_set(b) == (infos_b <= infos_a)
    assert a.has_same_packed_dim_info_set(b) == (not infos_a or not infos_b or infos_a == infos_b)
    assert a.has_same_packed_dim_info_set(b) == b.has_same_packed_dim_info_set(a)


@given(repsets, repsets)
def test_constrain_keeps_exactly_the_compatible_members(a: TensorRepSet, b: TensorRepSet) -> None:
    kept = a.constrain_to_compatible_packed_dim(b)
    infos = {(r.storage_type, PackedDimInfo.from_repr(r)) for r in b.reprs()}
    wanted = [r for r in a.reprs() if b.is_empty() or (r.storage_type, PackedDimInfo.from_repr(r)) in infos]
    assert kept.reprs() == wanted
    assert kept.make_union(a) == a
    assert kept.constrain_to_compatible_packed_dim(b) == kept
    assert a.make_intersect(b).make_intersect(kept) == a.make_intersect(b)  # what is shared is never lost
    assert b.is_empty() or b.has_compatible_packed_dim_info_set(kept)
    assert a.filter_for_compatible_packed_dim_infos(b) == kept


@given(repsets, st.lists(st.integers(1, 40000), max_size=6).map(tuple))
def test_filter_only_removes_textures(a: TensorRepSet, shape: tuple[int, ...]) -> None:
    kept = filter_invalid_reprs(shape, a)
    assert kept.buffer_layouts == a.buffer_layouts and kept.texture_layouts <= a.texture_layouts
    assert filter_invalid_reprs(shape, kept) == kept
    assert filter_invalid_reprs(shape, a, (1, 1, 1)).texture_layouts <= kept.texture_layouts
