"""The layout algebra: representation sets and lists.

Up to the properties, the tests say what the unit tests of ExecuTorch's Vulkan backend say of the same classes
(`test_vulkan_tensor_repr.py`), in our terms; `test_op_repsets.py` holds the rest of that file.
"""

import dataclasses
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
    StorageType,
    TensorRepr,
    TensorReprList,
    TensorRepSet,
    TensorRepSetList,
    filter_invalid_reprs,
    image_extents,
    make_tensor_repset,
)

BUFFER, TEXTURE = StorageType.BUFFER, StorageType.TEXTURE_3D
WIDTH, HEIGHT, CHANNELS = (
    Layout.TENSOR_WIDTH_PACKED,
    Layout.TENSOR_HEIGHT_PACKED,
    Layout.TENSOR_CHANNELS_PACKED,
)
L4W, L4C, L4C1W = Layout.PACKED_INT8_4W, Layout.PACKED_INT8_4C, Layout.PACKED_INT8_4C1W
L4W4C, L4H4W, CONV2D = Layout.PACKED_INT8_4W4C, Layout.PACKED_INT8_4H4W, Layout.PACKED_INT8_CONV2D


class TestTensorRepSet:
    def test_set_without_layouts_is_empty(self) -> None:
        assert TensorRepSet().is_empty()
        assert TensorRepSet(set(), set()).is_empty()

    def test_set_with_layouts_on_both_sides_is_not_empty(self) -> None:
        assert not TensorRepSet({WIDTH}, {CHANNELS}).is_empty()

    def test_texture_side_alone_is_not_empty(self) -> None:
        assert not TensorRepSet(set(), {WIDTH}).is_empty()

    def test_buffer_side_alone_is_not_empty(self) -> None:
        assert not TensorRepSet({WIDTH}, set()).is_empty()

    def test_equal_when_both_sides_are_equal(self) -> None:
        assert TensorRepSet({WIDTH, HEIGHT}, {CHANNELS}) == TensorRepSet([HEIGHT, WIDTH], [CHANNELS])
        assert hash(TensorRepSet({WIDTH, HEIGHT})) == hash(TensorRepSet([HEIGHT, WIDTH]))

    def test_unequal_when_a_side_differs(self) -> None:
        base = TensorRepSet({WIDTH}, {CHANNELS})
        assert base != TensorRepSet({WIDTH}, {HEIGHT})
        assert base != TensorRepSet({HEIGHT}, {CHANNELS})
        assert base != TensorRepSet({CHANNELS}, {WIDTH})

    def test_copy_is_equal(self) -> None:
        base = TensorRepSet({WIDTH, L4W4C}, {CHANNELS})
        assert base.copy() == base

    def test_copy_is_independent(self) -> None:
        source = {WIDTH}
        base = TensorRepSet(source)
        copy = base.copy()
        source.add(HEIGHT)
        assert base == copy == TensorRepSet({WIDTH})
        with pytest.raises(dataclasses.FrozenInstanceError):
            copy.buffer_layouts = frozenset()  # type: ignore[misc]

    def test_intersection_works_side_by_side(self) -> None:
        a = TensorRepSet({WIDTH, HEIGHT}, {WIDTH, CHANNELS})
        b = TensorRepSet({HEIGHT, CHANNELS}, {CHANNELS})
        assert a.make_intersect(b) == TensorRepSet({HEIGHT}, {CHANNELS})

    def test_intersection_of_disjoint_sets_is_empty(self) -> None:
        assert TensorRepSet({WIDTH}, {HEIGHT}).make_intersect(TensorRepSet({HEIGHT}, {WIDTH})).is_empty()

    def test_union_works_side_by_side(self) -> None:
        a, b = TensorRepSet({WIDTH}, {CHANNELS}), TensorRepSet({HEIGHT}, {CHANNELS, WIDTH})
        assert a.make_union(b) == TensorRepSet({WIDTH, HEIGHT}, {WIDTH, CHANNELS})

    def test_member_buffer_is_compatible(self) -> None:
        assert TensorRepSet({WIDTH}).is_compatible(TensorRepr(BUFFER, WIDTH))

    def test_missing_buffer_is_not_compatible(self) -> None:
        assert not TensorRepSet({WIDTH}, {HEIGHT}).is_compatible(TensorRepr(BUFFER, HEIGHT))

    def test_member_texture_is_compatible(self) -> None:
        assert TensorRepSet((), {CHANNELS}).is_compatible(TensorRepr(TEXTURE, CHANNELS))

    def test_missing_texture_is_not_compatible(self) -> None:
        assert not TensorRepSet({WIDTH}, {CHANNELS}).is_compatible(TensorRepr(TEXTURE, WIDTH))

    def test_something_in_common_on_one_side(self) -> None:
        assert TensorRepSet({WIDTH}, {CHANNELS}).any_in_common(TensorRepSet({HEIGHT}, {CHANNELS, WIDTH}))

    def test_nothing_in_common_across_sides(self) -> None:
        assert not TensorRepSet({WIDTH}).any_in_common(TensorRepSet((), {WIDTH}))

    def test_empty_set_is_constrained(self) -> None:
        assert NO_STORAGE.is_constrained() and not NO_STORAGE.is_ambiguous()

    def test_single_texture_is_constrained(self) -> None:
        assert TensorRepSet((), {WIDTH}).is_constrained()

    def test_single_buffer_is_constrained(self) -> None:
        assert TensorRepSet({L4C1W}).is_constrained()

    def test_several_layouts_are_ambiguous(self) -> None:
        assert TensorRepSet({WIDTH, HEIGHT}).is_ambiguous() and TensorRepSet((), {WIDTH, HEIGHT}).is_ambiguous()

    def test_one_layout_in_both_storages_is_ambiguous(self) -> None:
        assert TensorRepSet({WIDTH}, {WIDTH}).is_ambiguous()

    def test_texture_is_preferred(self) -> None:
        assert TensorRepSet({WIDTH}, {CHANNELS}).make_tensor_repr() == TensorRepr(TEXTURE, CHANNELS)

    def test_buffer_when_there_is_no_texture(self) -> None:
        assert TensorRepSet({HEIGHT}).make_tensor_repr() == TensorRepr(BUFFER, HEIGHT)

    def test_default_representation_of_the_empty_set(self) -> None:
        assert NO_STORAGE.make_tensor_repr() == TensorRepr(StorageType.DEFAULT, Layout.DEFAULT)

    def test_identical_sets_have_the_same_infos(self) -> None:
        assert tr.ANY_STORAGE.has_same_packed_dim_info_set(tr.ANY_STORAGE)

    def test_different_packed_dims_are_not_the_same(self) -> None:
        assert not tr.WIDTH_PACKED_TEXTURE.has_same_packed_dim_info_set(tr.CHANNELS_PACKED_TEXTURE)
        assert not TensorRepSet({L4W}).has_same_packed_dim_info_set(TensorRepSet({L4C}))

    def test_empty_set_agrees_with_every_set(self) -> None:
        for other in (NO_STORAGE, tr.ANY_STORAGE, tr.PACKED_INT8_4W_BUFFER):
            assert NO_STORAGE.has_same_packed_dim_info_set(other)
            assert other.has_same_packed_dim_info_set(NO_STORAGE)

    def test_4w4c_is_the_same_as_4c1w(self) -> None:
        assert tr.PACKED_INT8_4W4C_BUFFER.has_same_packed_dim_info_set(tr.PACKED_INT8_4C1W_BUFFER)
        assert tr.PACKED_INT8_CONV2D_BUFFER.has_same_packed_dim_info_set(tr.PACKED_INT8_4C_BUFFER)

    def test_all_int8_layouts_are_not_the_same_as_4c1w(self) -> None:
        assert not tr.PACKED_INT8_BUFFER.has_same_packed_dim_info_set(tr.PACKED_INT8_4C1W_BUFFER)

    def test_superset_of_infos_is_compatible(self) -> None:
        assert tr.ANY_TEXTURE.has_compatible_packed_dim_info_set(tr.WIDTH_PACKED_TEXTURE)

    def test_subset_of_infos_is_not_compatible(self) -> None:
        assert not tr.WIDTH_PACKED_TEXTURE.has_compatible_packed_dim_info_set(tr.ANY_TEXTURE)

    def test_disjoint_infos_are_not_compatible(self) -> None:
        assert not tr.WIDTH_PACKED_TEXTURE.has_compatible_packed_dim_info_set(tr.HEIGHT_PACKED_TEXTURE)

    def test_empty_set_is_included_in_every_set(self) -> None:
        assert tr.WIDTH_PACKED_TEXTURE.has_compatible_packed_dim_info_set(NO_STORAGE)
        assert not NO_STORAGE.has_compatible_packed_dim_info_set(tr.WIDTH_PACKED_TEXTURE)

    def test_compatibility_asks_for_both_sides(self) -> None:
        assert tr.ANY_STORAGE.has_compatible_packed_dim_info_set(tr.CONTIGUOUS_ANY)
        assert not tr.ANY_TEXTURE.has_compatible_packed_dim_info_set(tr.CONTIGUOUS_ANY)
        assert not tr.ANY_BUFFER.has_compatible_packed_dim_info_set(tr.CONTIGUOUS_ANY)

    def test_quantized_superset_is_compatible(self) -> None:
        assert tr.PACKED_INT8_BUFFER.has_compatible_packed_dim_info_set(tr.PACKED_INT8_CONV2D_BUFFER)
        assert not tr.PACKED_INT8_CONV2D_BUFFER.has_compatible_packed_dim_info_set(tr.PACKED_INT8_BUFFER)

    def test_float_and_quantized_are_not_compatible(self) -> None:
        # Channels-packed floats in a buffer have blocks of one, int8 blocks of four.
        assert not tr.CHANNELS_PACKED_ANY.has_compatible_packed_dim_info_set(tr.PACKED_INT8_4C1W_BUFFER)

    def test_constrain_keeps_the_layouts_with_the_same_info(self) -> None:
        kept = tr.PACKED_INT8_BUFFER.constrain_to_compatible_packed_dim(tr.PACKED_INT8_4C1W_BUFFER)
        assert kept == tr.PACKED_INT8_CHANNELS_PACKED_BUFFER

    def test_constrain_to_the_empty_set_keeps_all(self) -> None:
        assert tr.ANY_STORAGE.constrain_to_compatible_packed_dim(NO_STORAGE) == tr.ANY_STORAGE

    def test_constrain_buffers(self) -> None:
        kept = tr.ANY_BUFFER.constrain_to_compatible_packed_dim(tr.CONTIGUOUS_BUFFER)
        assert kept == tr.CONTIGUOUS_BUFFER

    def test_constrain_both_sides(self) -> None:
        other = tr.CHANNELS_PACKED_TEXTURE_OR_CONTIGUOUS_BUFFER
        assert tr.ANY_STORAGE.constrain_to_compatible_packed_dim(other) == other
        assert tr.ANY_STORAGE.constrain_to_compatible_packed_dim(tr.ANY_TEXTURE) == tr.ANY_TEXTURE

    def test_constrain_to_a_disjoint_set_leaves_nothing(self) -> None:
        assert tr.PACKED_INT8_4W_BUFFER.constrain_to_compatible_packed_dim(tr.PACKED_INT8_4C_BUFFER).is_empty()

    def test_constrain_leaves_both_operands_alone(self) -> None:
        own, other = TensorRepSet({L4W, L4W4C}), TensorRepSet({L4C1W})
        kept = own.filter_for_compatible_packed_dim_infos(other)
        assert kept == TensorRepSet({L4W4C}) == own.constrain_to_compatible_packed_dim(other)
        assert (own, other) == (TensorRepSet({L4W, L4W4C}), TensorRepSet({L4C1W}))

    def test_named_constants_have_upstreams_members(self) -> None:
        floats = {WIDTH, HEIGHT, CHANNELS}
        packed = {L4W4C, L4H4W, L4W, L4C1W, CONV2D}
        expected: dict[str, tuple[set[Layout], set[Layout]]] = {
            "NO_STORAGE": (set(), set()),
            "CONTIGUOUS_ANY": ({WIDTH}, {WIDTH}),
            "CONTIGUOUS_BUFFER": ({WIDTH}, set()),
            "WIDTH_PACKED_TEXTURE": (set(), {WIDTH}),
            "HEIGHT_PACKED_TEXTURE": (set(), {HEIGHT}),
            "CHANNELS_PACKED_TEXTURE": (set(), {CHANNELS}),
            "CHANNELS_PACKED_ANY": ({CHANNELS}, {CHANNELS}),
            "CHANNELS_PACKED_TEXTURE_OR_CONTIGUOUS_BUFFER": ({WIDTH}, {CHANNELS}),
            "ANY_TEXTURE": (set(), floats),
            "ANY_BUFFER": (floats, set()),
            "ANY_STORAGE": (floats, floats),
            "PACKED_INT8_BUFFER": (packed, set()),
            "PACKED_INT8_4W_BUFFER": ({L4W}, set()),
            "PACKED_INT8_4C_BUFFER": ({L4C}, set()),
            "PACKED_INT8_4C1W_BUFFER": ({L4C1W}, set()),
            "PACKED_INT8_4W4C_BUFFER": ({L4W4C}, set()),
            "PACKED_INT8_4H4W_BUFFER": ({L4H4W}, set()),
            "PACKED_INT8_CONV2D_BUFFER": ({CONV2D}, set()),
            "PACKED_INT8_CHANNELS_PACKED_BUFFER": ({L4W4C, L4C1W, CONV2D}, set()),
            "ANY_STORAGE_INCL_PACKED_INT8": (floats | packed, floats),
        }
        constants = {name: value for name, value in vars(tr).items() if isinstance(value, TensorRepSet)}
        assert constants == {name: TensorRepSet(*sides) for name, sides in expected.items()}

    def test_set_of_one_buffer(self) -> None:
        assert make_tensor_repset(TensorRepr(BUFFER, L4W4C)) == TensorRepSet({L4W4C})

    def test_set_of_one_texture(self) -> None:
        assert make_tensor_repset(TensorRepr(TEXTURE, CHANNELS)) == TensorRepSet((), {CHANNELS})


