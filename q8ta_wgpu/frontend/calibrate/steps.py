"""Steps: values that may be stored in more than 8 bits, by how much that lowers the noise, and what it costs."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver
from q8ta_wgpu.frontend.calibrate.rounder import Rounder
from q8ta_wgpu.frontend.calibrate.row_scales import operands
from q8ta_wgpu.frontend.calibrate.simulate import decibels
from q8ta_wgpu.frontend.calibrate.stored import Role, Storage, Stored, Width
from q8ta_wgpu.frontend.multiply_adds import multiply_adds_of_input, size_of
from q8ta_wgpu.frontend.nodes import is_in_attention, is_transform, kind, source_of
from q8ta_wgpu.graph_quantization.ranges import FEW
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Moves, Recurrent, Rowwise, WeightedSum

_MACS_A_BYTE = 8.0
"""The number of multiply-adds that take as long as moving a byte, as in kernels/product/weighted.py."""

_PARTS = 8
"""By what factor an attention costs more if its operands are wide: it becomes three operators with several products
each."""

_NEAR = 32
"""A divisor whose smallest value is fewer int16 steps than this comes near zero: its largest value is at least 512
times its smallest, or 256 times with more room, and for other inputs it may come nearer."""

_DIVIDES = {"aten.div.Tensor": 1, "aten.reciprocal.default": 0, "aten.rsqrt.default": 0}
"""Operators that divide, and the index of the argument by which they divide."""

_ROOT = "aten.sqrt.default"

_EXPONENTIALS = ("aten.exp.default", "aten.exp2.default", "aten.expm1.default")

_NOTICED = 2.0**-8
"""A change of an exponential's argument that leaves 59 dB of its signal, as a step of int16."""

_KEEP_TAILS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor")
"""Operators whose results are far larger for few elements if those of an operand are."""

NOTHING = 0.01
"""The share of what a network moves and computes whose time nobody notices."""

_LITTLE = 2.0**15
"""Bytes that move in less time than a dispatch takes to begin. Nobody notices that time either."""


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
    """

    reading: Reading
    width: Width
    noise: float
    gain: float
    cost: float
    why: str = ""

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
        the outputs should have."""
        stored, role = self.reading
        made = self.made
        how = "is not rounded" if self.width == "float32" else f"is stored in {self.width}"
        if isinstance(stored, Node) and role == "products":
            made, how = next(iter(stored.users)), "reads weights of 16 bits"
        if self.is_table:
            made, how = next(iter(stored.users)), "reads a table of int16"
        left = f"{decibels(self.noise):.1f} dB, where all values together should leave {decibels(wanted):.1f}"
        why = self.reason if self.why else f"{self.reason}; here alone they would leave the outputs {left}"
        source, what = source_of(made), "store" if self.is_table else "move"
        cost = _cost(self.reading, self.width) if role == "steps" else self.cost  # a search counts those as free
        return f"{made.name}: {how} {why}, for {_bytes(cost)} more to {what}" + (f" ({source})" if source else "")


def always(storage: Storage) -> list[Step]:
    """The steps that are taken whatever noise was measured.

    * Scores that a softmax reads from memory. Its shares follow from the distance of each score from the largest.
      Scores that are larger than all of the calibration would be clipped, and would then have equal shares.
    * Results of which calibration met few values, such as one number for each input. One in some dozens of inputs would
      exceed their range.
    * What an exponential above 1 reads whose result others than layers read. An argument that is larger than all of the
      calibration would be clipped, and the result would be too small by a factor.
    * What such an exponential gives, and its sums and products, such as the sizes of boxes. Few of them are far larger
      than the others.
    * Divisors that come near zero.
    * Values of which the module asks which elements are infinite or NaN."""
    found = asked(storage)
    for stored in storage.stored:
        readers = stored.readers("others") if stored.width == "int8" else []
        why = ""
        if _is_recurrent(stored):
            continue
        if any(map(_is_softmax, readers)):
            why = "since a softmax tells the largest apart"
        elif any(user.op == "output" for user in readers) and 0 < _met(stored) < FEW:
            why = "since other inputs reach further than the few values that calibration met"
        if why:
            reading: Reading = (stored, "others")
            found.append(Step(reading, "int16", 0.0, math.inf, _cost(reading, "int16"), why))
    results = (stored for stored in storage.stored if stored.readers("others"))
    read = (argument for stored in results for argument in _arguments_of_exp(storage, stored))
    why = "since an exponential makes larger what calibration did not reach"
    arguments = [_finer(step) for step in _with_slices(storage, read, why)]
    given = [step for step in _exponentials(storage) if step.reading not in widths(arguments)]
    return [*found, *arguments, *given, *_divisors(storage)]


