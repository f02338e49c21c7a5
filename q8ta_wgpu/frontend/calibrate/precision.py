"""As many bits as a value needs: which values are stored in 16 bits, or not rounded at all.

The yardstick is the network whose weighted sums read int8 values and int8 weights and that rounds nothing else. Where
int8 everywhere is more than half a decibel below it, values are widened, the largest noise for each cost first, until
the module as it will be stored, simulated on inputs of the calibration, comes near it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.fx import GraphModule, Node

from q8ta_wgpu.frontend.calibrate.need import Reading, needs
from q8ta_wgpu.frontend.calibrate.simulate import (
    ROLES,
    Reads,
    Rounder,
    Run,
    Storage,
    Views,
    Width,
    known_scales,
    noise,
    shares_of_255,
)
from q8ta_wgpu.frontend.calibrate.widen import widen
from q8ta_wgpu.frontend.nodes import integer, is_in_attention, kind, named_arguments, source_of
from q8ta_wgpu.ir.int8 import Product, WeightedSum

_INPUTS = 4
"""Inputs of the calibration that are simulated, in as few items as hold so many."""

_LEAST = 64
"""Inputs besides those that are simulated from which ranges are known without them."""

_DECIBEL = 10**0.1
_WITHIN = 10**0.05
"""How much more noise than the yardstick's is left: half a decibel, since other inputs lose more than those that are
simulated."""

_SPARE = 10**0.03
"""How much less noise than that is asked for where values are widened."""

_NEARLY = 10**0.03
"""How much more noise than with everything wide is left where the yardstick is out of reach."""

_PARTS_TRIED, _ROUNDS = 8, 2
"""Parts of the values that are widened, each of which is tried in 8 bits again, and how often, in smaller parts."""

_SILENT = 1e-8
"""Noise to signal that no output notices, whatever the yardstick has."""

_MACS_A_BYTE = 8.0
"""Multiply-adds in the time in which a byte is moved, as in kernels/product/weighted.py."""

_SHORT = 1.5
"""dB below the yardstick from which a user is warned that 16 bits do not do."""

_FINE = 40.0
"""Signal to noise in dB from which nobody is warned."""

_PARTS = 8
"""By how much more an attention costs whose operands are wide: it is three operators with several products each."""

_POOR = 10.0
"""Signal to noise in dB below which a user is warned, whatever the yardstick has."""


@dataclass(frozen=True)
class Step:
    """A value that may be stored in more than 8 bits.

    Attributes:
        reading: the value and the role in which it is read.
        width: how it is stored instead.
        noise: what its rounding to 8 bits makes at the outputs, as a ratio of powers.
        gain: by how much less it is.
        cost: what it costs, in bytes moved.
    """

    reading: Reading
    width: Width
    noise: float
    gain: float
    cost: float

    @property
    def note(self) -> str:
        """What is stored, why and for what, for the report."""
        stored, role = self.reading
        made = stored if isinstance(stored, Node) else stored.value(stored.nodes[0])
        how = "is not rounded" if self.width == "float32" else f"is stored in {self.width}"
        why = "since whole numbers follow from it" if role == "steps" else "since 8 bits are too few"
        what = "" if role == "steps" else f"; alone they would leave {decibels(self.noise):.1f} dB"
        source = source_of(made)
        return f"{made.name}: {how} {why}{what}, for {_bytes(self.cost)} more to move" + (
            f" ({source})" if source else ""
        )


@dataclass(frozen=True)
class Precision:
    """What was chosen, and what it is expected to give: signal to noise, in dB, of the output that is farthest below
    the yardstick.

    Attributes:
        notes: a sentence for each value that is widened, dearest first.
        yardstick: of a network that rounds only what weighted sums read, and their weights.
        int8: of int8 everywhere.
        predicted: of the choice.
    """

    notes: tuple[str, ...]
    yardstick: float
    int8: float
    predicted: float

    @property
    def warning(self) -> str:
        """What a user should know; empty if all is well."""
        if self.predicted >= max(min(self.yardstick - _SHORT, _FINE), _POOR):
            return ""
        way = "calibrate with inputs as in use, or leave layers in float: Quantizer(skip=[...]); compare names them"
        if self.yardstick < _POOR:
            return (
                f"the outputs are predicted to keep {self.predicted:.1f} dB of signal to noise. Rounding nothing but "
                f"weights and what layers read leaves {self.yardstick:.1f} dB: the network makes noise larger; {way}"
            )
        return (
            f"the outputs are predicted to keep {self.predicted:.1f} dB of signal to noise, where rounding nothing but "
            f"weights and what layers read leaves {self.yardstick:.1f} dB; {way}"
        )


def decibels(ratio: float) -> float:
    """Signal to noise in dB of noise to signal, at most 120."""
    return min(120.0, -10 * math.log10(max(ratio, 1e-30)))


class HeldBack:
    """The first items of a calibration, which observers meet last: until then their ranges are those of other inputs.

    Args:
        observed: a module with observers.
        example: arguments of one item.

    Attributes:
        items: the first ones, as many as hold a few inputs.
        before: scale and zero point of each observer of a whole tensor before it met them, by its call's target; empty
            where there were few other items.
    """

    def __init__(self, observed: GraphModule, example: Sequence[Tensor]) -> None:
        self._observed = observed
        self._each = max(1, min((len(x) for x in example if x.dim()), default=1))
        self._count = -(-_INPUTS // self._each)
        self.items: list[tuple[Tensor, ...]] = []
        self.before: dict[str, tuple[float, int]] = {}

    def order(self, items: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
        """All items with their places, the first ones last."""
        others = 0
        for index, item in enumerate(items):
            if index < self._count:
                self.items.append(tuple(x.clone() for x in item))
            else:
                others += self._each
                yield index, item
        if others >= _LEAST:
            self.before = known_scales(self._observed)
        yield from enumerate(self.items)


class Precisions:
    """A calibrated module in float and as the yardstick has it, before its weights are rounded.

    Args:
        observed: with observers that met the calibration.
        back: the inputs that are simulated.
    """

    def __init__(self, observed: GraphModule, back: HeldBack) -> None:
        self.module, self.items = observed, back.items
        self.storage, self.rounder = Storage(observed), Rounder(back.before)
        self.floats = self._outputs(self._unrounded, _same, _same)
        self.yardstick = noise(self._outputs(self._of_sums, self._weight, _same), self.floats)
        self._allowed = list(map(_allowed, self.yardstick, self.floats[0]))

    def is_worse(self) -> bool:
        """Whether the yardstick has more noise on some output, more than is left, with the weights as they are."""
        found = noise(self._outputs(self._of_sums, self._weight, _same), self.floats)
        return any(map(operator.gt, found, self._allowed))

    def choose(self) -> Precision | None:
        """Widens what needs it, in the module itself; None where no output has a yardstick."""
        plain = predicted = self._noise({})
        short = [i for i, ratio in enumerate(plain) if ratio > self._allowed[i]]
        steps: Sequence[Step] = ()
        if short:
            steps = self._enough(self._ranked(needs(self.storage, self.rounder, self.items, short)))
            predicted = self._noise(_widths(steps))
        last = {step.reading: step for step in steps}
        notes = tuple(step.note for step in steps if last[step.reading] is step)
        widen(self.module, self.storage, _widths(steps))
        judged = [i for i, allowed in enumerate(self._allowed) if allowed < math.inf]
        if not judged:
            return None
        worst = max(judged, key=lambda i: (plain if short else predicted)[i] / self._allowed[i])
        return Precision(notes, *(decibels(found[worst]) for found in (self.yardstick, plain, predicted)))

    def _enough(self, ranked: Sequence[Step]) -> list[Step]:
        """As many of these, from the first on, as have to be taken, without parts that turn out not to be needed, the
        dearest tried first: noise to first order says nothing of a value that a network divides by its own norm near
        zero. What costs as much as all the others is needed where more than a decibel is lost without it. Where the
        yardstick is out of reach, as many are taken as come near to what all of them give."""
        best = self._noise(_widths(ranked))
        limits = [max(allowed / _SPARE, _NEARLY * ratio) for allowed, ratio in zip(self._allowed, best, strict=True)]

        def suffices(steps: Sequence[Step], more: float = 1.0) -> bool:
            found = self._noise(_widths(steps))
            return not any(ratio > more * limit for ratio, limit in zip(found, limits, strict=True))

        low, high = 0, len(ranked)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(ranked[:middle]) else (middle + 1, high)
        steps = list(ranked[:high])
        for _ in range(_ROUNDS if len(steps) > _PARTS_TRIED else 1):
            dearest = sorted(steps, key=lambda step: -step.cost)
            size = max(1, -(-len(steps) // _PARTS_TRIED))
            for part in (dearest[at : at + size] for at in range(0, len(dearest), size)):
                fewer = [step for step in steps if step not in part]
                dearer = sum(step.cost for step in part) > sum(step.cost for step in fewer)
                steps = fewer if suffices(fewer, _DECIBEL * _SPARE / _WITHIN if dearer else 1.0) else steps
        return steps

    # --- what is simulated ---

    def _noise(self, chosen: Mapping[Reading, Width]) -> list[float]:
        """The noise of each output with these values widened."""

        def views(node: Node, value: Tensor) -> Views:
            stored = self.storage.values[node]
            widths = {role: chosen[stored, role] for role in ROLES if (stored, role) in chosen}
            seen = {reads: stored.width_for(reads, widths) for reads in stored.users[node].values()}
            made = {width: self.rounder.rounded(stored, value, width) for width in set(seen.values())}
            return {reads: made[width] for reads, width in seen.items()}

        def shares(node: Node, value: Tensor) -> Tensor:
            return value if (node, "others") in chosen else shares_of_255(value)

        return noise(self._outputs(views, self._weight, shares), self.floats)

    def _outputs(
        self,
        views: Callable[[Node, Tensor], Views],
        weight: Callable[[Node, Tensor], Tensor],
        shares: Callable[[Node, Tensor], Tensor],
    ) -> list[list[Tensor]]:
        return [Run(self.storage, views, weight, shares).outputs(item) for item in self.items]

    def _unrounded(self, node: Node, value: Tensor) -> Views:
        return dict.fromkeys(self.storage.values[node].users[node].values(), value)

    def _of_sums(self, node: Node, value: Tensor) -> Views:
        stored, found = self.storage.values[node], dict(self._unrounded(node, value))
        sums = Reads(frozenset({"sums"}))
        if sums in found:
            found[sums] = self.rounder.rounded(stored, value, stored.width)
        return found

    def _weight(self, node: Node, value: Tensor) -> Tensor:
        return self.rounder.weight(node, value, self.storage.weights[node])

    # --- what may be widened, and what it costs ---

    def _ranked(self, need: Mapping[Reading, float]) -> list[Step]:
        """What may be widened, the most noise for the cost first."""
        found = [
            Step((stored, "steps"), "float32", 0.0, math.inf, 1.0)
            for stored in self.storage.stored
            if stored.readers("steps")
        ]
        for reading, amount in need.items():
            left = amount
            for width, remains in self._widths_of(reading) if reading[1] != "steps" else ():
                found.append(Step(reading, width, amount, left - amount * remains, _cost(reading, width)))
                left = amount * remains
        return sorted(found, key=lambda step: -step.gain / step.cost)

    def _widths_of(self, reading: Reading) -> list[tuple[Width, float]]:
        """The widths that a value may have for its readers, and the share of the noise of 8 bits that each leaves."""
        stored, role = reading
        if isinstance(stored, Node):
            return [("int16", 0.0)]
        found: list[tuple[Width, float]] = []
        if stored.width == "int8" and (role == "others" or all(map(_reads_int16, stored.readers(role)))):
            finer = self.rounder.scale(stored, "int16")[0] / self.rounder.scale(stored, "int8")[0]
            found.append(("int16", finer**2))
        return found if role == "sums" else [*found, ("float32", 0.0)]


def _widths(steps: Sequence[Step]) -> dict[Reading, Width]:
    return {step.reading: step.width for step in steps}


def _allowed(ratio: float, output: Tensor) -> float:
    """How much noise an output may have where the yardstick has this. Of elements that are no floats, so many more may
    differ as do by chance."""
    if not ratio:
        return math.inf
    chance = 0.0 if output.dtype.is_floating_point else ratio + 2 * math.sqrt(ratio / output.numel())
    return max(_WITHIN * ratio, chance, _SILENT)


def _same(node: Node, value: Tensor) -> Tensor:
    return value


def _reads_int16(user: Node) -> bool:
    int8 = kind(user)
    return int8 is not None and int8.reads_int16


def _cost(reading: Reading, width: Width) -> float:
    """What widening a value costs, in bytes moved."""
    stored, role = reading
    if isinstance(stored, Node):
        return _size(stored) + sum(map(_macs, stored.users)) / _MACS_A_BYTE
    readers = stored.readers(role)
    size = float(sum(_size(node) for node in stored.nodes if role in stored.roles(node)))
    exact = width == "int16" and all(map(_reads_int16, readers))
    moved = size * (1 + len(readers)) * (1 if exact else 4)
    macs = sum(_macs(user) * (_PARTS if is_in_attention(user) else 1) for user in readers)
    return max(1.0, moved + macs / _MACS_A_BYTE * (1 if width == "int16" else 4))


def _bytes(cost: float) -> str:
    return f"{cost / 1e3:.3g} kB" if cost < 1e6 else f"{cost / 1e6:.3g} MB"


def _macs(user: Node) -> int:
    """Multiply-adds of a weighted sum or a product."""
    if not isinstance(kind(user), WeightedSum | Product):
        return 0
    weight = named_arguments(user).get("weight")
    if isinstance(weight, Node):
        return _size(user) * math.prod(_shape(weight)[1:])
    return _size(user) * _shape(user.all_input_nodes[0])[-1]


def _size(node: Node) -> int:
    return math.prod(_shape(node))


def _shape(node: Node) -> tuple[int, ...]:
    """The shape of a call's result, or of what an observer watches."""
    while node.op == "call_module":
        (node,) = node.all_input_nodes
    value = node.meta.get("val")
    return tuple(map(integer, value.shape)) if isinstance(value, Tensor) and value.dim() else (1,)
