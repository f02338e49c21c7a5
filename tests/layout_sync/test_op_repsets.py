"""What the operands of one node may take together: the second half of upstream's tests, then properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import q8ta_wgpu.passes.layout_sync.tensor_repr as tr
from q8ta_wgpu.ir.layout import Layout, Shape
from q8ta_wgpu.passes.layout_sync.op_repsets import UNIVERSAL, NodeShapes, OpRepSets
from q8ta_wgpu.passes.layout_sync.tensor_repr import (
    NO_STORAGE,
    StorageType,
    TensorRepr,
    TensorRepSet,
    TensorRepSetList,
    make_tensor_repset,
)

BUFFER, TEXTURE = StorageType.BUFFER, StorageType.TEXTURE_3D
WIDTH, CHANNELS = Layout.TENSOR_WIDTH_PACKED, Layout.TENSOR_CHANNELS_PACKED
L4C1W, L4W4C, L4W = Layout.PACKED_INT8_4C1W, Layout.PACKED_INT8_4W4C, Layout.PACKED_INT8_4W
CONV2D = Layout.PACKED_INT8_CONV2D
SHAPE: Shape = (1, 8, 6, 5)

UNARY = NodeShapes(((SHAPE,),), (SHAPE,), "relu")
BINARY = NodeShapes(((SHAPE,), (SHAPE,)), (SHAPE,), "add")
SPLIT = NodeShapes(((SHAPE,), ()), (SHAPE, SHAPE), "split")

Repsets = TensorRepSet | list[TensorRepSet]


def make(node: NodeShapes, inputs: Repsets, outputs: Repsets) -> OpRepSets:
    return OpRepSets(TensorRepSetList(inputs), TensorRepSetList(outputs), node)


def sets(ops: OpRepSets) -> list[TensorRepSet]:
    return [*ops.args_repset_list, *ops.outs_repset_list]


class TestConstruction:
    def test_unary(self) -> None:
        ops = make(UNARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert (ops.get_arg_repset(0), ops.get_out_repset(0)) == (tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.sync_primary_io_repr and ops.primary_arg_idx == 0 and not ops.any_is_empty()

    def test_one_set_for_all_arguments_syncs_them(self) -> None:
        ops = make(BINARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.sync_args_repr and ops.sync_outs_repr and ops.sync_primary_io_repr
        assert sets(ops) == [tr.ANY_STORAGE] * 3

    def test_a_set_for_each_argument_does_not(self) -> None:
        ops = make(BINARY, [tr.CONTIGUOUS_ANY, tr.ANY_STORAGE], tr.ANY_STORAGE)
        assert not ops.sync_args_repr
        assert sets(ops) == [tr.CONTIGUOUS_ANY, tr.ANY_STORAGE, tr.ANY_STORAGE]

    def test_different_sets_do_not_sync_input_and_output(self) -> None:
        ops = make(UNARY, tr.CHANNELS_PACKED_TEXTURE, tr.WIDTH_PACKED_TEXTURE)
        assert not ops.sync_primary_io_repr and not ops.influences_output(0)
        assert sets(ops) == [tr.CHANNELS_PACKED_TEXTURE, tr.WIDTH_PACKED_TEXTURE]

    def test_scalar_argument_is_skipped(self) -> None:
        node = NodeShapes(((), (SHAPE,)), (SHAPE,))
        ops = make(node, tr.CONTIGUOUS_BUFFER, tr.CONTIGUOUS_BUFFER)
        assert ops.primary_arg_idx == 1 and ops.is_free(0) and not ops.is_free(1)
        assert sets(ops) == [UNIVERSAL, tr.CONTIGUOUS_BUFFER, tr.CONTIGUOUS_BUFFER]

    def test_rank_above_four_has_no_textures(self) -> None:
        deep = (2, 1, 3, 4, 5)
        ops = make(NodeShapes(((deep,),), (deep,)), tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert sets(ops) == [tr.ANY_BUFFER] * 2

    def test_getitem_reads_a_list_of_tensors(self) -> None:
        node = NodeShapes(((SHAPE, SHAPE), ()), (SHAPE,), "getitem")
        ops = make(node, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.primary_arg_idx == 0 and ops.sync_primary_io_repr
        assert ops.get_arg_repset(0) == ops.get_out_repset(0) == tr.ANY_STORAGE


class TestPick:
    def test_unary(self) -> None:
        args, outs = make(UNARY, tr.CHANNELS_PACKED_ANY, tr.CHANNELS_PACKED_ANY).pick_representations()
        assert list(args) == list(outs) == [TensorRepr(TEXTURE, CHANNELS)]

    def test_input_and_output_that_differ(self) -> None:
        args, outs = make(UNARY, tr.CHANNELS_PACKED_TEXTURE, tr.CONTIGUOUS_BUFFER).pick_representations()
        assert list(args) == [TensorRepr(TEXTURE, CHANNELS)]
        assert list(outs) == [TensorRepr(BUFFER, WIDTH)]

    def test_after_constraining(self) -> None:
        ops = make(BINARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.try_constrain_with_arg_repset(0, tr.CONTIGUOUS_BUFFER)
        args, outs = ops.pick_representations()
        assert [*args, *outs] == [TensorRepr(BUFFER, WIDTH)] * 3


class TestConstrain:
    def test_argument_is_narrowed(self) -> None:
        ops = make(UNARY, tr.ANY_STORAGE, tr.CONTIGUOUS_ANY)
        assert ops.try_constrain_with_arg_repset(0, tr.CHANNELS_PACKED_TEXTURE)
        assert sets(ops) == [tr.CHANNELS_PACKED_TEXTURE, tr.CONTIGUOUS_ANY]

    def test_nothing_in_common(self) -> None:
        ops = make(UNARY, tr.ANY_TEXTURE, tr.ANY_TEXTURE)
        assert not ops.try_constrain_with_arg_repset(0, tr.ANY_BUFFER)
        assert sets(ops) == [tr.ANY_TEXTURE] * 2

    def test_the_same_set(self) -> None:
        ops = make(UNARY, tr.ANY_TEXTURE, tr.ANY_TEXTURE)
        assert not ops.try_constrain_with_arg_repset(0, tr.ANY_TEXTURE)
        assert not ops.try_constrain_with_arg_repset(0, tr.ANY_STORAGE)  # ours: nor one that holds it
        assert sets(ops) == [tr.ANY_TEXTURE] * 2

    def test_narrowing_reaches_the_other_arguments(self) -> None:
        ops = make(BINARY, tr.ANY_STORAGE, tr.CONTIGUOUS_BUFFER)
        assert ops.try_constrain_with_arg_repset(1, tr.CHANNELS_PACKED_ANY)
        assert sets(ops) == [tr.CHANNELS_PACKED_ANY, tr.CHANNELS_PACKED_ANY, tr.CONTIGUOUS_BUFFER]

    def test_narrowing_reaches_the_output(self) -> None:
        ops = make(UNARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.try_constrain_with_arg_repset(0, tr.WIDTH_PACKED_TEXTURE)
        assert ops.get_out_repset(0) == tr.WIDTH_PACKED_TEXTURE

    def test_unsynced_output_is_narrowed_alone(self) -> None:
        ops = make(UNARY, tr.CONTIGUOUS_BUFFER, tr.ANY_STORAGE)
        assert ops.try_constrain_with_out_repset(tr.ANY_TEXTURE)
        assert sets(ops) == [tr.CONTIGUOUS_BUFFER, tr.ANY_TEXTURE]

    def test_synced_output_narrows_the_arguments(self) -> None:
        ops = make(BINARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
        assert ops.try_constrain_with_out_repset(tr.CHANNELS_PACKED_TEXTURE)
        assert sets(ops) == [tr.CHANNELS_PACKED_TEXTURE] * 3

    def test_outputs_with_their_own_sets_are_not_synced(self) -> None:
        ops = make(SPLIT, tr.CONTIGUOUS_ANY, [tr.ANY_STORAGE, tr.ANY_TEXTURE])
        assert not ops.sync_outs_repr
        assert ops.try_constrain_with_out_repset(tr.ANY_BUFFER)
        assert list(ops.outs_repset_list) == [tr.ANY_BUFFER, tr.ANY_TEXTURE]


class TestQuantizedBinary:
    ops: OpRepSets

    @pytest.fixture(autouse=True)
    def add(self) -> None:
        self.ops = make(BINARY, tr.PACKED_INT8_BUFFER, tr.PACKED_INT8_BUFFER)

    def test_inputs_in_different_layouts_with_one_packed_dim(self) -> None:
        assert self.ops.try_constrain_with_arg_repset(0, tr.PACKED_INT8_4W4C_BUFFER)
        assert self.ops.try_constrain_with_arg_repset(1, tr.PACKED_INT8_4C1W_BUFFER)
        assert self.ops.try_constrain_with_out_repset(tr.PACKED_INT8_4C1W_BUFFER)
        args, outs = self.ops.pick_representations()
        layouts = [chosen.memory_layout for chosen in (*args, *outs)]
        assert layouts == [L4W4C, L4C1W, L4C1W]

    def test_constrained_argument_keeps_the_group_channels_packed(self) -> None:
        assert self.ops.try_constrain_with_arg_repset(0, tr.PACKED_INT8_4W4C_BUFFER)
        others = [tr.PACKED_INT8_CHANNELS_PACKED_BUFFER] * 2
        assert sets(self.ops) == [tr.PACKED_INT8_4W4C_BUFFER, *others]

    def test_synced_arguments_with_another_output(self) -> None:
        ops = make(BINARY, tr.PACKED_INT8_BUFFER, tr.PACKED_INT8_4W_BUFFER)
        assert not ops.sync_primary_io_repr
        assert ops.try_constrain_with_arg_repset(1, tr.PACKED_INT8_CONV2D_BUFFER)
        assert ops.get_arg_repset(0) == tr.PACKED_INT8_CHANNELS_PACKED_BUFFER
        assert ops.get_out_repset(0) == tr.PACKED_INT8_4W_BUFFER

    def test_constrained_output_keeps_compatible_arguments(self) -> None:
        assert self.ops.try_constrain_with_arg_repset(1, tr.PACKED_INT8_4W4C_BUFFER)
        assert self.ops.try_constrain_with_out_repset(tr.PACKED_INT8_4C1W_BUFFER)
        assert sets(self.ops) == [
            tr.PACKED_INT8_CHANNELS_PACKED_BUFFER,
            tr.PACKED_INT8_4W4C_BUFFER,
            tr.PACKED_INT8_4C1W_BUFFER,
        ]

    def test_another_packed_dim_has_nothing_in_common(self) -> None:
        assert self.ops.try_constrain_with_arg_repset(0, tr.PACKED_INT8_4W_BUFFER)
        before = sets(self.ops)
        assert not self.ops.try_constrain_with_arg_repset(1, tr.PACKED_INT8_4C1W_BUFFER)
        assert not self.ops.try_constrain_with_out_repset(tr.PACKED_INT8_CHANNELS_PACKED_BUFFER)
        assert sets(self.ops) == before


# What upstream leaves open and we define.


def test_weights_are_free() -> None:
    node = NodeShapes(((SHAPE,), ((8, 72),), ()), (SHAPE,), "conv")
    ops = make(node, [tr.PACKED_INT8_CONV2D_BUFFER, NO_STORAGE], tr.PACKED_INT8_CHANNELS_PACKED_BUFFER)
    assert [ops.is_free(i) for i in range(3)] == [False, True, True]
    assert not ops.try_constrain_with_arg_repset(1, tr.CONTIGUOUS_BUFFER)
    args, outs = ops.pick_representations()
    assert list(args) == [TensorRepr(BUFFER, CONV2D), TensorRepr(), TensorRepr()]
    assert list(outs) == [TensorRepr(BUFFER, L4C1W)]


def test_an_argument_apart_from_the_output_is_narrowed_without_it() -> None:
    ops = make(BINARY, [tr.CONTIGUOUS_ANY, tr.ANY_STORAGE], tr.CONTIGUOUS_ANY)
    assert ops.influences_output(0) and not ops.influences_output(1)
    assert ops.try_constrain_with_arg_repset(1, tr.CHANNELS_PACKED_TEXTURE)
    assert sets(ops) == [tr.CONTIGUOUS_ANY, tr.CHANNELS_PACKED_TEXTURE, tr.CONTIGUOUS_ANY]


def test_any_output_can_be_constrained() -> None:
    ops = make(SPLIT, tr.ANY_STORAGE, tr.ANY_STORAGE)
    assert ops.try_constrain_with_out_repset(tr.CHANNELS_PACKED_ANY, 1)
    assert sets(ops) == [tr.CHANNELS_PACKED_ANY, UNIVERSAL, tr.CHANNELS_PACKED_ANY, tr.CHANNELS_PACKED_ANY]


def test_a_list_fits_when_each_of_its_tensors_does() -> None:
    cat = NodeShapes((((1, 8, 4, 4), (1, 9000, 4, 4)),), ((1, 9008, 4, 4),), "cat")
    ops = make(cat, tr.ANY_STORAGE, tr.CONTIGUOUS_BUFFER)
    assert ops.get_arg_repset(0) == tr.ANY_BUFFER  # the second has too many channels even for C-packed textures


def test_a_node_that_cannot_run() -> None:
    deep = (2, 1, 3, 4, 5)
    ops = make(NodeShapes(((deep,),), (deep,)), tr.ANY_TEXTURE, tr.ANY_TEXTURE)
    assert ops.any_is_empty()
    assert not ops.try_constrain_with_arg_repset(0, tr.ANY_STORAGE)


def test_nodes_without_arguments_or_outputs() -> None:
    arange = make(NodeShapes((), (SHAPE,)), [], tr.CONTIGUOUS_ANY)
    assert arange.primary_arg_idx is None and not arange.sync_primary_io_repr and not arange.any_is_empty()
    sink = make(NodeShapes(((SHAPE,),), ()), tr.ANY_BUFFER, tr.ANY_BUFFER)
    assert not sink.sync_primary_io_repr and list(sink.pick_representations()[1]) == []


def test_operands_that_do_not_exist() -> None:
    ops = make(UNARY, tr.ANY_STORAGE, tr.ANY_STORAGE)
    with pytest.raises(IndexError, match=r"relu has 1 args, found arg 1"):
        ops.get_arg_repset(1)
    with pytest.raises(IndexError, match=r"relu has 1 outs, found out 2"):
        ops.try_constrain_with_out_repset(tr.ANY_BUFFER, 2)


# Properties of every node and every sequence of constraints.

LAYOUTS = [layout for layout in Layout if layout is not Layout.DEFAULT]
registered = st.sampled_from(
    [
        NO_STORAGE,
        tr.ANY_STORAGE,
        tr.CONTIGUOUS_ANY,
        tr.CHANNELS_PACKED_TEXTURE_OR_CONTIGUOUS_BUFFER,
        tr.PACKED_INT8_BUFFER,
        tr.PACKED_INT8_CHANNELS_PACKED_BUFFER,
        tr.ANY_STORAGE_INCL_PACKED_INT8,
    ]
)
sides = st.frozensets(st.sampled_from(LAYOUTS))
repsets = st.builds(TensorRepSet, sides, sides) | registered
shapes = st.sampled_from([SHAPE, (3,), (5, 20000), (1, 9000, 2, 2), (2, 1, 3, 4, 5)])
nodes = st.builds(
    NodeShapes,
    st.lists(st.lists(shapes, max_size=3).map(tuple), max_size=4).map(tuple),
    st.lists(shapes, max_size=3).map(tuple),
)
steps = st.lists(st.tuples(st.integers(0, 6), repsets), max_size=6)


@given(nodes, st.lists(registered, max_size=4), st.lists(registered, max_size=3), steps)
def test_synced_operands_stay_in_agreement(
    node: NodeShapes,
    inputs: list[TensorRepSet],
    outputs: list[TensorRepSet],
    constraints: list[tuple[int, TensorRepSet]],
) -> None:
    ops = make(node, inputs, outputs)
    cannot_run = ops.any_is_empty()
    count = len(node.args)
    for place, source in constraints:
        if place >= count + len(node.outs):
            continue
        before = sets(ops)
        if place < count:
            narrowed = ops.try_constrain_with_arg_repset(place, source)
        else:
            narrowed = ops.try_constrain_with_out_repset(source, place - count)
        after = sets(ops)
        assert narrowed == (after[place] != before[place])
        assert narrowed or after == before
        assert not narrowed or after[place] == before[place].make_intersect(source)
        assert all(new.make_union(old) == old for new, old in zip(after, before, strict=True))
    assert ops.any_is_empty() == cannot_run  # constraining never leaves an operand without a representation
    check_agreement(ops, inputs, outputs)


def check_agreement(ops: OpRepSets, inputs: list[TensorRepSet], outputs: list[TensorRepSet]) -> None:
    """Every synced pair has one set of infos, every operand's choice was registered for it."""
    args = [ops.get_arg_repset(i) for i in range(len(ops.node.args)) if not ops.is_free(i)]
    asked_outs = [i for i in range(len(ops.node.outs)) if not TensorRepSetList(outputs)[i].is_empty()]
    outs = [ops.get_out_repset(i) for i in asked_outs]
    groups = ([args] if ops.sync_args_repr else []) + ([outs] if ops.sync_outs_repr else [])
    if ops.sync_primary_io_repr:
        assert ops.primary_arg_idx is not None
        groups.append([ops.get_arg_repset(ops.primary_arg_idx), ops.get_out_repset(0)])
    for group in groups:
        for a in group:
            assert all(a.has_same_packed_dim_info_set(b) and a.is_empty() == b.is_empty() for b in group)
    picked_args, picked_outs = ops.pick_representations()
    for i, chosen in enumerate(picked_args):
        assert chosen == TensorRepr() or TensorRepSetList(inputs)[i].is_compatible(chosen)
        assert not ops.is_free(i) or chosen == TensorRepr()
    for i, chosen in enumerate(picked_outs):
        assert chosen == TensorRepr() or TensorRepSetList(outputs)[i].is_compatible(chosen)


