"""Runs a float torch module for `quantization/`: its values by name, and its outputs with roundings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph as TorchGraph
from torch.fx import GraphModule, Node
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.kept import Kept
from q8ta_wgpu.frontend.nodes import CONVERSIONS, argument_names, is_float, kind
from q8ta_wgpu.frontend.rounded import Noted, rounded, within_range
from q8ta_wgpu.frontend.roundings import Chain, Integers, Roundings
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import DTYPES, Array, Graph, QParams
from q8ta_wgpu.ir.int8 import Moves
from q8ta_wgpu.ir.layout import canonical
from q8ta_wgpu.kernels.attention.round_shares import rounded_shares
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.runner import Groups
from q8ta_wgpu.quantization.stored import RESULT, Edge, Shares

Tensors = Sequence[Tensor]


_SIGNS = 4
"""Vectors of random signs for each item."""


class TorchRunner:
    """Runs the calls of a module by torch.

    Args:
        program: the module as it was read.
        module: that was read.
        items: the inputs of each item that `outputs` runs, states included.
        exact: the program's results of each item in float, if they are known.

    Attributes:
        exact: the program's results of each item in float.
    """

    def __init__(
        self,
        program: FloatProgram,
        module: GraphModule,
        items: Sequence[Tensors] = (),
        exact: Sequence[list[Array]] = (),
    ) -> None:
        self.program, self.module, self._items = program, module, items
        self.names = {name: value for value, name in program.names.items()}
        self._kept = Kept(module, self.names, len(items))
        self._weights: dict[int, tuple[Array, Tensor]] = {}
        self.exact = [*exact] or [self.values(item, ()).results() for item in items]

    def values(self, item: Tensors, names: Sequence[str]) -> Values:
        """The values of these names that the module computes of an item."""
        return Values(self, item, names)

    def inputs(self, item: Tensors) -> dict[str, Array]:
        """The inputs of an item as the program's graph stores them, by name."""
        graph = self.program.graph
        arrays = (np.asarray(x.detach().cpu().numpy()) for x in item)
        places = dict(zip((n.name for n in self.module.graph.find_nodes(op="placeholder")), arrays, strict=True))
        found = {name: places[name] for name in graph.inputs}
        return {n: np.asarray(graph.stored(n, x), DTYPES[graph.types[n].dtype]) for n, x in found.items()}

    def outputs(self, graph: Graph) -> list[list[Array]]:
        """The program's results of each item, of the float graph with roundings added."""
        roundings, found = Roundings(self.program, graph), []
        keys = self._kept.keys(roundings)
        with torch.no_grad():
            for index, item in enumerate(self._items):
                for node, value in _Run(self, roundings).steps(*item, known=self._kept.known(index, keys)):
                    self._kept.keep(index, keys, node, value)
                found.append(self.outputs_of(value))
        return found

    def noise_of_each(self, graph: Graph, groups: Groups, weights: Sequence[Sequence[Array]]) -> list[float]:
        """How much of the outputs' noise each of several groups of roundings makes, to first order.

        Args:
            graph: with the weights as they are rounded.
            groups: of roundings. All of a group happen together. Of an edge in several groups the last counts.
            weights: of each item and output, how much squared errors count (`Judge.weights`).
        """
        edges: dict[Edge, tuple[int, QParams | Shares]] = {}
        for i, group in enumerate(groups):
            for (by, name), q in group:
                edges |= {(call, name): (i, q) for call in self.program.readers(by, name)}
        found, with_weights = np.zeros(len(groups)), Roundings(self.program, graph)
        for number, (item, own) in enumerate(zip(self._items, weights, strict=True)):
            traced, random = Traced(self, with_weights, edges, len(groups)), torch.Generator().manual_seed(number)
            with torch.enable_grad():
                results = self._results(traced.run(*item))
                roots = [torch.from_numpy(w).sqrt().float() for w in own]
                pairs = [(x, w) for x, w in zip(results, roots, strict=True) if x.requires_grad and w.any()]
                for left in reversed(range(_SIGNS)):
                    signs = [(torch.randint(0, 2, x.shape, generator=random) * 2.0 - 1.0) * w for x, w in pairs]
                    found += traced.changes([x for x, _ in pairs], signs, left > 0) ** 2 / _SIGNS
        return [float(x) for x in found]

    def weight(self, given: Integers) -> Tensor:
        """A rounded weight in float32, which is kept."""
        key = id(given.source)
        if key not in self._weights:
            self._weights[key] = given.source, torch.from_numpy(given.real)
        return self._weights[key][1]

    def outputs_of(self, results: Any) -> list[Array]:
        """The program's results, of all that the module returned."""
        return [x.detach().cpu().numpy() for x in self._results(results)]

    def _results(self, results: Any) -> list[Tensor]:
        end = self.module.graph.output_node()
        found: dict[str, Tensor] = {}
        for node, x in zip(pytree.tree_leaves(end.args[0]), pytree.tree_leaves(results), strict=True):
            if isinstance(node, Node) and isinstance(x, Tensor) and node.name in self.names:
                found[self.names[node.name]] = x.float() if _is_amount(node) else x
        return [found[name] for name in self.program.results]


