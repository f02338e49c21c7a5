"""The values that a calibrated module stores, and how they are read.

A value is read in one of four roles: by weighted sums; by products without weights of the network, which are products
of two activations and Fourier transforms; by operators that take steps, such as floor, argmax and indices; and by all
others. A value may be stored in 8 bits for one role and in more for another. An operator that moves elements reads as
many bits as the widest of its own readers.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.group_observer import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.calibrate.state_precision import states_of
from q8ta_wgpu.frontend.calibrate.watches import watches
from q8ta_wgpu.frontend.calibrate.zeroed import before_zeros
from q8ta_wgpu.frontend.nodes import is_attention, is_float, is_transform, kind, multiplies
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Monotonic, Moves, Product, Recurrent, WeightedSum
from q8ta_wgpu.quantization.stored import ROLES, WIDTHS, Role, Width

LIMITS = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1)}
"""The smallest and the largest step of a width."""


@dataclass(frozen=True)
class Reads:
    """How a value is read: in a role, or by an operator that moves its elements, in the roles of that one's readers."""

    roles: frozenset[Role]
    moves: bool = False


_SUMS = (WeightedSum, Recurrent, Product)
_KEEP_INFINITIES = (Elementwise, Arithmetic, Monotonic, Moves)


@dataclass(eq=False)
class Stored:
    """Values that one observer watches, so that they are stored at one scale: a value, and what its elements are moved
    to.

    Attributes:
        observer: the observer, with the range that calibration met.
        nodes: the observer's calls, in the order of the graph.
        users: for each call the nodes that read it, and how each reads it.
    """

    observer: Any
    nodes: list[Node] = field(default_factory=list)
    users: dict[Node, dict[Node, Reads]] = field(default_factory=dict)

    @property
    def width(self) -> Width:
        """The width in which the plan stores the values."""
        return "int16" if self.observer.quant_max > LIMITS["int8"][1] else "int8"

    @functools.cached_property
    def wide(self) -> Any:
        """An observer for 16 bits that met the same range."""
        spread = getattr(self.observer, "spread", None)  # other observers know none
        return scheme.wide(self.observer.min_val, self.observer.max_val, spread)

    def readers(self, role: Role) -> list[Node]:
        """The nodes that read the values in a role."""
        every = (item for users in self.users.values() for item in users.items())
        return list({user: None for user, reads in every if role in reads.roles and not reads.moves})

    def roles(self, node: Node) -> set[Role]:
        """The roles in which a call's value is read without being moved first."""
        return {role for reads in self.users[node].values() if not reads.moves for role in reads.roles}

    def value(self, node: Node) -> Node:
        """The value that a call of the observer watches."""
        (value,) = node.all_input_nodes
        return before_zeros(value)

    @property
    def has_zeros(self) -> bool:
        """Whether the observer met zeros for elements that a where leaves out."""
        return any(node.all_input_nodes[0] is not self.value(node) for node in self.nodes)

    def width_for(self, reads: Reads, chosen: Mapping[Role, Width]) -> Width:
        """The width in which a value is stored for a reader, if some roles have these widths: the largest of the widths
        of the reader's roles."""
        return max((chosen.get(role, self.width) for role in reads.roles), key=WIDTHS.index)


