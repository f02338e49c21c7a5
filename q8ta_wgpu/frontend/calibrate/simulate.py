"""Runs a calibrated module with some of its values rounded, to see what their rounding does to its outputs.

A value is read in roles: by weighted sums, by products without weights (of activations, and Fourier transforms), by
what takes steps (floor, argmax, an index) and by all others. It may be stored in 8 bits for one and in more for
another. What moves elements passes on what the widest of its readers needs.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate import scheme
from q8ta_wgpu.frontend.calibrate.groups import PerChannelGroupObserver
from q8ta_wgpu.frontend.calibrate.heads import InParts
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver, observer_of
from q8ta_wgpu.frontend.calibrate.states import states_of
from q8ta_wgpu.frontend.calibrate.watches import watches
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.frontend.nodes import CONVERSIONS, is_attention, is_float, is_transform, kind, multiplies
from q8ta_wgpu.ir.int8 import Elementwise, Monotonic, Moves, Product, Recurrent, WeightedSum

Role = Literal["sums", "products", "steps", "others"]
ROLES: tuple[Role, ...] = ("sums", "products", "steps", "others")
"""The first one of what reads a value before it is stored again counts."""

Width = Literal["int8", "int16", "float32"]
WIDTHS: tuple[Width, ...] = ("int8", "int16", "float32")


@dataclass(frozen=True)
class Reads:
    """How a value is read: in a role, or by what moves its elements, in all roles of what reads them then."""

    roles: frozenset[Role]
    moves: bool = False


_SUMS = (WeightedSum, Recurrent, Product)

_FEW = 1000
"""Numbers of an output below which one that is far off may make most of the noise."""

_LIMITS = {"int8": (-128, 127), "int16": (-(2**15), 2**15 - 1)}


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
        return "int16" if self.observer.quant_max > _LIMITS["int8"][1] else "int8"

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


def _is_amount(node: Any) -> bool:
    """Whether whole numbers are floats that were rounded or cut, moved or not, and no places, labels or counts."""
    while isinstance(node, Node) and node.op == "call_function" and not is_float(node):
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if str(node.target) in CONVERSIONS and source is not None and (source.op == "call_module" or is_float(source)):
            return True
        node = source if isinstance(kind(node), Moves) else None
    return False


def _readers(node: Node) -> Iterator[Node]:
    """What computes with a value; watchers of calibration do not."""
    return itertools.filterfalse(watches, node.users)


Views = Mapping[Reads, Tensor]


class Run(InParts):
    """Runs a prepared module on its observers' values as `views` gives them to each role.

    Args:
        storage: of the module.
        views: (observer's call, value) -> what is read, by how it is read.
        weight: (observer's call, weight, what reads it) -> the weight that is computed with.
        shares: (softmax of an attention, its result) -> what is computed with.
        rows: (embedding, its result, the indices) -> what is computed with; as it is where None.
    """

    def __init__(
        self,
        storage: Storage,
        views: Callable[[Node, Tensor], Views],
        weight: Callable[[Node, Tensor, Node], Tensor],
        shares: Callable[[Node, Tensor], Tensor],
        rows: Callable[[Node, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(storage.module)
        self.storage, self._views, self._weight, self._shares, self._rows = storage, views, weight, shares, rows

    def run_node(self, n: Node) -> Any:
        """An observer gives what each reader reads, a watcher nothing."""
        if n in self.storage.values or n in self.storage.weights:
            (value,) = self.fetch_args_kwargs_from_env(n)[0]
            return self._views(n, value) if n in self.storage.values else value
        if n.op == "call_module":
            return None
        return super().run_node(n)

    def finished(self, n: Node, result: Any) -> Any:
        """The shares of an attention and rows of a table as they are computed with, and parameters without
        gradients."""
        if n.op == "get_attr":
            return result.detach()
        if self._rows is not None and self.storage.looks_up(n):
            return self._rows(n, result, self.env[n.all_input_nodes[1]])
        return self._shares(n, result) if n in self.storage.attention else result

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """Arguments as a node's role reads them."""
        return torch.fx.node.map_arg(args, lambda source: self._read(source, n))

    def _read(self, source: Node, reader: Node) -> Any:
        value = self.env[source]
        if source in self.storage.weights:
            return self._weight(source, value, reader)
        if source not in self.storage.values:
            return value
        return value[self.storage.values[source].users[source][reader]]

    def call(self, item: Sequence[Tensor], known: dict[Node, Any] | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors that the module gives for one item of the calibration, and its states after it. Amounts, as bytes
        of images, as floats: how far they are off counts, not how many are. Nodes that are `known` are not run, and the
        values of all others are added there."""
        self.garbage_collect_values = known is None
        (end,) = self.storage.module.graph.find_nodes(op="output")
        found = pytree.tree_leaves(self.run(*item, initial_env=known))
        pairs = [(x, n) for x, n in zip(found, pytree.tree_leaves(end.args[0]), strict=True) if isinstance(x, Tensor)]
        count = len(pairs) - len(states_of(self.storage.module))
        outputs = [x.float() if _is_amount(node) else x for x, node in pairs[:count]]
        return outputs, [x for x, _ in pairs[count:]]


class Kept:
    """The values of the last run of each kind, so that the next one computes none before the first that is rounded in
    another way.

    Args:
        storage: of the module that is run.
        kinds: how many kinds of runs there are, as for different items.
        most: bytes up to which values are kept; where they take more, none are.

    Attributes:
        values: of the last runs, by kind: None where none are kept.
    """

    def __init__(self, storage: Storage, kinds: int, most: int) -> None:
        self._places = {node: place for place, node in enumerate(storage.module.graph.nodes)}
        size = sum(size_of(n) for n in self._places if n.op == "call_function" or n in storage.values)
        keeps = 4 * size * kinds <= most and not any(map(_writes, self._places))
        self.values: list[dict[Node, Any] | None] = [{} if keeps else None for _ in range(kinds)]
        self._chosen: Mapping[tuple[Stored | Node, Role], Width] = {}

    def forget(self, chosen: Mapping[tuple[Stored | Node, Role], Width]) -> None:
        """Forgets what may change by this choice, which the next runs will make."""
        changed = (stored for (stored, _), _ in chosen.items() ^ self._chosen.items())
        first = min((self._places[s if isinstance(s, Node) else s.nodes[0]] for s in changed), default=0)
        self._chosen = chosen
        for values in filter(None, self.values):
            for node in [n for n in values if self._places[n] >= first and n.op != "placeholder"]:
                del values[node]


def _writes(node: Node) -> bool:
    """Whether a call writes into what it is given."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def known_scales(observed: GraphModule) -> dict[tuple[str, bool], tuple[float, int]]:
    """Scale and zero point that each observer of a whole tensor has met so far, by the target of its calls and whether
    it clips."""
    found: dict[tuple[str, bool], tuple[float, int]] = {}
    observer: Any
    for name, observer in observed.named_children():
        if hasattr(observer, "calculate_qparams") and getattr(observer, "ch_axis", -1) < 0:
            for clips in (False, True) if isinstance(observer, RangeObserver) else (True,):
                observer.clips = clips
                scale, zero = observer.calculate_qparams()
                found[name, clips] = float(scale), int(zero)
    return found


class Rounder:
    """Rounds values as observers ask, each observer asked once.

    Args:
        known: scales and zero points that count instead of what an observer has now, as of `known_scales`.
        weights: rounded ones, which rounders may share.
        whole: values whose ranges clip nothing.

    Attributes:
        whole: the same.
    """

    def __init__(
        self,
        known: Mapping[tuple[str, bool], tuple[float, int]],
        weights: dict[Node, tuple[Tensor, Tensor]],
        whole: frozenset[Stored] = frozenset(),
    ) -> None:
        self._known, self.whole = known, whole
        self._found: dict[tuple[Stored, Width], tuple[float, int]] = {}
        self._weights = weights

    def scale(self, stored: Stored, width: Width) -> tuple[float, int]:
        """Scale and zero point of values at a width."""
        if (stored, width) not in self._found:
            met = str(stored.nodes[0].target), self.let_clip(stored)
            if width == stored.width and met in self._known:
                self._found[stored, width] = self._known[met]
            else:
                scale, zero = (stored.observer if width == stored.width else stored.wide).calculate_qparams()
                self._found[stored, width] = float(scale), int(zero)
        return self._found[stored, width]

    def let_clip(self, stored: Stored) -> bool:
        """Lets the range of a value clip, or not; returns whether it may."""
        if not isinstance(stored.observer, RangeObserver):
            return True
        stored.observer.clips = stored not in self.whole
        return stored.observer.clips

    def rounded(self, stored: Stored, value: Tensor, width: Width) -> Tensor:
        """A value as it is stored at a width."""
        if width == "float32" or value.dtype != torch.float32:
            return value
        scale, zero = self.scale(stored, width)
        if not math.isfinite(value.sum()):  # of a quotient of what was rounded to zeros
            value = torch.nan_to_num(value, 0.0, math.inf, -math.inf)
        return on_steps(value, torch.tensor(scale), zero, *_LIMITS[width])

    def weight(self, node: Node, value: Tensor, observer: Any) -> Tensor:
        """A weight on the steps of its channels."""
        before, rounded = self._weights.get(node, (None, value))
        if before is None or before.data_ptr() != value.data_ptr():  # of the same parameter each run detaches another
            rounded = on_channels_steps(value, observer)
            self._weights[node] = value, rounded
        return rounded


def on_steps(value: Tensor, scale: Tensor, zero: int, low: int, high: int) -> Tensor:
    """Finite float32 values rounded to steps from `low` to `high`: the bits of torch's fake_quantize, which takes eight
    times as long. `scale` is float32 and broadcasts."""
    steps = value.mul(scale.reciprocal()).round_().clamp_(low - zero, high - zero)
    return steps.add_(0.0).mul_(scale)  # -0 becomes 0, as whole numbers have it


def on_channels_steps(weight: Tensor, observer: Any) -> Tensor:
    """A weight rounded as its observer says."""
    if isinstance(observer, PerChannelGroupObserver):
        return observer.rounded(weight)
    scale, _ = observer.calculate_qparams()  # symmetric
    shape = [-1 if axis == observer.ch_axis else 1 for axis in range(weight.dim())]
    return on_steps(weight, scale.float().reshape(shape), 0, observer.quant_min, observer.quant_max)


def shares_of_255(shares: Tensor) -> Tensor:
    """The shares of an attention as its kernels have them: in steps of a 255th of the largest of a row."""
    whole = (shares / shares.amax(-1, keepdim=True).clamp(min=1e-30)).mul_(255).round_()
    return whole.div_(whole.sum(-1, keepdim=True).clamp(min=1.0))


def noise(found: Iterable[Sequence[Tensor]], exact: Sequence[Sequence[Tensor]]) -> list[float]:
    """The noise of each output beside its signal, as a ratio of powers over all items; of an output that is no amount
    the share of elements that differ."""
    errors, powers = [0.0] * len(exact[0]), [0.0] * len(exact[0])
    for ours, wanted in zip(found, exact, strict=True):
        for i, (y, v) in enumerate(zip(ours, wanted, strict=True)):
            if v.dtype.is_floating_point:
                errors[i] += float(((y - v).double() ** 2).sum())
                powers[i] += float((v.double() ** 2).sum())
            else:
                errors[i] += float((y != v).sum())
                powers[i] += v.numel()
    return [error / max(power, 1e-30) for error, power in zip(errors, powers, strict=True)]


def usual_noise(found: Sequence[Sequence[Tensor]], exact: Sequence[Sequence[Tensor]]) -> list[float]:
    """As `noise`, without the largest tenth of the squared errors, of outputs of few numbers; 0 of others."""
    ratios = []
    for pair in zip(zip(*exact, strict=True), zip(*found, strict=True), strict=True):
        if sum(v.numel() for v in pair[0]) >= _FEW or not pair[0][0].dtype.is_floating_point:
            ratios.append(0.0)
            continue
        wanted, ours = (torch.cat([x.reshape(-1) for x in each]) for each in pair)
        squares = (ours - wanted).double().square().sort().values
        power = float(wanted.double().square().sum())
        ratios.append(float(squares[: len(squares) - len(squares) // 10].sum()) / max(power, 1e-30))
    return ratios


def decibels(ratio: float) -> float:
    """Signal to noise in dB of noise to signal, at most 120."""
    return min(120.0, -10 * math.log10(max(ratio, 1e-30)))