def _finer(step: Step) -> Step:
    """A step to int16 of what an exponential reads, or to float32 where a step of int16 would change the exponential
    noticeably. That is so where values share their scale with far larger ones, as in a cat with sizes of boxes."""
    stored, _ = step.reading
    if isinstance(stored, Node) or float(stored.wide.calculate_qparams()[0]) < _NOTICED:
        return step
    return replace(step, width="float32", cost=_cost(step.reading, "float32"))


def of_few(storage: Storage, known: Mapping[Reading, Width]) -> list[Step]:
    """Stores values in int16 of which calibration met few, for all readers but layers, as long as that costs next to
    nothing: such as the matrix that turns all points of an item. The cost includes what is computed from them, which
    other kernels may have to compute. Readings with `known` widths are left out."""
    why = "since other inputs reach further than the few values that calibration met"
    roles: tuple[Role, ...] = ("products", "others")
    few = [
        stored
        for stored in storage.stored
        if 0 < _met(stored) < FEW and not stored.readers("sums") and not _is_recurrent(stored)
        if any(stored.value(node).op != "get_attr" for node in stored.nodes)
    ]
    found = [
        (sum(map(size_of, readers)), Step(reading, "int16", 0.0, math.inf, _cost(reading, "int16"), why))
        for reading in itertools.product(few, roles)
        if (readers := reading[0].readers(reading[1])) and _stays_exact(*reading) and reading not in known
    ]
    found.sort(key=lambda pair: pair[0] + pair[1].cost)
    costs = itertools.accumulate(size + step.cost for size, step in found)
    most = max(NOTHING * traffic(storage), _LITTLE)
    return [step for (_, step), cost in zip(found, costs, strict=True) if cost <= most]


def _stays_exact(stored: Stored, role: Role) -> bool:
    """Whether int16 leaves nothing to float32, in which devices differ in the last bit. If one slice of a weighted sum
    is wider than the others, the sum is computed in float32."""
    return stored.width == "int8" and all(map(_reads_int16, stored.readers(role))) and not _is_slice(stored)


def _arguments_of_exp(storage: Storage, stored: Stored) -> Iterator[Stored]:
    """The int8 values of which this value is an exponential, perhaps with functions before and behind it."""
    for node in map(stored.value, stored.nodes):
        found = False
        while isinstance(kind(node), Elementwise | Arithmetic) and len(node.all_input_nodes) == 1:
            found = found or str(node.target) in _EXPONENTIALS
            (node,) = node.all_input_nodes
        if found and node in storage.values and float(getattr(storage.values[node].observer, "max_val", 0.0)) > 0.0:
            yield storage.values[node]


def _exponentials(storage: Storage) -> list[Step]:
    """Stores exponentials above 1 in int16, and their sums and products, for all readers but layers and products."""
    large = set[Node]()
    for node in storage.module.graph.nodes:
        first, *_ = node.all_input_nodes or (None,)
        if str(node.target) in _EXPONENTIALS:
            met = getattr(storage.values[first].observer, "max_val", 0.0) if first in storage.values else 1.0
            grows = float(met) > 0.0
        elif str(node.target) in _KEEP_TAILS:
            grows = not large.isdisjoint(node.all_input_nodes)
        else:
            grows = first in large and (node in storage.values or isinstance(kind(node), Moves))
        if grows:
            large.add(node)
    why = "since few exponentials are far larger than the others"
    readings: list[Reading] = [
        (stored, "others")
        for stored in storage.stored
        if stored.width == "int8" and not large.isdisjoint(stored.nodes) and stored.readers("others")
    ]
    return [Step(reading, "int16", 0.0, math.inf, _cost(reading, "int16"), why) for reading in readings]


