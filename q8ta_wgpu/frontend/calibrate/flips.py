"""Choices that flip: orders, indices and other whole numbers that change where what they follow from is rounded.

A choice between values that are nearly equal flips by any error, but such choices are rare. The few inputs that are
simulated may show none, whatever is rounded. So errors are simulated that are several times as large: as many times
more choices flip, and their noise has as many times the power. Errors are added in one run and subtracted in another.
What is smooth cancels out in the sum of both changes, and what flips does not. Neither does a kink, as of an activation
that is written as a comparison and `where`. Its noise grows with the cube of the errors, which tells it from flips.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.noise import noise
from q8ta_wgpu.frontend.calibrate.rounder import Rounder
from q8ta_wgpu.frontend.calibrate.simulate import Run, View, Views, Weight, same_weight, softmax
from q8ta_wgpu.frontend.calibrate.stored import Storage, Stored
from q8ta_wgpu.frontend.calibrate.successive_calls import Calls

_TIMES = 8.0
"""By what factor the errors that are simulated are larger than those of 8 bits. Twice as large ones are simulated as
well."""

_KINKS = 5.2
"""By what factor noise grows at least from errors to twice as large ones if kinks make it. Flips double it, kinks make
it eight times as large; of a few dozen flips it was up to 5.1 times, of small networks' kinks at least 5.3."""

_NOTICED = 0.1
"""The share of an output's allowed noise from which on flips count."""

_NOTHING = 1e-8
"""Noise to signal that is no flip, but the inexactness of floats."""

_MORE = 10**0.1 - 1
"""How much power the errors of 8 bits need to count, relative to the errors that the value has in the yardstick. Errors
with so much more power are a decibel larger, and an eighth more choices flip by them."""


class Flips:
    """Simulates the choices of a module.

    Args:
        storage: of the module.
        rounder: rounds to 8 bits.
        calls: the items that are simulated.
    """

    def __init__(self, storage: Storage, rounder: Rounder, calls: Calls) -> None:
        self._storage, self._rounder, self._calls = storage, rounder, calls
        self._values = dict.fromkeys(stored for stored in storage.stored if stored.readers("steps"))  # in order

    def values(self, allowed: Sequence[float], view: View, weight: Weight) -> list[Stored]:
        """The values that are too inexact in 8 bits for the choices that follow from them.

        Args:
            allowed: the noise to signal that each output may have, as a ratio of powers.
            view: a value as the yardstick gives it to its readers. Choices flip by the yardstick's errors, too.
            weight: a weight as the yardstick rounds it.
        """
        if not self._values or not self._matter(allowed):
            return []
        by_8_bits, by_yardstick = dict.fromkeys(self._values, 0.0), dict.fromkeys(self._values, 0.0)
        met: list[Tensor] = []

        def kept(node: Node, value: Tensor) -> Views:
            if (stored := self._storage.values[node]) in self._values:
                met.append(value)
                by_8_bits[stored] += _power(self._error(stored, value))
            return self._storage.unrounded(node, value)

        def compared(node: Node, value: Tensor) -> Views:
            if (stored := self._storage.values[node]) in self._values:
                by_yardstick[stored] += _power(value - next(exact))
            return view(node, value)

        self._outputs(kept, same_weight)
        exact = iter(met)
        self._outputs(compared, weight)
        return [stored for stored, power in by_8_bits.items() if power > _MORE * by_yardstick[stored]]

    def _matter(self, allowed: Sequence[float]) -> bool:
        """Whether flips are noticed in an output. An output of whole numbers consists of choices, so any flip is."""
        amounts = [x.is_floating_point() for x in self._calls.floats[0]]
        limits = [
            _NOTICED * most if amount and most < math.inf else 0.0
            for amount, most in zip(amounts, allowed, strict=True)
        ]
        return any(ratio > max(limit, _NOTHING) for ratio, limit in zip(self._noise(), limits, strict=True))

    def _noise(self) -> list[float]:
        """The noise to signal of each output by choices that flip where values are rounded to 8 bits."""
        found, twice = self._changes(_TIMES), self._changes(2 * _TIMES)
        amounts = [x.is_floating_point() for x in self._calls.floats[0]]
        kinks = [amount and b > _KINKS * a for amount, a, b in zip(amounts, found, twice, strict=True)]
        return [0.0 if kink else ratio / (2 * _TIMES) for kink, ratio in zip(kinks, found, strict=True)]

    def _changes(self, times: float) -> list[float]:
        """The noise to signal of each output by errors that are so many times as large, without what is smooth."""
        more, less = (self._outputs(functools.partial(self._shifted, by), same_weight) for by in (times, -times))
        found = []
        for exact, *changed in zip(self._calls.floats, more, less, strict=True):
            found.append([a + b - x if x.is_floating_point() else a for x, a, b in zip(exact, *changed, strict=True)])
        return noise(found, self._calls.floats)

    def _outputs(self, view: View, weight: Weight) -> list[list[Tensor]]:
        run = Run(self._storage, view, weight, softmax)
        return [given for sequence in self._calls.sequences() for given in self._calls.outputs(run.call, sequence)]

    def _shifted(self, times: float, node: Node, value: Tensor) -> Views:
        """Gives what takes steps a value with so many times its error by 8 bits, within the range of the value."""
        stored, found = self._storage.values[node], self._storage.unrounded(node, value)
        if stored in self._values:
            shifted = value.add(self._error(stored, value), alpha=times).clamp(*value.aminmax())
            found |= {reads: shifted for reads in found if "steps" in reads.roles and not reads.moves}
        return found

    def _error(self, stored: Stored, value: Tensor) -> Tensor:
        return self._rounder.rounded(stored, value, stored.width) - value


def _power(errors: Tensor) -> float:
    return float(errors.double().square().sum())
