"""Residual streams: the sums that a transformer's blocks add to and its norms read, and how they are stored.

A stream is made of sums that a layer_norm or rms_norm reads, or another sum of the stream, through operators that only
move elements. Rounded to 8 bits at every sum it loses more than anything else does; it is kept in 16.
"""

from __future__ import annotations

from collections.abc import Iterator

from q8ta_wgpu.ir.int8 import Moves, WeightedSum
from q8ta_wgpu.passes.plan.calls import Call, Calls
from q8ta_wgpu.passes.plan.storage import INT16, Rounding

_NORMS = ("layer_norm", "rms_norm")


def widen(calls: Calls, found: Rounding) -> None:
    """Stores every stream in 16 bits, and what is added to it.

    A weighted sum that only the stream reads is added before it is rounded. A cat that a stream begins with, as that of
    a class token and patches, is part of it. What else reads the stream keeps its own storage, to which the stream is
    requantized. A network without a stream is left as it is.
    """
    stream = _Stream(calls, found)
    if stream.sums:
        stream.widen()


class _Stream:
    """The calls of a stream's sums, and the values that are stored in 16 bits."""

    def __init__(self, calls: Calls, found: Rounding) -> None:
        self.calls, self.found = calls, found
        self.sums: set[str] = set()
        self.wide: set[str] = set()
        for call in reversed(list(calls)):
            if self._is_sum(call) and self._feeds(call):
                self.sums.add(call.name)

    def widen(self) -> None:
        """Goes through the calls in order."""
        self.wide = {call.outputs[0] for call in self.calls if call.name in self.sums}
        for call in self.calls:
            if call.name in self.sums:
                self._widen_sum(call)
            elif self._is_moved(call) and self._feeds(call):
                begins = self._begins(call)
                if begins:
                    self._widen_operands(call)
                if begins or self.wide.intersection(call.inputs):
                    self._give(call)
            elif call.main.op in _NORMS and call.inputs[0] in self.wide:
                self._read(call, call.inputs[0])

    def _is_sum(self, call: Call) -> bool:
        """Whether a call adds two float tensors and is rounded itself, not as part of a region that goes on."""
        return call.main.op == "add" and any(name in self.found.gives for name in call.outputs)

    def _feeds(self, call: Call) -> bool:
        """Whether a norm or a sum of the stream reads what a call gives, moved or not."""
        return any(user.name in self.sums or user.main.op in _NORMS for user in self._readers(call))

    def _readers(self, call: Call) -> Iterator[Call]:
        for user in self.calls.readers(call):
            yield user
            if _moves(user):
                yield from self._readers(user)

    def _is_moved(self, call: Call) -> bool:
        """Whether a call moves what is stored: in a module that is left in float none does."""
        return _moves(call) and any((call.name, name) in self.found.reads for name in call.inputs)

    def _begins(self, call: Call) -> bool:
        """Whether a cat puts a constant, such as a class token, beside what the network computes, or is itself added
        to the stream: at one scale of 8 bits the smaller of what it joins would be lost."""
        if call.main.op != "cat":
            return False
        added = any(user.name in self.sums for user in self.calls.readers(call))
        return added or any(map(self._is_repeated, call.inputs))

    def _is_repeated(self, name: str) -> bool:
        """Whether a value is a constant, repeated for a batch or not."""
        made = self.calls.maker(name)
        return (made is None and name in self.calls.constants) or (
            made is not None and _moves(made) and bool(made.inputs) and self._is_repeated(made.inputs[0])
        )

    def _widen_operands(self, call: Call) -> None:
        """Lets weighted sums that a cat alone reads give what they are in the stream."""
        for name in call.inputs:
            if len(self.calls.readers_of(name)) == 1:
                for moved in self._from_sum(name):
                    self._give(moved)

    def _widen_sum(self, call: Call) -> None:
        self.found.gives[call.outputs[0]] = INT16
        # A sum takes in what is of its own shape, and no position that is repeated for the batch.
        alike = all(self.calls.shape(name) == self.calls.shape(call.outputs[0]) for name in call.inputs)
        joined = not alike or any((call.name, name) not in self.found.reads for name in call.inputs)
        for name in sorted(call.inputs, key=self.calls.place, reverse=True):  # the last one computed joins its sum
            if name in self.wide or name in self.calls.constants:
                self._read(call, name)
            elif not joined and self._is_rounded_sum(name):
                joined = True
                del self.found.gives[name], self.found.reads[call.name, name]
            elif path := self._from_sum(name):
                for moved in path:
                    self._give(moved)
                self._read(call, name)

    def _is_rounded_sum(self, name: str) -> bool:
        """Whether a value is a weighted sum whose own result is rounded, and read once."""
        made = self.calls.maker(name)
        weighted = made is not None and made.kind is not None and isinstance(made.kind, WeightedSum)
        return weighted and name in self.found.gives and len(self.calls.readers_of(name)) == 1

    def _from_sum(self, name: str) -> list[Call]:
        """A weighted sum and what moves its result, each read by the next alone, up to a value; empty if there is
        none."""
        path, made = list[Call](), self.calls.maker(name)
        while made is not None and self._is_moved(made) and len(made.inputs) == 1:
            if len(self.calls.readers_of(made.outputs[0])) != 1:
                return []
            path.insert(0, made)
            name = made.inputs[0]
            made = self.calls.maker(name)
        return [made, *path] if made is not None and self._is_rounded_sum(name) else []

    def _give(self, call: Call) -> None:
        """Lets a call give a value of the stream; what moves elements reads it so, too."""
        self.wide.add(call.outputs[0])
        if _moves(call):
            first = next(name for name in call.inputs if (call.name, name) in self.found.reads)
            self.found.reads[call.name, first] = INT16  # other operands and the result share it
        else:
            self.found.gives[call.outputs[0]] = INT16

    def _read(self, call: Call, name: str) -> None:
        if (call.name, name) in self.found.reads:
            self.found.reads[call.name, name] = INT16


def _moves(call: Call) -> bool:
    return isinstance(call.kind, Moves) and len(call.outputs) == 1
