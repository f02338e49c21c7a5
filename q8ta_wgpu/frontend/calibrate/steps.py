"""Steps: values that may be stored in more than 8 bits, by how much that lowers the noise, and what it costs."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.rounder import Rounder
from q8ta_wgpu.frontend.calibrate.stored import Storage, Stored
from q8ta_wgpu.frontend.multiply_adds import multiply_adds_of_input, size_of
from q8ta_wgpu.frontend.nodes import is_in_attention, kind, source_of
from q8ta_wgpu.ir.int8 import Moves, Recurrent, WeightedSum
from q8ta_wgpu.quantization.steps import LITTLE, MACS_A_BYTE, NOTHING, PARTS
from q8ta_wgpu.quantization.stored import Role, Width

_OFTEN = 9.5
"""The ratio from which on it is said in times, not in percent."""


@dataclass(frozen=True)
class Step:
    """A value that may be stored in more than 8 bits.

    Attributes:
        reading: the value and the role in which it is read.
        width: its width instead of 8 bits.
        noise: the outputs' noise to signal by its rounding to 8 bits, as a ratio of powers.
        gain: by how much the step lowers that noise.
        cost: the cost, in bytes moved.
        why: the reason, if it is not the noise.
        rule: what decided: the name of a rule, or "cheap"; empty for the noise.
    """

    reading: Reading
    width: Width
    noise: float
    gain: float
    cost: float
    why: str = ""
    rule: str = ""

    @property
    def drifts(self) -> bool:
        """Whether a value stays in float32, so that devices differ in its last bit, though no whole number is made from
        it."""
        return self.width == "float32" and self.reading[1] != "steps"

    @property
    def is_table(self) -> bool:
        """Whether the value is a table of embeddings."""
        return isinstance(self.reading[0], Node) and self.reading[0].op == "call_module" and self.reading[1] == "others"

    @property
    def made(self) -> Node:
        """The operator that computes the value."""
        stored = self.reading[0]
        return stored if isinstance(stored, Node) else stored.value(stored.nodes[0])

    @property
    def reason(self) -> str:
        """Why the value is stored so."""
        return self.why or "since 8 bits are too few"

    def note(self, wanted: float) -> str:
        """A sentence for the report: how the value is stored, why, and at what cost. `wanted`: the noise to signal that
        the outputs should have; infinite where no output has noise."""
        stored, role = self.reading
        made = self.made
        how = "is not rounded" if self.width == "float32" else f"is stored in {self.width}"
        if isinstance(stored, Node) and role == "products":
            made, how = next(iter(stored.users)), "reads weights of 16 bits"
        if self.is_table:
            made, how = next(iter(stored.users)), "reads a table of int16"
        ratio = self.noise / wanted
        share = f"{ratio:,.0f} times" if ratio > _OFTEN else f"{100 * ratio:.2g} % of"
        most = f"here alone they would make {share} the noise that the outputs should have at most"
        why = self.reason if self.why or wanted == math.inf else f"{self.reason}: {most}"
        while made.op == "call_module":  # an observer, of the value before it
            made = made.all_input_nodes[0]
        source, what = source_of(made), "store" if self.is_table else "move"
        cost = cost_of(self.reading, self.width) if role == "steps" else self.cost  # a search counts those as free
        return f"{made.name}: {how} {why}, for {_bytes(cost)} more to {what}" + (f" ({source})" if source else "")


def stays_exact(stored: Stored, role: Role) -> bool:
    """Whether int16 leaves nothing to float32, in which devices differ in the last bit. If one slice of a weighted sum
    is wider than the others, the sum is computed in float32."""
    return stored.width == "int8" and all(map(reads_int16, stored.readers(role))) and not is_slice(stored)


def ranked(storage: Storage, rounder: Rounder, need: Mapping[Reading, float]) -> list[Step]:
    """All steps that may be taken, ordered by what they gain for their cost, the largest first."""
    found = [unrounded(stored) for stored in storage.stored if stored.readers("steps")]
    for reading, amount in need.items():
        left = amount
        for width, remains in _widths_of(reading, rounder) if reading[1] != "steps" else ():
            found.append(Step(reading, width, amount, left - amount * remains, cost_of(reading, width)))
            left = amount * remains
    return sorted(found, key=lambda step: -step.gain / step.cost)


def at_once(reading: Reading, width: Width, why: str, rule: str) -> Step:
    """A step that is taken whatever noise was measured, since a rule says so."""
    return Step(reading, width, 0.0, math.inf, cost_of(reading, width), why, rule)


def unrounded(stored: Stored, why: str = "since whole numbers follow from it") -> Step:
    """Leaves a value unrounded for what takes steps."""
    return Step((stored, "steps"), "float32", 0.0, math.inf, 1.0, why)


def with_choices(every: Sequence[Step], taken: Sequence[Step]) -> list[Step]:
    """The steps that are taken, and if one of them leaves a value unrounded for a choice, all such steps. A choice
    follows from several values, such as the ends of intervals; between one that is rounded and one that is not there
    may be a gap."""
    done = {step.reading for step in taken}
    choices = [step for step in every if step.reading[1] == "steps"]
    if done.isdisjoint(step.reading for step in choices):
        return [*taken]
    return [*taken, *(step for step in choices if step.reading not in done)]


def cheap(storage: Storage, steps: Sequence[Step], taken: Sequence[Step]) -> list[Step]:
    """Of these steps those that were not taken and together cost next to nothing. They are worth that, since other
    inputs reach further than those of the calibration, and int16 has room for them. Tables are left out, since no input
    changes their rows."""
    left = max(NOTHING * traffic(storage), LITTLE)
    done, found = {step.reading for step in taken}, list[Step]()
    for step in sorted(steps, key=lambda step: step.cost):
        stored, role = step.reading
        exact = isinstance(stored, Node) or stays_exact(stored, role)
        fits = step.width == "int16" and role == "others" and exact and not step.is_table
        if fits and step.reading not in done and step.cost <= left:
            found.append(replace(step, why="since that costs next to nothing", rule="cheap"))
            left -= step.cost
    return found


def traffic(storage: Storage) -> float:
    """The cost of a network in int8, in bytes moved."""
    return sum(map(_traffic, storage.stored))


def widths(steps: Sequence[Step]) -> dict[Reading, Width]:
    """The width of each value for each role by these steps."""
    return {step.reading: step.width for step in steps}


def _widths_of(reading: Reading, rounder: Rounder) -> list[tuple[Width, float]]:
    """The widths above 8 bits that a value may have for a role, and the share of its noise that each leaves."""
    stored, role = reading
    if isinstance(stored, Node):
        return [("int16", 0.0)]
    found: list[tuple[Width, float]] = []
    if is_recurrent(stored):
        return found
    if stored.width == "int8" and (role == "others" or all(map(reads_int16, stored.readers(role)))):
        finer = rounder.scale(stored, "int16")[0] / rounder.scale(stored, "int8")[0]
        found.append(("int16", finer**2))
    return found if role == "sums" else [*found, ("float32", 0.0)]


def is_slice(stored: Stored) -> bool:
    """Whether values are slices of a weighted sum's result that are stored each by itself."""
    return bool(sliced(stored))


