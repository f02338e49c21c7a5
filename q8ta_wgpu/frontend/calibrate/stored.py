"""The values that a calibrated module stores, by how they are read.

A value is read in roles: by weighted sums, by products without weights (of activations, and Fourier transforms), by
what takes steps (floor, argmax, an index) and by all others. It may be stored in 8 bits for one and in more for
another. What moves elements passes on what the widest of its readers needs.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.groups import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.calibrate.states import states_of
from q8ta_wgpu.frontend.calibrate.watches import watches
from q8ta_wgpu.frontend.nodes import is_attention, is_float, is_transform, kind, multiplies
from q8ta_wgpu.ir.int8 import Elementwise, Monotonic, Moves, Product, Recurrent, WeightedSum

Role = Literal["sums", "products", "steps", "others"]
ROLES: tuple[Role, ...] = ("sums", "products", "steps", "others")
"""The first one of what reads a value before it is stored again counts."""

Width = Literal["int8", "int16", "float32"]
WIDTHS: tuple[Width, ...] = ("int8", "int16", "float32")
LIMITS = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1)}
"""The smallest and the largest step of a width."""


@dataclass(frozen=True)
class Reads:
    """How a value is read: in a role, or by what moves its elements, in all roles of what reads them then."""

    roles: frozenset[Role]
    moves: bool = False


_SUMS = (WeightedSum, Recurrent, Product)


@dataclass(eq=False)
class Stored:
    """Values that are stored alike, since one observer watches them: a value, and what moves its elements.

    Attributes:
        observer: with the range that calibration met.
        nodes: its calls, in order.
        users: of each call, what reads it, and how.
    """

    observer: Any
    nodes: list[Node] = field(default_factory=list)
    users: dict[Node, dict[Node, Reads]] = field(default_factory=dict)

    @property
    def width(self) -> Width:
        """How the plan stores them."""
        return "int16" if self.observer.quant_max > LIMITS["int8"][1] else "int8"

    @functools.cached_property
    def wide(self) -> Any:
        """An observer for 16 bits that met the same range."""
        return scheme.wide(self.observer.min_val, self.observer.max_val)

    def readers(self, role: Role) -> list[Node]:
        """What reads the values in a role."""
        every = (item for users in self.users.values() for item in users.items())
        return list({user: None for user, reads in every if role in reads.roles and not reads.moves})

    def roles(self, node: Node) -> set[Role]:
        """The roles in which a call's value is read where it is."""
        return {role for reads in self.users[node].values() if not reads.moves for role in reads.roles}

    def value(self, node: Node) -> Node:
        """What a call watches."""
        (value,) = node.all_input_nodes
        return value

    def width_for(self, reads: Reads, chosen: Mapping[Role, Width]) -> Width:
        """How a value is stored for a reader where these roles have widths of their own: the widest counts."""
        return max((chosen.get(role, self.width) for role in reads.roles), key=WIDTHS.index)


class Storage:
    """What a prepared module stores, and who reads it."""

    def __init__(self, observed: GraphModule) -> None:
        self.module = observed
        self.values: dict[Node, Stored] = {}
        self.weights: dict[Node, Any] = {}
        self.attention = [node for node in observed.graph.nodes if is_attention(node)]
        self._steps: dict[Node, bool] = {}
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

    def _reads(self, node: Node, user: Node) -> Reads:
        stored = self.values[node]
        results = [user, *(item for item in user.users if item.target is operator.getitem)]
        again = [reader for result in results for reader in _readers(result) if self.values.get(reader) is stored]
        if again and isinstance(kind(user), Moves | Monotonic):
            found = {role for reader in again for reads in stored.users[reader].values() for role in reads.roles}
            return Reads(frozenset(found or {"others"}), moves=True)
        return Reads(frozenset({self._role(user)}))

    def _role(self, user: Node) -> Role:
        if is_transform(user) or (multiplies(user) and self.weights.keys().isdisjoint(user.all_input_nodes)):
            return "products"
        if sums_weights(user):
            return "sums"
        found = {"steps" if self._steps_behind(user) else "others"}
        found.update(self._role(reader) for reader in _readers(user) if reader not in self.values)
        return next(role for role in ROLES if role in found)

    def transforms(self, node: Node) -> bool:
        """Whether a call is a transform of a stored value by rounded weights, and reads nothing else."""
        return is_transform(node) and all(n in self.values or n in self.weights for n in node.all_input_nodes)

    def looks_up(self, node: Node) -> bool:
        """Whether a call takes rows of a table of 8 bits, which may have 16."""
        found = node.all_input_nodes if node.target is torch.ops.aten.embedding.default else []
        return bool(found) and not isinstance(self.weights.get(found[0]), PerChannelGroupObserver | None)

    def _steps_behind(self, node: Node) -> bool:
        """Whether a node takes steps, or something that does reads it with no weighted sum or product between."""
        if node not in self._steps:
            behind = takes_steps(node) or any(map(self._steps_behind, _readers(node)))
            self._steps[node] = behind and not isinstance(kind(node), _SUMS)
        return self._steps[node]


def sums_weights(node: Node) -> bool:
    """Whether a call is a sum with weights of the network, or a product, and no transform."""
    return isinstance(kind(node), _SUMS) and not is_transform(node)


def takes_steps(node: Node) -> bool:
    """Whether a call makes whole numbers of floats (floor, argmax, an index): a small change of the float may change
    the result by one."""
    if node.op != "call_function" or not any(n.op == "call_module" or is_float(n) for n in node.all_input_nodes):
        return False
    value, int8 = node.meta.get("val"), kind(node)
    if isinstance(value, Tensor):
        return not value.dtype.is_floating_point or (isinstance(int8, Elementwise) and int8.whole)
    places = [user for user in node.users if user.target is operator.getitem]
    return any(isinstance(v := user.meta.get("val"), Tensor) and not v.dtype.is_floating_point for user in places)


def _readers(node: Node) -> Iterator[Node]:
    """What computes with a value; watchers of calibration do not."""
    return itertools.filterfalse(watches, node.users)
