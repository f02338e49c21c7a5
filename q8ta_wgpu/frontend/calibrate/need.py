"""How much of the outputs' noise the rounding of each value makes.

With e the rounding error of a value and g the gradient of the outputs under random signs, the mean of (g·e)² over the
signs is ‖J e‖², the error at the outputs to first order: errors that share a sign, as where most values round to zero,
are in it, and the sum of squares s²/12·Σg² leaves them out. (Hutchinson's estimator; "A Stochastic Estimator of the
Trace of the Influence Matrix", 1990.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.simulate import Role, Rounder, Run, Storage, Stored, Views, shares_of_255

SIGNS = 4
"""Vectors of random signs for each item, where nothing else is asked for."""

Reading = tuple[Stored | Node, Role]
"""A stored value, or the softmax of an attention, and the role in which it is read."""


def needs(
    storage: Storage, rounder: Rounder, items: Sequence[Sequence[Tensor]], outputs: Sequence[int], signs: int = SIGNS
) -> dict[Reading, float]:
    """The noise that rounding makes, for each value and role, beside the signal of these outputs, as a ratio of powers:
    the mean over the items and, for each, over so many vectors of random signs."""
    found: dict[Reading, float] = defaultdict(float)
    for number, item in enumerate(items):
        traced = _Traced(storage, rounder)
        with torch.enable_grad():
            floats = traced.run.outputs([x.detach() for x in item])
            wanted = [floats[i] for i in outputs if floats[i].requires_grad]
            if not wanted or not traced.views:
                continue
            random = torch.Generator().manual_seed(number)
            for _ in range(signs):
                given = [_signs(v, random) for v in wanted]
                gradients = torch.autograd.grad(wanted, traced.views, given, retain_graph=True, allow_unused=True)
                for reading, change in traced.changes(gradients).items():
                    found[reading] += change**2 / (signs * len(items) * len(wanted))
    return dict(found)


def _signs(value: Tensor, random: torch.Generator) -> Tensor:
    """Random signs, as large as makes the output's signal one."""
    signs = torch.randint(0, 2, value.shape, generator=random) * 2.0 - 1.0
    return signs / value.detach().double().square().sum().sqrt().clamp(min=1e-30).float()


class _Traced:
    """Runs a module in float and keeps, of each value and role, what is read and how rounding would change it.

    Attributes:
        run: of the module.
        views: what each role reads, of which gradients are taken.
    """

    def __init__(self, storage: Storage, rounder: Rounder) -> None:
        self.storage, self.rounder = storage, rounder
        self.views: list[Tensor] = []
        self._readings: list[tuple[Reading, Tensor]] = []
        self.run = Run(storage, self._view, lambda node, weight, reader: weight, self._share)

    def _view(self, node: Node, value: Tensor) -> Views:
        stored = self.storage.values[node]
        seen: Views = dict.fromkeys(stored.users[node].values(), value)
        if value.dtype != torch.float32:
            return seen
        error = self.rounder.rounded(stored, value.detach(), stored.width) - value.detach()
        return {
            reads: value if reads.moves else self._noted((stored, role), value, error)
            for reads in seen
            for role in reads.roles
        }

    def _share(self, node: Node, shares: Tensor) -> Tensor:
        return self._noted((node, "others"), shares, shares_of_255(shares.detach()) - shares.detach())

    def _noted(self, reading: Reading, value: Tensor, error: Tensor) -> Tensor:
        value = value.clone() if value.requires_grad else value.detach().clone().requires_grad_()
        self.views.append(value)
        self._readings.append((reading, error))
        return value

    def changes(self, gradients: Sequence[Tensor | None]) -> dict[Reading, float]:
        """The change of the outputs, under the signs of these gradients, by the rounding of each value."""
        found: dict[Reading, float] = defaultdict(float)
        for (reading, error), gradient in zip(self._readings, gradients, strict=True):
            if gradient is not None:
                found[reading] += float((gradient * error).sum(dtype=torch.float64))
        return found