def sliced(stored: Stored) -> set[Node]:
    """The weighted sums of whose results values are slices that are stored each by itself."""
    sums = ((moved(value), value) for value in map(stored.value, stored.nodes))
    return {made for made, value in sums if isinstance(kind(made), WeightedSum) and size_of(value) < size_of(made)}


def is_recurrent(stored: Stored) -> bool:
    """Whether values are results of a recurrent layer, which has no others than int8: it would be computed in
    float32."""
    return any(isinstance(kind(moved(stored.value(node))), Recurrent) for node in stored.nodes)


def moved(value: Node) -> Node:
    """The node whose result a value is, before it was moved or a part of it taken."""
    while value.target is operator.getitem or isinstance(kind(value), Moves):
        value = value.all_input_nodes[0]
    return value


def reads_int16(user: Node) -> bool:
    """Whether an operator has a kernel that reads int16, or is a recurrent layer, of which a linear reads the input."""
    int8 = kind(user)
    return int8 is not None and (int8.reads_int16 or isinstance(int8, Recurrent))


def cost_of(reading: Reading, width: Width) -> float:
    """The cost of widening a value for a role, in bytes moved."""
    stored, role = reading
    if isinstance(stored, Node) and role == "others" and stored.op == "call_module":  # a table: what a file grows by
        return float(size_of(stored))
    if isinstance(stored, Node):
        return size_of(stored) + sum(map(multiply_adds_of_input, stored.users)) / MACS_A_BYTE
    readers = stored.readers(role)
    size = float(sum(size_of(node) for node in stored.nodes if role in stored.roles(node)))
    exact = width == "int16" and all(map(reads_int16, readers))
    moved = size * (1 + len(readers)) * (1 if exact else 4)
    macs = sum(multiply_adds_of_input(user) * (PARTS if is_in_attention(user) else 1) for user in readers)
    return max(1.0, moved + macs / MACS_A_BYTE * (1 if width == "int16" else 4))


def _traffic(stored: Stored) -> float:
    """The cost of a value in int8, with the multiply-adds of its readers, in bytes moved."""
    readers = [user for users in stored.users.values() for user in users]
    return len(readers) * float(size_of(stored.nodes[0])) + sum(map(multiply_adds_of_input, readers)) / MACS_A_BYTE


def _bytes(cost: float) -> str:
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"
