"""Residual streams, `x = x + attention(norm(x))`, are stored in 16 bits.

A sum is part of a stream if a layer_norm, an rms_norm or another sum of the stream reads it, perhaps after operators
that only move elements. Rounding a stream to 8 bits at every sum would lose more than any other rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

from q8ta_wgpu.ir.int8 import Moves, WeightedSum
from q8ta_wgpu.passes.plan.storage import INT16, Rounding
from q8ta_wgpu.passes.plan.user_calls import UserCall, UserCalls

_NORMS = ("layer_norm", "rms_norm")


def widen(calls: UserCalls, found: Rounding) -> None:
    """Plans 16 bits for all streams and what is added to them; `found` is changed in place.

    A weighted sum that only the stream reads is added before it is rounded. A cat that begins a stream, as that of a
    class token and patches, is part of it. Other readers of the stream requantize it to their own storage.
    """
    stream = _Stream(calls, found)
    if stream.sums:
        stream.widen()


class _Stream:
    """The streams of a graph: names of the calls that are their sums, and of the values stored in 16 bits."""

    def __init__(self, calls: UserCalls, found: Rounding) -> None:
        self.calls, self.found = calls, found
        self.sums: set[str] = set()
        self.wide: set[str] = set()
        for call in reversed(list(calls)):
            if self._is_sum(call) and self._feeds(call):
                self.sums.add(call.name)

    def widen(self) -> None:
        """Plans the calls in execution order."""
        self.wide = {call.outputs[0] for call in self.calls if call.name in self.sums}
        for call in self.calls:
            if call.name in self.sums:
                self._widen_sum(call)
            elif self._is_moved(call) and self._feeds(call):
                begins = self._begins_stream(call)
                if begins:
                    self._widen_operands(call)
                if begins or self.wide.intersection(call.inputs):
                    self._widen_result(call)
            elif call.main.op in _NORMS and call.inputs[0] in self.wide:
                self._widen_operand(call, call.inputs[0])

    def _is_sum(self, call: UserCall) -> bool:
        """Whether a call is an add whose own result is rounded, not one that later nodes are fused into."""
        return call.main.op == "add" and any(name in self.found.gives for name in call.outputs)

    def _feeds(self, call: UserCall) -> bool:
        """Whether a norm or a sum of the stream reads a call's result, moved or not."""
        return any(user.name in self.sums or user.main.op in _NORMS for user in self._readers(call))

    def _readers(self, call: UserCall) -> Iterator[UserCall]:
        waiting = [call]
        while waiting:
            for user in self.calls.readers(waiting.pop()):
                yield user
                if _moves(user):
                    waiting.append(user)

    def _is_moved(self, call: UserCall) -> bool:
        """Whether a call moves a stored value, not one of a module that stays in float32."""
        return _moves(call) and any((call.name, name) in self.found.reads for name in call.inputs)

    def _begins_stream(self, call: UserCall) -> bool:
        """Whether a call is a cat that has a constant operand, such as a class token, or is added to the stream. Its
        operands may have different ranges: at one scale of 8 bits the smaller ones would be lost."""
        if call.main.op != "cat":
            return False
        added = any(user.name in self.sums for user in self.calls.readers(call))
        return added or any(map(self._is_constant, call.inputs))

    def _is_constant(self, name: str) -> bool:
        """Whether a value is a constant, moved or not, as a class token that is expanded to the batch."""
        while (producer := self.calls.producer(name)) is not None and _moves(producer) and producer.inputs:
            name = producer.inputs[0]
        return producer is None and name in self.calls.constants

    def _widen_operands(self, call: UserCall) -> None:
        """Plans 16 bits for weighted sums that only this cat reads."""
        for name in call.inputs:
            if len(self.calls.readers_of(name)) == 1:
                for source in self._path_from_sum(name):
                    self._widen_result(source)

    def _widen_sum(self, call: UserCall) -> None:
        """Plans 16 bits for a sum of the stream, and fuses it into the weighted sum that it adds, if there is one."""
        self.found.gives[call.outputs[0]] = INT16
        # The add is fused only if its operands have its shape: not if one is broadcast, as position embeddings.
        alike = all(self.calls.shape(name) == self.calls.shape(call.outputs[0]) for name in call.inputs)
        fused = not alike or any((call.name, name) not in self.found.reads for name in call.inputs)
        for name in sorted(call.inputs, key=self.calls.position, reverse=True):  # fused into the last weighted sum
            if name in self.wide or name in self.calls.constants:
                self._widen_operand(call, name)
            elif not fused and self._is_rounded_sum(name):
                fused = True
                del self.found.gives[name], self.found.reads[call.name, name]
            elif path := self._path_from_sum(name):
                for source in path:
                    self._widen_result(source)
                self._widen_operand(call, name)

    def _is_rounded_sum(self, name: str) -> bool:
        """Whether a value is a weighted sum whose own result is rounded, and read once."""
        producer = self.calls.producer(name)
        weighted = producer is not None and isinstance(producer.kind, WeightedSum)
        return weighted and name in self.found.gives and len(self.calls.readers_of(name)) == 1

    def _path_from_sum(self, name: str) -> list[UserCall]:
        """The weighted sum that a value is moved from, then the moves. Empty if it is none, or has other readers."""
        path, producer = list[UserCall](), self.calls.producer(name)
        while producer is not None and self._is_moved(producer) and len(producer.inputs) == 1:
            if len(self.calls.readers_of(producer.outputs[0])) != 1:
                return []
            path.insert(0, producer)
            name = producer.inputs[0]
            producer = self.calls.producer(name)
        return [producer, *path] if producer is not None and self._is_rounded_sum(name) else []

    def _widen_result(self, call: UserCall) -> None:
        """Plans 16 bits for a call's result; of a move also for its operand."""
        self.wide.add(call.outputs[0])
        if _moves(call):
            first = next(name for name in call.inputs if (call.name, name) in self.found.reads)
            self.found.reads[call.name, first] = INT16  # other operands and the result share it
        else:
            self.found.gives[call.outputs[0]] = INT16

    def _widen_operand(self, call: UserCall, name: str) -> None:
        if (call.name, name) in self.found.reads:
            self.found.reads[call.name, name] = INT16


def _moves(call: UserCall) -> bool:
    return isinstance(call.kind, Moves) and len(call.outputs) == 1
