"""Layouts by one forward sweep, the way ExecuTorch's Vulkan backend (`TagMemoryMetaPass`) chooses them.

At each node the sets of allowed layouts of its arguments, then of its output, are narrowed: first to what downstream
users accept, found by a breadth-first search with a budget, then to the layout that the producer chose. If several
remain, `TensorRepSet.make_tensor_repr` picks one. Costs are ignored. Where upstream's behaviour is accidental, ours is
defined:

* All positions at which a user reads a value count, members of lists included (upstream: only the first position, and
  none in lists). So `x op x` constrains x twice.
* LAYOUT_ORDER defines which member of a set is the first.
* Operators have several kernels, each with sets of its own. A search uses their union. A kernel remains a candidate as
  long as its sets have members left, and the first candidate picks the layouts. The caller then takes the cheapest
  kernel for these layouts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce

from q8ta_wgpu.passes.layout_sync.op_repsets import OpRepSets
from q8ta_wgpu.passes.layout_sync.tensor_repr import TensorRepr, TensorRepSet, make_tensor_repset

SEARCH_BUDGET = 64
"""Limit of values whose users a search visits, as upstream."""

OUT = -1
"""Stands for the output where the position of an argument is expected."""


@dataclass(frozen=True)
class Registered:
    """A node for the sweep: operand names in order, and the unconstrained sets of each of its kernels."""

    inputs: tuple[str, ...]
    output: str
    kernels: tuple[OpRepSets, ...]


@dataclass(frozen=True)
class Pick:
    """The sweep's decision for a node.

    Attributes:
        reads: representation of each argument, None for free ones.
        out: representation of the output.
    """

    reads: tuple[TensorRepr | None, ...]
    out: TensorRepr


def greedy(nodes: Sequence[Registered], constants: Collection[str]) -> list[Pick]:
    """Sweeps over nodes in execution order. A graph input has the layout that its first reader picks."""
    sweep = _Sweep(nodes, constants)
    return [sweep.visit(node) for node in nodes]


def _union(sets: Sequence[TensorRepSet]) -> TensorRepSet:
    return reduce(TensorRepSet.make_union, sets)


@dataclass
class _Sweep:
    nodes: Sequence[Registered]
    constants: Collection[str]
    chosen: dict[str, TensorRepr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users: dict[str, list[tuple[TensorRepSet, str | None]]] = {}
        self.registered_out: dict[str, TensorRepSet] = {}
        for node in self.nodes:
            self.registered_out[node.output] = _union([kernel.get_out_repset() for kernel in node.kernels])
            for position, name in enumerate(node.inputs):
                asking = [kernel for kernel in node.kernels if not kernel.is_free(position)]
                if asking and name not in self.constants:
                    wanted = _union([kernel.get_arg_repset(position) for kernel in asking])
                    influences = any(kernel.influences_output(position) for kernel in asking)
                    self.users.setdefault(name, []).append((wanted, node.output if influences else None))

    def _search(self, origin: str, repset: TensorRepSet) -> TensorRepSet:
        """`repset` narrowed by the users of `origin`, and of values whose layout depends on it, breadth first."""
        queue = deque([origin])
        for _ in range(SEARCH_BUDGET):
            if not queue or repset.is_constrained():
                break
            for wanted, output in self.users.get(queue.popleft(), ()):
                if repset.any_in_common(wanted):
                    repset = repset.make_intersect(wanted)
                    if output is not None:
                        queue.append(output)
        return repset

    def visit(self, node: Registered) -> Pick:
        """Narrows the sets of a node, picks its layouts and records them."""
        kernels = [k.copy() for k in node.kernels]
        for position, name in enumerate(node.inputs):
            if name in self.constants or all(k.is_free(position) for k in kernels):
                continue
            if (current := _current(kernels, position)).is_ambiguous():
                kernels = _narrowed(kernels, position, self._search(name, current))
            if _current(kernels, position).is_ambiguous():
                chosen = self.chosen.get(name)
                source = make_tensor_repset(chosen) if chosen else self.registered_out.get(name)
                if source is not None:
                    kernels = _narrowed(kernels, position, source)
        if (current := _current(kernels, OUT)).is_ambiguous():
            kernels = _narrowed(kernels, OUT, self._search(node.output, current))
        args, outs = kernels[0].pick_representations()
        reads = tuple(
            None if kernels[0].is_free(position) or name in self.constants else args[position]
            for position, name in enumerate(node.inputs)
        )
        for name, read in zip(node.inputs, reads, strict=True):
            if read is not None:
                self.chosen.setdefault(name, read)
        self.chosen[node.output] = outs[0]
        return Pick(reads, outs[0])


def _get(kernel: OpRepSets, position: int) -> TensorRepSet:
    return kernel.get_out_repset() if position == OUT else kernel.get_arg_repset(position)


def _current(kernels: Sequence[OpRepSets], position: int) -> TensorRepSet:
    return _union([_get(kernel, position) for kernel in kernels])


def _narrowed(kernels: list[OpRepSets], position: int, source: TensorRepSet) -> list[OpRepSets]:
    """Narrows kernels to `source`; drops those that have nothing in common with it, unless none has."""
    fitting = [kernel for kernel in kernels if _get(kernel, position).any_in_common(source)]
    for kernel in fitting:
        if position == OUT:
            kernel.try_constrain_with_out_repset(source)
        else:
            kernel.try_constrain_with_arg_repset(position, source)
    return fitting or kernels
