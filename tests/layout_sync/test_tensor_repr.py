"""The layout algebra: representation sets and lists.

The tests say what the unit tests of ExecuTorch's Vulkan backend say of the same classes (`test_vulkan_tensor_repr.py`),
in our terms; `test_op_repsets.py` holds the rest of that file, `test_tensor_repr_laws.py` what is ours alone.
"""

import dataclasses

import pytest

import q8ta_wgpu.passes.layout_sync.tensor_repr as tr
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.passes.layout_sync.tensor_repr import (
    NO_STORAGE,
    StorageType,
    TensorRepr,
    TensorReprList,
    TensorRepSet,
    TensorRepSetList,
    make_tensor_repset,
)
from tests.layout_names import BUFFER, CHANNELS, CONV2D, HEIGHT, L4C, L4C1W, L4H4W, L4W, L4W4C, TEXTURE, WIDTH


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