def _is_amount(node: Any) -> bool:
    """Whether whole numbers are amounts, such as bytes of images: floats that were rounded, and no indices, labels or
    counts. How far they are off counts, not how many differ."""
    while isinstance(node, Node) and node.op == "call_function" and not is_float(node):
        source = node.all_input_nodes[0] if node.all_input_nodes else None
        if str(node.target) in CONVERSIONS and source is not None and is_float(source):
            return True
        node = source if isinstance(kind(node), Moves) else None
    return False


def _on_shares(value: Tensor, bias: Array, fine: bool) -> Tensor:
    """Shares of an attention by its weights. Items may be smaller than the example, which the bias suits: they read its
    first rows and columns, as calls read tables."""
    read = bias[tuple(slice(size) for size in canonical(tuple(value.shape)))]
    return torch.from_numpy(rounded_shares(value.numpy(), read, fine))


class _Run(Sized):
    """Runs a module in which each call reads values as it would read them stored."""

    def __init__(self, runner: TorchRunner, roundings: Roundings | None = None) -> None:
        super().__init__(runner.module)
        self.extra_traceback = False
        self._runner, self._roundings, self._names = runner, roundings, runner.names
        self._rounded: dict[Node, dict[Chain, Tensor]] = {}

    def steps(
        self, *item: Tensor, known: Mapping[Node, Any] = MappingProxyType({}), wanted: Collection[str] = ()
    ) -> Iterator[tuple[Node, Any]]:
        """The nodes with their values, as they are computed; the results come last. What is known, and what neither the
        results nor the nodes of the names `wanted` are computed from, is not computed. Values that no later node reads
        are forgotten."""
        graph: TorchGraph = self.module.graph  # type: ignore[assignment]
        self.begin(*item)
        self.env = dict(known)
        self.args_iter: Any = iter(item)
        needed = {graph.output_node(), *(node for node in graph.nodes if node.name in wanted)}
        for node in reversed(graph.nodes):
            if node in needed and node not in known:
                needed.update(node.all_input_nodes)
        for node in graph.nodes:
            if node not in known and (node in needed or node.op == "placeholder"):
                self.env[node] = found = self.run_node(node)
                yield node, found
            for each in self.user_to_last_uses.get(node, ()):
                self.env.pop(each, None)
                self._rounded.pop(each, None)

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        """The arguments of a node, each value as this node reads it."""
        if self._roundings is None:
            return super().map_nodes_to_values(args, n)
        return torch.fx.node.map_arg(args, lambda source: self._read(source, n))

    def _read(self, source: Node, reader: Node) -> Any:
        roundings = self._roundings
        assert roundings is not None
        value, name = self.env[source], self._names.get(source.name, "")
        if reader.op == "output":
            return self._on_steps(source, value, roundings.results.get(name, ()))
        edge = reader.name, name
        if (weight := roundings.weights.get(edge)) is not None:
            return self._runner.weight(weight)
        value = self._on_steps(source, value, roundings.edges.get(edge, ()))
        if edge in roundings.rows:
            unit = roundings.edges[edge][-1].scale
            return torch.from_numpy(arithmetic.round_rows(value.numpy(), unit))
        if (how := roundings.shares.get(edge)) is not None:
            return _on_shares(value, *how)
        return value

    def _on_steps(self, source: Node, value: Any, chain: Chain) -> Any:
        if not chain or value.dtype != torch.float32:
            return value
        known = self._rounded.setdefault(source, {})
        if chain not in known:
            known[chain] = rounded(self._on_steps(source, value, chain[:-1]), chain[-1])
        return known[chain]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call. Indices that rounding moved out of their range are clamped, as a device does."""
        return super().call_function(target, within_range(str(target), args) if self._roundings else args, kwargs)

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[Any, Any]:
        """The arguments of a node, with the bias that was corrected."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        bias = None if self._roundings is None else self._roundings.biases.get(n.name)
        if bias is None:
            return args, kwargs
        names = argument_names(n)
        named = dict(zip(names, args, strict=False)) | kwargs | {"bias": torch.from_numpy(bias)}
        return (), named