class TestTensorRepSetList:
    def test_single_element_answers_for_every_index(self) -> None:
        repsets = TensorRepSetList(tr.ANY_TEXTURE)
        assert len(repsets) == 1
        assert [repsets[i] for i in (0, 1, 7)] == [tr.ANY_TEXTURE] * 3

    def test_several_elements_are_indexed(self) -> None:
        repsets = TensorRepSetList([tr.ANY_TEXTURE, tr.ANY_BUFFER])
        assert (repsets[0], repsets[1]) == (tr.ANY_TEXTURE, tr.ANY_BUFFER)
        assert repsets[2] == NO_STORAGE  # past the end: nothing is asked

    def test_assignment_to_the_single_element(self) -> None:
        repsets = TensorRepSetList(tr.ANY_TEXTURE)
        repsets[0] = tr.ANY_BUFFER
        assert repsets[0] == tr.ANY_BUFFER

    def test_assignment_beyond_a_single_element_replaces_it(self) -> None:
        repsets = TensorRepSetList([tr.ANY_TEXTURE])
        repsets[3] = tr.ANY_BUFFER
        assert list(repsets) == [tr.ANY_BUFFER]

    def test_assignment_among_several(self) -> None:
        repsets = TensorRepSetList([tr.ANY_TEXTURE, tr.ANY_TEXTURE])
        repsets[1] = tr.ANY_BUFFER
        assert list(repsets) == [tr.ANY_TEXTURE, tr.ANY_BUFFER]
        with pytest.raises(IndexError):
            repsets[2] = tr.ANY_BUFFER

    def test_append(self) -> None:
        repsets = TensorRepSetList([])
        repsets.append(tr.ANY_TEXTURE)
        repsets.append(tr.ANY_BUFFER)
        assert repsets == TensorRepSetList([tr.ANY_TEXTURE, tr.ANY_BUFFER])

    def test_some_set_is_empty(self) -> None:
        assert TensorRepSetList([tr.ANY_TEXTURE, NO_STORAGE]).any_is_empty()

    def test_no_set_is_empty(self) -> None:
        assert not TensorRepSetList([tr.ANY_TEXTURE, tr.CONTIGUOUS_BUFFER]).any_is_empty()

    def test_empty_list_counts_as_empty(self) -> None:
        assert TensorRepSetList([]).any_is_empty()

    def test_str_names_every_member(self) -> None:
        text = str(TensorRepSetList([TensorRepSet({L4C1W, L4W}, {CHANNELS}), NO_STORAGE]))
        assert text == "[{TEXTURE_3D/CHANNELS_PACKED, BUFFER/4C1W, BUFFER/4W}, {}]"


