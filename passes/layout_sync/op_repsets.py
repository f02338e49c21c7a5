"""Which representations the arguments and outputs of one operator may have together.

`OpRepSets` follows ExecuTorch Vulkan's class of that name. It reads only the shapes of a node (`NodeShapes`), so that
it works for any graph. Where upstream's behaviour is accidental, ours is defined:

* Synced operands form groups: all arguments, all outputs, or both together if the primary argument and output 0 are
  synced. The members of a group start from one set and always have equal sets of packed-dim infos. Upstream states
  these rules case by case and then asserts this.
* An argument that is no tensor, or is registered with NO_STORAGE, is free: it is in no group, never narrowed, and
  DEFAULT/DEFAULT when representations are picked (upstream picks the first member of its universal set).
* `try_constrain_with_...` returns whether a set became narrower (upstream also returns True for a source that contains
  more than the current set, but False for one equal to it). Infos of output 0 constrain only arguments that influence
  output 0.
* Any output can be constrained, not only output 0.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import reduce

from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.passes.layout_sync.tensor_repr import (
    ANY_STORAGE_INCL_PACKED_INT8,
    PACKED_INT8_4C_BUFFER,
    TensorRepr,
    TensorReprList,
    TensorRepSet,
    TensorRepSetList,
    filter_invalid_reprs,
)

# The set of a free operand: all representations. Upstream's universal set lacks 4C.
UNIVERSAL = ANY_STORAGE_INCL_PACKED_INT8.make_union(PACKED_INT8_4C_BUFFER)

Slot = tuple[str, int]  # ("arg", index) or ("out", index)


@dataclass(frozen=True)
class NodeShapes:
    """The shapes of a node's operands.

    Attributes:
        args: for each argument the shapes of its tensors: none for a scalar, one for a tensor, several for a list.
        outs: the shape of each output.
        name: for messages.
    """

    args: tuple[tuple[Shape, ...], ...]
    outs: tuple[Shape, ...]
    name: str = "node"


class OpRepSets:
    """The representation sets of one node's operands. Synced operands stay in agreement while sets are narrowed.

    Attributes:
        sync_args_repr, sync_outs_repr: one set was registered for all arguments (outputs), so they must agree.
        primary_arg_idx: the first tensor argument that is not free, or None.
        sync_primary_io_repr: the primary argument and output 0 were registered with equal sets, so they must agree.

    To agree means to have the same packed-dim infos, not the same layout: add(4W4C, 4C1W) -> 4C1W is allowed.
    """

    def __init__(
        self,
        inputs: TensorRepSetList,
        outputs: TensorRepSetList,
        node: NodeShapes,
    ) -> None:
        self.node = node
        self.sync_args_repr = len(inputs) <= 1
        self.sync_outs_repr = len(outputs) <= 1
        self.primary_arg_idx = next(
            (i for i, shapes in enumerate(node.args) if shapes and not inputs[i].is_empty()), None
        )
        self.sync_primary_io_repr = (
            self.primary_arg_idx is not None and bool(node.outs) and inputs[self.primary_arg_idx] == outputs[0]
        )
        shapes: dict[Slot, tuple[Shape, ...]] = {("arg", i): tensors for i, tensors in enumerate(node.args)}
        shapes |= {("out", i): (shape,) for i, shape in enumerate(node.outs)}
        self._sets: dict[Slot, TensorRepSet] = dict.fromkeys(shapes, UNIVERSAL)
        self._groups: dict[Slot, list[Slot]] = {}
        registered = {slot: (inputs if slot[0] == "arg" else outputs)[slot[1]] for slot in shapes}
        constrained = [slot for slot in shapes if shapes[slot] and not registered[slot].is_empty()]
        for group in self._make_groups(constrained):
            filtered = [filter_invalid_reprs(shape, registered[slot]) for slot in group for shape in shapes[slot]]
            common = reduce(TensorRepSet.make_intersect, filtered)
            for slot in group:
                self._sets[slot] = common
                self._groups[slot] = group

    def copy(self) -> OpRepSets:
        """The same sets, to be narrowed independently."""
        other = copy.copy(self)
        other._sets = dict(self._sets)
        return other

    def _make_groups(self, constrained: list[Slot]) -> list[list[Slot]]:
        """Operands that must agree, as groups."""
        groups: list[list[Slot]] = []
        for kind, synced in (("arg", self.sync_args_repr), ("out", self.sync_outs_repr)):
            slots = [slot for slot in constrained if slot[0] == kind]
            groups += [slots] if synced and slots else [[slot] for slot in slots]
        if not self.sync_primary_io_repr:
            return groups
        primary, out = (next(g for g in groups if slot in g) for slot in (("arg", self.primary_arg_idx), ("out", 0)))
        return [primary + out, *(group for group in groups if group not in (primary, out))]

    @property
    def args_repset_list(self) -> TensorRepSetList:
        """The current sets of the arguments (the universal set for free ones)."""
        return TensorRepSetList([self.get_arg_repset(i) for i in range(len(self.node.args))])

    @property
    def outs_repset_list(self) -> TensorRepSetList:
        """The current sets of the outputs."""
        return TensorRepSetList([self.get_out_repset(i) for i in range(len(self.node.outs))])

    def get_arg_repset(self, index: int) -> TensorRepSet:
        """The current set of argument `index`."""
        return self._sets[self._slot("arg", index)]

    def get_out_repset(self, index: int = 0) -> TensorRepSet:
        """The current set of output `index`."""
        return self._sets[self._slot("out", index)]

    def is_free(self, index: int) -> bool:
        """Whether argument `index` is unconstrained: no tensor, or registered with NO_STORAGE."""
        return self._slot("arg", index) not in self._groups

    def influences_output(self, index: int) -> bool:
        """Whether narrowing argument `index` can narrow output 0."""
        return ("out", 0) in self._groups.get(self._slot("arg", index), ())

    def any_is_empty(self) -> bool:
        """Whether some operand has no representation left: the node cannot run as registered."""
        return any(repset.is_empty() for repset in self._sets.values())

    def try_constrain_with_arg_repset(self, index: int, source: TensorRepSet) -> bool:
        """Narrows argument `index` to `source`, and operands synced with it to the infos that remain.

        Returns whether the set became narrower. If it has nothing in common with `source`, all sets stay.
        """
        return self._try_constrain(self._slot("arg", index), source)

    def try_constrain_with_out_repset(self, required: TensorRepSet, index: int = 0) -> bool:
        """Narrows output `index` to `required`: see `try_constrain_with_arg_repset`."""
        return self._try_constrain(self._slot("out", index), required)

    def _try_constrain(self, slot: Slot, source: TensorRepSet) -> bool:
        group = self._groups.get(slot)
        narrowed = self._sets[slot].make_intersect(source)
        if group is None or narrowed.is_empty() or narrowed == self._sets[slot]:
            return False
        for other in group:
            self._sets[other] = self._sets[other].constrain_to_compatible_packed_dim(narrowed)
        self._sets[slot] = narrowed
        return True

    def pick_representations(self) -> tuple[TensorReprList, TensorReprList]:
        """The most preferred representation of each argument and of each output; DEFAULT/DEFAULT if free."""
        args, outs = (
            TensorReprList(
                [
                    self._sets[slot].make_tensor_repr() if slot in self._groups else TensorRepr()
                    for slot in self._sets
                    if slot[0] == kind
                ]
            )
            for kind in ("arg", "out")
        )
        return args, outs

    def _slot(self, kind: str, index: int) -> Slot:
        if (kind, index) not in self._sets:
            count = len(self.node.args if kind == "arg" else self.node.outs)
            raise IndexError(f"{self.node.name} has {count} {kind}s, found {kind} {index}: count from 0")
        return kind, index

    def __str__(self) -> str:
        args, outs = self.args_repset_list, self.outs_repset_list
        return f"{self.node.name}({', '.join(map(str, args))}) -> {', '.join(map(str, outs))}"