class Traced(_Run):
    """Runs a module in float, and notes how roundings would change its outputs.

    Let e be the rounding error of a value, and g the gradient of the outputs multiplied by random signs. The mean of
    (g·e)² over many signs is ‖J e‖², the squared error of the outputs to first order. (Hutchinson's estimator; "A
    Stochastic Estimator of the Trace of the Influence Matrix", 1990.) It includes that errors of a value may share a
    sign, as where most elements round to zero. The simpler s²/12·Σg², with steps of s, takes errors for independent.
    """

    def __init__(
        self, runner: TorchRunner, roundings: Roundings, edges: Mapping[Edge, tuple[int, QParams | Shares]], count: int
    ) -> None:
        super().__init__(runner, roundings)
        self._with_weights, self._groups, self._first = roundings, edges, list[Tensor]()
        self._changes = np.zeros(count)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A parameter, which gets no gradients."""
        return super().get_attr(target, args, kwargs).detach()

    def run_node(self, n: Node) -> Any:
        """The value of a node. Of rows that are looked up in a table, notes the errors that its rounding makes."""
        found = super().run_node(n)
        if n.target is not torch.ops.aten.embedding.default:
            return found
        table, places = n.all_input_nodes[:2]
        edge = n.name, self._names.get(table.name, "")
        if edge not in self._groups or (steps := self._with_weights.weights.get(edge)) is None:
            return found
        rows = F.embedding(self.env[places], self._runner.weight(steps)) - found
        return self._noted(found, self._groups[edge][0], rows)

    def _noted(self, value: Tensor, group: int, error: Tensor) -> Tensor:
        """A value of which an error is noted."""
        if not value.requires_grad:
            value = value.detach().requires_grad_()
            self._first.append(value)

        def note(change: float) -> None:
            self._changes[group] += change

        noted: Tensor = Noted.apply(value, note, error)  # type: ignore[no-untyped-call]
        return noted

    def _read(self, source: Node, reader: Node) -> Any:
        value, name = self.env[source], self._names.get(source.name, "")
        edge = (RESULT if reader.op == "output" else reader.name), name
        known, weight = self._groups.get(edge), self._with_weights.weights.get(edge)
        if weight is not None:
            return value if known else self._runner.weight(weight)  # of a table the rows that are read are noted
        if known is None or not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        exact, (group, q) = value.detach(), known
        read = _on_shares(exact, q.bias, False) if isinstance(q, Shares) else rounded(exact, q)
        return self._noted(value, group, read.sub_(exact))

    def changes(self, outputs: Sequence[Tensor], signs: Sequence[Tensor], more: bool) -> Array:
        """How the errors of each group change the outputs, multiplied by these signs and summed. `more` says whether
        other signs will follow."""
        self._changes = np.zeros_like(self._changes)
        if outputs:
            torch.autograd.grad(outputs, self._first, signs, retain_graph=more, allow_unused=True)
        return self._changes


class Values(Mapping[str, Array]):
    """Values by name of one run. They are computed as they are asked for, each once, in the order of the graph."""

    def __init__(self, runner: TorchRunner, item: Tensors, names: Sequence[str]) -> None:
        floats = {node.name for node in runner.module.graph.nodes if is_float(node)}
        pairs = ((runner.program.names.get(name, ""), name) for name in names)
        self._wanted = {node: name for node, name in pairs if node in floats}
        self._found: dict[str, Array] = {}
        self._runner, self._steps = runner, _Run(runner).steps(*item, wanted=self._wanted)

    def __getitem__(self, name: str) -> Array:
        if name not in self._wanted.values():
            raise KeyError(name)
        with torch.no_grad():
            while name not in self._found:
                node, value = next(self._steps)
                if node.name in self._wanted and isinstance(value, Tensor):
                    self._found[self._wanted[node.name]] = value.detach().cpu().numpy()
        return self._found.pop(name)

    def results(self) -> list[Array]:
        """The program's results. No value is asked for afterwards."""
        with torch.no_grad():
            *_, (_, value) = self._steps
        return self._runner.outputs_of(value)

    def __contains__(self, name: object) -> bool:
        return name in self._wanted.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted.values())

    def __len__(self) -> int:
        return len(self._wanted)
