"""Runs a calibrated module with some of its values rounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.calibrate.heads import InParts
from q8ta_wgpu.frontend.calibrate.state_precision import states_of
from q8ta_wgpu.frontend.calibrate.stored import Reads, Storage, Stored
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.frontend.nodes import CONVERSIONS, is_float, kind
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.quantization.stored import Role, Width

Views = Mapping[Reads, Tensor]
"""The rounded values of one value, one for each way in which readers read it."""

View = Callable[[Node, Tensor], Views]
"""(observer's call, value) -> the rounded values."""

Weight = Callable[[Node, Tensor, Node], Tensor]
"""(observer's call, weight, reader) -> the rounded weight."""

Shares = Callable[[Node, Tensor], Tensor]
"""(softmax of an attention, its scores) -> the rounded shares."""


def same_weight(node: Node, value: Tensor, reader: Node) -> Tensor:
    """A weight that is not rounded, as `Run` takes it."""
    return value


class Run(InParts):
    """Runs a prepared module in which each reader reads a value as it would be stored for it.

    Args:
        storage: of the module.
        view: rounds values.
        weight: rounds weights.
        shares: rounds shares of attention.
        rows: (embedding, its result, the indices) -> the rounded rows. None: rows are not rounded.
        attended: (call of an attention other than its softmax, its result, its operands) -> the result. None: it stays.
    """

    def __init__(
        self,
        storage: Storage,
        view: View,
        weight: Weight,
        shares: Shares,
        rows: Callable[[Node, Tensor, Tensor], Tensor] | None = None,
        attended: Callable[[Node, Tensor, Sequence[Any]], Tensor] | None = None,
    ) -> None:
        super().__init__(storage.module)
        self.storage, self._view, self._weight, self._shares, self._rows = storage, view, weight, shares, rows
        self._attended = attended

    def run_node(self, n: Node) -> Any:
        """The value of a node. For an observer, the rounded values for its readers; for a watcher, None."""
        if n in self.storage.values or n in self.storage.weights:
            (value,) = self.fetch_args_kwargs_from_env(n)[0]
            return self._view(n, value) if n in self.storage.values else value
        if n.op == "call_module":
            return None
        if n in self.storage.attention and n not in self._attention:
            return self._call(n, *self.fetch_args_kwargs_from_env(n)[0])
        return super().run_node(n)

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call. Indices that rounding moved out of their range are clamped, as a device does."""
        return super().call_function(target, _within_range(str(target), args), kwargs)

    def _call(self, n: Node, *args: Any, **named: Any) -> Any:
        if n in self.storage.attention:
            return self._shares(n, args[0])
        found = super()._call(n, *args, **named)
        return found if self._attended is None else self._attended(n, found, args)

    def finished(self, n: Node, result: Any) -> Any:
        """Rounds the rows of a table. Parameters get no gradients."""
        if n.op == "get_attr":
            return result.detach()
        if self._rows is not None and self.storage.looks_up(n):
            return self._rows(n, result, self.env[n.all_input_nodes[1]])
        return result

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """The arguments of a node, each value as this node reads it."""
        return torch.fx.node.map_arg(args, lambda source: self._read(source, n))

    def _read(self, source: Node, reader: Node) -> Any:
        value = self.env[source]
        if source in self.storage.weights:
            return self._weight(source, value, reader)
        if source not in self.storage.values:
            return value
        return value[self.storage.values[source].users[source][reader]]

    def call(self, item: Sequence[Tensor], known: dict[Node, Any] | None = None) -> tuple[list[Tensor], list[Tensor]]:
        """Runs one item of the calibration.

        Args:
            item: the inputs.
            known: values of nodes, which are not computed again. The values of all other nodes are added.

        Returns:
            The outputs, and the states after the call. Amounts in whole numbers, such as bytes of images, are floats:
            how far they are off counts, not how many differ.
        """
        self.garbage_collect_values = known is None
        return outputs_and_states(self.storage.module, self.run(*item, initial_env=known))


def _within_range(target: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a call, with the indices of elements that it reads clamped to those that there are."""
    match target, args:
        case (("aten.gather.default" | "aten.index_select.default"), (Tensor() as x, int(dim), Tensor() as at, *rest)):
            return x, dim, at.clamp(0, x.shape[dim] - 1), *rest
        case "aten.index.Tensor", (Tensor() as x, [*indices]):
            pairs = zip(indices, x.shape, strict=False)  # masks were refused: how much they give depends on the data
            return x, [at if at is None else at.clamp(-rows, rows - 1) for at, rows in pairs]
        case "aten.embedding.default", (Tensor() as table, Tensor() as at, *rest):
            return table, at.clamp(0, len(table) - 1), *rest
        case _:
            return args


def outputs_and_states(module: GraphModule, results: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs and the states of a call, as `Run.call` returns them, from all that a prepared module returned."""
    (end,) = module.graph.find_nodes(op="output")
    leaves = zip(pytree.tree_leaves(results), pytree.tree_leaves(end.args[0]), strict=True)
    pairs = [(x, n) for x, n in leaves if isinstance(x, Tensor)]
    count = len(pairs) - len(states_of(module))
    outputs = [x.float() if _is_amount(node) else x for x, node in pairs[:count]]
    return outputs, [x for x, _ in pairs[count:]]


def softmax(node: Node, scores: Tensor) -> Tensor:
    """The shares of an attention in float."""
    found: Tensor = node.target(scores, *node.args[1:])  # type: ignore[operator]
    return found


class LastRuns:
    """The values of the last run of each kind. The next run takes those that come before the first value that it rounds
    in another way.

    Args:
        storage: of the module that is run.
        kinds: how many kinds of runs there are, such as one for each item.
        most: limit of bytes. Where the values of all runs take more, none are kept.

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
        """Forgets the values that may differ in the next runs, which round by the choice `chosen`."""
        changed = (stored for (stored, _), _ in chosen.items() ^ self._chosen.items())
        first = min((self._places[s if isinstance(s, Node) else s.nodes[0]] for s in changed), default=0)
        self._chosen = chosen
        for values in filter(None, self.values):
            for node in [n for n in values if self._places[n] >= first and n.op != "placeholder"]:
                del values[node]


def _writes(node: Node) -> bool:
    """Whether a call writes into its arguments."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _is_amount(node: Any) -> bool:
    """Whether whole numbers are amounts, that is floats that were rounded, and no indices, labels or counts."""
    while isinstance(node, Node) and node.op == "call_function" and not is_float(node):
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if str(node.target) in CONVERSIONS and source is not None and (source.op == "call_module" or is_float(source)):
            return True
        node = source if isinstance(kind(node), Moves) else None
    return False