def _divisors(storage: Storage) -> list[Step]:
    """Leaves divisors that come near zero unrounded, since what counts is their relative error. So are the terms of a
    sum that is such a divisor; the dividend may be one of them."""
    by = (node.args[_DIVIDES[str(node.target)]] for node in storage.module.graph.nodes if str(node.target) in _DIVIDES)
    read = (storage.values[node] for node in by if isinstance(node, Node) and node in storage.values)
    found = dict.fromkeys(stored for stored in read if _is_near_zero(stored))
    for stored in (waiting := list(found)):
        new = [part for part in _made_of(storage, stored) if part not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    roles: tuple[Role, ...] = ("products", "others")
    readings: list[Reading] = [(stored, role) for stored in found for role in roles if stored.readers(role)]
    why = "since what is divided by comes near zero"
    return [Step(reading, "float32", 0.0, math.inf, _cost(reading, "float32"), why) for reading in readings]


def _is_near_zero(stored: Stored) -> bool:
    """Whether values have one sign, and the one nearest to zero is few steps of int16 from it."""
    least = max(float(stored.observer.min_val), -float(stored.observer.max_val))
    return 0 < least < _NEAR * float(stored.wide.calculate_qparams()[0])


def _made_of(storage: Storage, stored: Stored) -> list[Stored]:
    """The stored values, none of them negative, whose sum, product, copy or root a value is. Its relative error is then
    as large as theirs."""
    found: dict[Stored, None] = {}
    for made in (waiting := [stored.value(node) for node in stored.nodes]):
        keeps = isinstance(kind(made), Arithmetic | Moves) or is_transform(made) or str(made.target) == _ROOT
        for node in made.all_input_nodes if keeps else ():
            if node in storage.values:
                found[storage.values[node]] = None
            elif node.op == "call_function" and node not in waiting:
                waiting.append(node)
    return [part for part in found if float(part.observer.min_val) >= 0]


def beside_states(storage: Storage, nodes: Iterable[Node]) -> list[Step]:
    """Stores values in int16 that are computed beside a state whose errors last for more calls than are simulated, for
    all readers but layers.

    Such errors add up. Besides, such a state changes slowly, so calibration meets few different values of it, and it
    reaches further in use."""
    read = (storage.values[node] for node in nodes if node in storage.values)
    return _with_slices(storage, read, "since errors of a state add up from call to call")


def _with_slices(storage: Storage, read: Iterable[Stored], why: str) -> list[Step]:
    """Stores values in int16 for all readers but layers. Of slices of a weighted sum all are stored so, or none: if one
    is wider than the others, the sum is computed in float32. What recurrent layers give stays as it is."""
    values = dict.fromkeys(stored for stored in read if not _is_recurrent(stored))
    sums = {made for stored in values for made in _sliced(stored)}
    values |= {stored: None for stored in storage.stored if not sums.isdisjoint(_sliced(stored))}
    roles: tuple[Role, ...] = ("products", "others")
    readings: list[Reading] = [
        (stored, role)
        for stored in values
        for role in roles
        if stored.width == "int8" and (readers := stored.readers(role))
        if role == "others" or all(map(_reads_int16, readers))
    ]
    return [Step(reading, "int16", 0.0, math.inf, _cost(reading, "int16"), why) for reading in readings]


def _met(stored: Stored) -> float:
    """The number of values that an observer counted; 0 if its range does not follow from data."""
    return float(stored.observer.histogram.sum()) if type(stored.observer) is RangeObserver else 0.0


def by_rows(storage: Storage) -> list[Step]:
    """Stores values in int16 if all weighted sums that read them are linears. The device rounds each of their rows to
    int8 by a scale of its own."""
    why = "since the device chooses a scale for each of its rows"
    return [
        Step((stored, "sums"), "int16", 0.0, math.inf, size_of(stored.nodes[0]), why)
        for stored in storage.stored
        if (readers := stored.readers("sums")) and all(_multiplies_rows(storage, user) for user in readers)
    ]


def _multiplies_rows(storage: Storage, user: Node) -> bool:
    found = operands(user)
    return found is not None and found[1] in storage.weights


def ranked(storage: Storage, rounder: Rounder, need: Mapping[Reading, float]) -> list[Step]:
    """All steps that may be taken, ordered by what they gain for their cost, the largest first."""
    found = [unrounded(stored) for stored in storage.stored if stored.readers("steps")]
    for reading, amount in need.items():
        left = amount
        for width, remains in _widths_of(reading, rounder) if reading[1] != "steps" else ():
            found.append(Step(reading, width, amount, left - amount * remains, _cost(reading, width)))
            left = amount * remains
    return sorted(found, key=lambda step: -step.gain / step.cost)


def unrounded(stored: Stored, why: str = "since whole numbers follow from it") -> Step:
    """Leaves a value unrounded for what takes steps."""
    return Step((stored, "steps"), "float32", 0.0, math.inf, 1.0, why)


def asked(storage: Storage) -> list[Step]:
    """Leaves values unrounded for calls that ask which elements are infinite or NaN."""
    return [unrounded(stored, "since the module asks where it is infinite or NaN") for stored in storage.asked()]


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
    left = max(NOTHING * traffic(storage), _LITTLE)
    done, found = {step.reading for step in taken}, list[Step]()
    for step in sorted(steps, key=lambda step: step.cost):
        stored, role = step.reading
        exact = isinstance(stored, Node) or _stays_exact(stored, role)
        fits = step.width == "int16" and role == "others" and exact and not step.is_table
        if fits and step.reading not in done and step.cost <= left:
            found.append(replace(step, why="since that costs next to nothing"))
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
    if _is_recurrent(stored):
        return found
    if stored.width == "int8" and (role == "others" or all(map(_reads_int16, stored.readers(role)))):
        finer = rounder.scale(stored, "int16")[0] / rounder.scale(stored, "int8")[0]
        found.append(("int16", finer**2))
    return found if role == "sums" else [*found, ("float32", 0.0)]


def _is_slice(stored: Stored) -> bool:
    """Whether values are slices of a weighted sum's result that are stored each by itself."""
    return bool(_sliced(stored))


def _sliced(stored: Stored) -> set[Node]:
    """The weighted sums of whose results values are slices that are stored each by itself."""
    sums = ((_moved(value), value) for value in map(stored.value, stored.nodes))
    return {made for made, value in sums if isinstance(kind(made), WeightedSum) and size_of(value) < size_of(made)}


def _is_recurrent(stored: Stored) -> bool:
    """Whether values are results of a recurrent layer, which has no others than int8: it would be computed in
    float32."""
    return any(isinstance(kind(_moved(stored.value(node))), Recurrent) for node in stored.nodes)


def _moved(value: Node) -> Node:
    """The node whose result a value is, before it was moved or a part of it taken."""
    while value.target is operator.getitem or isinstance(kind(value), Moves):
        value = value.all_input_nodes[0]
    return value


def _is_softmax(user: Node) -> bool:
    int8 = kind(user)
    return isinstance(int8, Rowwise) and int8.masked


def _reads_int16(user: Node) -> bool:
    int8 = kind(user)
    return int8 is not None and (int8.reads_int16 or isinstance(int8, Recurrent))  # a linear is what reads its input


def _cost(reading: Reading, width: Width) -> float:
    """The cost of widening a value for a role, in bytes moved."""
    stored, role = reading
    if isinstance(stored, Node) and role == "others" and stored.op == "call_module":  # a table: what a file grows by
        return float(size_of(stored))
    if isinstance(stored, Node):
        return size_of(stored) + sum(map(multiply_adds_of_input, stored.users)) / _MACS_A_BYTE
    readers = stored.readers(role)
    size = float(sum(size_of(node) for node in stored.nodes if role in stored.roles(node)))
    exact = width == "int16" and all(map(_reads_int16, readers))
    moved = size * (1 + len(readers)) * (1 if exact else 4)
    macs = sum(multiply_adds_of_input(user) * (_PARTS if is_in_attention(user) else 1) for user in readers)
    return max(1.0, moved + macs / _MACS_A_BYTE * (1 if width == "int16" else 4))


def _traffic(stored: Stored) -> float:
    """The cost of a value in int8, with the multiply-adds of its readers, in bytes moved."""
    readers = [user for users in stored.users.values() for user in users]
    return len(readers) * float(size_of(stored.nodes[0])) + sum(map(multiply_adds_of_input, readers)) / _MACS_A_BYTE


def _bytes(cost: float) -> str:
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"
