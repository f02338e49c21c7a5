"""A user's program as a float graph: what modules and ONNX files become before anything is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.errors import InputError, nearest, shown
from q8ta_wgpu.ir.graph import Array, Call, Graph
from q8ta_wgpu.ir.int8 import Int8


@dataclass(frozen=True)
class Moved:
    """A constant that is another one, seen in another shape or with its dimensions in another order.

    Attributes:
        source: the other one.
        moves: the views and permutes from it, in order.
    """

    source: str
    moves: tuple[Call, ...] = ()

    def then(self, move: Call) -> Moved:
        """What one more move makes of it."""
        return Moved(self.source, (*self.moves, move))

    def back(self, array: Array) -> Array:
        """An array in the order of the moved constant, in that of the other one."""
        for call in reversed(self.moves):
            dims = call.attrs.get("dims")
            array = array.reshape(call.inputs[0].shape) if dims is None else array.transpose(np.argsort(dims))
        return array

    def forth(self, array: Array) -> Array:
        """An array in the order of the other constant, in that of the moved one."""
        for call in self.moves:
            dims = call.attrs.get("dims")
            array = array.reshape(call.output.shape) if dims is None else array.transpose(dims)
        return array

    def axis(self, shape: tuple[int, ...]) -> int:
        """The axis of the other constant along which the first one of the moved constant lies, whose shape is given.
        Where none is, as of the weight of a transposed convolution in groups, it is the one of outputs in a group."""
        numbers = np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
        found = self.back(np.broadcast_to(numbers, shape))
        for at in range(found.ndim):
            line = found[tuple(slice(None) if i == at else slice(1) for i in range(found.ndim))]
            if found.shape[at] == shape[0] and (line == found).all():
                return at
        return 1

    def shared(self, shape: tuple[int, ...]) -> Array:
        """For each index along the first axis of the moved constant, that along the other one's axis: those that are
        equal have one scale."""
        own = self.back(np.broadcast_to(np.float32(0), shape)).shape
        axis = self.axis(shape)
        numbers = np.arange(own[axis]).reshape([-1 if i == axis else 1 for i in range(len(own))])
        return self.forth(np.broadcast_to(numbers, own)).reshape(shape[0], -1)[:, 0]


@dataclass
class FloatProgram:
    """A float graph and what its values are in the user's program.

    Attributes:
        graph: without quantizes, but for those of bools.
        observable: the floats that calls of the user's program give, and inputs.
        calls: the call that each node is part of, by the node's output.
        parts: by a call that is one operator with others of the user's program, which of these reads which values.
        moving: kinds of the calls that give elements of what they read.
        names: values by their names in the user's program: of files those that are observable, of modules all inputs,
            parameters and results of calls.
        paths: by call, the names by which the user's program knows it: its own, and those of what it gives.
        results: of a module, the outputs that are no states.
        states: the values that the next run reads as others were written, by these.
        begins: calls that only move first states of recurrent layers, which stay in float32.
        tables: constants that are tables of learned rows.
        moved: constants that are another one's elements in another order: its name, and the moves from it.
        unfitted: weighted sums, by output, that have no place for another bias.
        transforms: weighted sums, by output, that replaced another operator: their weights are not the network's.
    """

    graph: Graph
    observable: set[str] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    parts: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    moving: dict[str, Int8] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    states: dict[str, str] = field(default_factory=dict)
    begins: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    moved: dict[str, Moved] = field(default_factory=dict)
    unfitted: set[str] = field(default_factory=set)
    transforms: set[str] = field(default_factory=set)

    @property
    def joined(self) -> set[str]:
        """The user's calls that are one operator with others."""
        return {part for parts in self.parts.values() for part, _ in parts}

    def readers(self, call: str, value: str) -> list[str]:
        """The user's calls by which a call reads a value: itself, or parts of the operator that it is."""
        return [part for part, name in self.parts.get(call, ()) if name == value] or [call]

    def leave_in_float(self, skip: Sequence[str], reason: str) -> None:
        """Notes that the named operators stay in float32. A name is an operator's, that of a value which it gives, or
        what their names begin with up to a "/" or ".". Raises InputError for a name that is no operator's."""
        calls: dict[str, list[str]] = {}
        for call, paths in self.paths.items():
            for path in paths:
                calls.setdefault(path, []).append(call)
        for name in skip:
            found = {
                c for path in calls if path == name or path.startswith((f"{name}/", f"{name}.")) for c in calls[path]
            }
            if not found:
                near = ", ".join(map(repr, nearest(name, dict.fromkeys(calls))))
                raise InputError(
                    f"skip names {shown(name)}, but no operator has that name, and none's begins with it: "
                    + (f"nearest to it: {near}" if near else "the file's operators have no names")
                )
            stays = {n.output: reason for n in self.graph.nodes if self.calls[n.output] in found}
            self.graph.values.leave_in_float(stays)