class TestTensorReprList:
    A, B = TensorRepr(BUFFER, WIDTH), TensorRepr(TEXTURE, CHANNELS)

    def test_single_element_answers_for_every_index(self) -> None:
        reprs = TensorReprList(self.A)
        assert len(reprs) == 1
        assert [reprs[i] for i in (0, 1, 5)] == [self.A] * 3

    def test_several_elements_are_indexed(self) -> None:
        reprs = TensorReprList([self.A, self.B])
        assert (reprs[0], reprs[1]) == (self.A, self.B)
        with pytest.raises(IndexError):
            reprs[2]

    def test_assignment(self) -> None:
        several, single = TensorReprList([self.A, self.A]), TensorReprList(self.A)
        several[1] = single[4] = self.B
        assert list(several) == [self.A, self.B]
        assert list(single) == [self.B]

    def test_append(self) -> None:
        reprs = TensorReprList([self.A])
        reprs.append(self.B)
        assert (len(reprs), reprs[0], reprs[1]) == (2, self.A, self.B)

    def test_accessors(self) -> None:
        reprs = TensorReprList([self.A, self.B])
        assert (reprs.storage_type(), reprs.memory_layout()) == (BUFFER, WIDTH)
        assert (reprs.storage_type(1), reprs.memory_layout(1)) == (TEXTURE, CHANNELS)

    def test_equality_by_elements(self) -> None:
        assert TensorReprList([self.A, self.B]) == TensorReprList([self.A, self.B])
        assert TensorReprList([self.A, self.B]) != TensorReprList([self.B, self.A])

    def test_lists_of_unequal_length_differ(self) -> None:
        assert TensorReprList([self.A]) != TensorReprList([self.A, self.A])

    def test_str_names_every_member(self) -> None:
        assert str(TensorReprList([self.A, self.B])) == "[BUFFER/WIDTH_PACKED, TEXTURE_3D/CHANNELS_PACKED]"


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