@given(nodes, registered, repsets)
def test_order_of_equal_operands_does_not_matter(node: NodeShapes, repset: TensorRepSet, source: TensorRepSet) -> None:
    mirrored = NodeShapes(node.args[::-1], node.outs)
    ops, mirror = make(node, repset, repset), make(mirrored, repset, repset)
    last = len(node.args) - 1
    for i in range(len(node.args)):
        assert ops.get_arg_repset(i) == mirror.get_arg_repset(last - i)
    if node.args:
        assert ops.try_constrain_with_arg_repset(0, source) == mirror.try_constrain_with_arg_repset(last, source)
        assert list(ops.args_repset_list) == list(mirror.args_repset_list)[::-1]
        assert list(ops.outs_repset_list) == list(mirror.outs_repset_list)


@given(nodes, registered, st.sampled_from(LAYOUTS))
def test_a_layout_of_the_primary_argument_is_honoured(node: NodeShapes, repset: TensorRepSet, layout: Layout) -> None:
    ops = make(node, repset, repset)
    wanted = TensorRepr(BUFFER, layout)
    primary = ops.primary_arg_idx
    if primary is not None and ops.get_arg_repset(primary).is_compatible(wanted):
        ops.try_constrain_with_arg_repset(primary, make_tensor_repset(wanted))
        assert ops.pick_representations()[0][primary] == wanted