class Storage:
    """All values and weights that a prepared module stores, and their readers."""

    def __init__(self, observed: GraphModule) -> None:
        self.module = observed
        self.values: dict[Node, Stored] = {}
        self.weights: dict[Node, Any] = {}
        self.attention = [node for node in observed.graph.nodes if is_attention(node)]
        self._steps: dict[Node, bool] = {}
        self._asks: dict[Node, bool] = {}
        self._roles: dict[Node, Role] = {}
        by_observer: dict[int, Stored] = {}
        for node in observed.graph.nodes:
            if (observer := observer_of(observed, node)) is None:
                continue
            if hasattr(observer, "ch_axis") and observer.ch_axis >= 0:
                self.weights[node] = observer
                continue
            stored = self.values[node] = by_observer.setdefault(id(observer), Stored(observer))
            stored.nodes.append(node)
        self.stored = list(by_observer.values())
        states = [(self.values[w], w, r) for r, w in states_of(observed) if w in self.values]
        kept = {(written, end) for _, written, _ in states for end in written.users if end.op == "output"}
        for node in reversed(observed.graph.nodes):
            self._role(node)  # known from here on, so that no question about a node before goes far
            if node in self.values:
                readers = [user for user in _readers(node) if (node, user) not in kept]
                self.values[node].users[node] = {user: self._reads(node, user) for user in readers}
        for stored, written, read in states:  # a state is read in all roles in which the next call reads it as stored
            found = {
                role
                for call in read.users
                if call in stored.users
                for each in stored.users[call].values()
                for role in each.roles
            }
            ends = [end for node, end in kept if node is written]
            stored.users[written].update(dict.fromkeys(ends, Reads(frozenset(found or {"others"}), moves=bool(found))))

    def unrounded(self, node: Node, value: Tensor) -> dict[Reads, Tensor]:
        """A value as it is, for each way in which readers of this observer's call read it."""
        return dict.fromkeys(self.values[node].users[node].values(), value)

    def _reads(self, node: Node, user: Node) -> Reads:
        stored = self.values[node]
        results = [user, *(item for item in user.users if item.target is operator.getitem)]
        again = [reader for result in results for reader in _readers(result) if self.values.get(reader) is stored]
        if again and isinstance(kind(user), Moves | Monotonic):
            found = {role for reader in again for reads in stored.users[reader].values() for role in reads.roles}
            return Reads(frozenset(found or {"others"}), moves=True)
        return Reads(frozenset({self._role(user)}))

    def _role(self, user: Node) -> Role:
        steps, asks = self._steps_behind(user), self._asks_behind(user)
        if user not in self._roles:
            self._roles[user] = self._found_role(user, steps or asks)
        return self._roles[user]

    def _found_role(self, user: Node, steps: bool) -> Role:
        if is_transform(user) or (multiplies(user) and self.weights.keys().isdisjoint(user.all_input_nodes)):
            return "products"
        if sums_weights(user):
            return "sums"
        found = {"steps" if steps else "others"}
        found.update(self._role(reader) for reader in _readers(user) if reader not in self.values)
        return next(role for role in ROLES if role in found)

    def transforms(self, node: Node) -> bool:
        """Whether a call is a transform that reads nothing but a stored value and rounded weights."""
        return is_transform(node) and all(n in self.values or n in self.weights for n in node.all_input_nodes)

    def _asks_behind(self, node: Node) -> bool:
        if node not in self._asks:
            passes = node in self.values or isinstance(kind(node), _KEEP_INFINITIES)
            behind = passes and any(map(self._asks_behind, _readers(node)))
            self._asks[node] = behind or _asks_whether_finite(node)
        return self._asks[node]

    def looks_up(self, node: Node) -> bool:
        """Whether a call looks up rows of a table of 8 bits. Such a table may have 16 bits instead."""
        found = node.all_input_nodes if node.target is torch.ops.aten.embedding.default else []
        return bool(found) and not isinstance(self.weights.get(found[0]), PerChannelGroupObserver | None)

    def _steps_behind(self, node: Node) -> bool:
        """Whether a node takes steps, or a node behind it does, with no weighted sum or product between them."""
        if node not in self._steps:
            behind = takes_steps(node) or any(map(self._steps_behind, _readers(node)))
            self._steps[node] = behind and not isinstance(kind(node), _SUMS)
        return self._steps[node]


def sums_weights(node: Node) -> bool:
    """Whether a call is a sum with weights of the network, or a product, and no transform."""
    return isinstance(kind(node), _SUMS) and not is_transform(node)


def takes_steps(node: Node) -> bool:
    """Whether a call makes whole numbers from floats, such as floor, argmax or an index. A small change of a float may
    then change the result by one."""
    if node.op != "call_function" or not any(n.op == "call_module" or is_float(n) for n in node.all_input_nodes):
        return False
    if _compares_with_infinity(node):
        return False
    value, int8 = node.meta.get("val"), kind(node)
    if isinstance(value, Tensor):
        return not value.dtype.is_floating_point or (isinstance(int8, Elementwise) and int8.whole)
    places = [user for user in node.users if user.target is operator.getitem]
    return any(isinstance(v := user.meta.get("val"), Tensor) and not v.dtype.is_floating_point for user in places)


def _asks_whether_finite(node: Node) -> bool:
    """Whether a call asks which elements of inputs, or of functions of inputs alone, are infinite or NaN. No
    number of bits holds these. What layers compute is not meant: of infinities they make nothing that is of use."""
    if not _compares_with_infinity(node):
        return False
    for source in (waiting := [node]):
        if source.op == "call_function" and not isinstance(kind(source), _KEEP_INFINITIES):
            return False
        waiting += [each for each in source.all_input_nodes if each not in waiting]
    return any(source.op == "placeholder" and is_float(source) for source in waiting)


def _compares_with_infinity(node: Node) -> bool:
    """Whether a call compares a value with infinity or with itself, or asks for NaN. No small change of a number
    changes the answer."""
    if getattr(node.meta.get("val"), "dtype", None) != torch.bool:
        return False
    first, *others = node.args or (None,)
    compared = any(x is first or (isinstance(x, float) and math.isinf(x)) for x in others)
    return compared or node.target in (torch.ops.aten.isnan.default, torch.ops.aten.isinf.default)


def _readers(node: Node) -> Iterator[Node]:
    """The nodes that compute with a value, which watchers of the calibration do not."""
    return itertools.filterfalse(watches, node.users)
