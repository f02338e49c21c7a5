"""How much of the outputs' noise the rounding of each value makes.

With e the rounding error of a value and g the gradient of the outputs under random signs, the mean of (g·e)² over the
signs is ‖J e‖², the error at the outputs to first order: errors that share a sign, as where most values round to zero,
are in it, and the sum of squares s²/12·Σg² leaves them out. (Hutchinson's estimator; "A Stochastic Estimator of the
Trace of the Influence Matrix", 1990.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from q8ta_wgpu.frontend.calibrate.simulate import Role, Rounder, Run, Storage, Stored, Views, shares_of_255
from q8ta_wgpu.frontend.nodes import constant

SIGNS = 4
"""Vectors of random signs for each item, where nothing else is asked for."""

_AT_ONCE = 1 << 16
"""Products that are summed in float32 before they are added to the others in float64."""

Reading = tuple[Stored | Node, Role]
"""A stored value, the softmax of an attention or the observer's call of a transform's weights or of a table, and the
role in which it is read."""


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
            if not wanted:
                continue
            random = torch.Generator().manual_seed(number)
            for left in reversed(range(signs)):
                given = [_signs(v, random) for v in wanted]
                for reading, change in traced.changes(wanted, given, more=left > 0).items():
                    found[reading] += change**2 / (signs * len(items) * len(wanted))
    return dict(found)


def _signs(value: Tensor, random: torch.Generator) -> Tensor:
    """Random signs, as large as makes the output's signal one."""
    signs = torch.randint(0, 2, value.shape, generator=random) * 2.0 - 1.0
    return signs / value.detach().double().square().sum().sqrt().clamp(min=1e-30).float()


class _Traced:
    """Runs a module in float and notes, of each value and role, how rounding would change the outputs.

    Attributes:
        run: of the module.
    """

    def __init__(self, storage: Storage, rounder: Rounder) -> None:
        self.storage, self.rounder = storage, rounder
        self.run = Run(storage, self._view, self._weight, self._share, self._looked_up)
        self._first: list[Tensor] = []
        self._changes: dict[Reading, float] = defaultdict(float)

    def _view(self, node: Node, value: Tensor) -> Views:
        stored = self.storage.values[node]
        seen: Views = dict.fromkeys(stored.users[node].values(), value)
        if value.dtype != torch.float32:
            return seen
        if not value.requires_grad:
            value = value.detach().requires_grad_()
            self._first.append(value)
        error = self.rounder.rounded(stored, value.detach(), stored.width).sub_(value.detach())
        return {
            reads: value if reads.moves else self._noted((stored, role), value, error)
            for reads in seen
            for role in reads.roles
        }

    def _weight(self, node: Node, weight: Tensor, reader: Node) -> Tensor:
        known = weight.detach()
        if not self.storage.transforms(reader):
            return known
        error = self.rounder.weight(node, known, self.storage.weights[node]) - known
        if error.any():  # ones, which add up windows, have none
            known.requires_grad_()
            self._first.append(known)
            return self._noted((node, "products"), known, error)
        return known

    def _looked_up(self, node: Node, rows: Tensor, places: Tensor) -> Tensor:
        """Rows of a table, whose errors are noted here: a gradient of the table would be as large as that."""
        (table,) = (source for source in node.all_input_nodes if source in self.storage.weights)
        known = constant(self.storage.module, table.all_input_nodes[0]).detach()
        error = F.embedding(places, self.rounder.weight(table, known, self.storage.weights[table])) - rows
        rows.requires_grad_()
        self._first.append(rows)
        return self._noted((table, "others"), rows, error)

    def _share(self, node: Node, shares: Tensor) -> Tensor:
        return self._noted((node, "others"), shares, shares_of_255(shares.detach()).sub_(shares.detach()))

    def _noted(self, reading: Reading, value: Tensor, error: Tensor) -> Tensor:
        def note(change: float) -> None:
            self._changes[reading] += change

        noted: Tensor = _Noted.apply(value, error, note)  # type: ignore[no-untyped-call]
        return noted

    def changes(self, outputs: Sequence[Tensor], signs: Sequence[Tensor], more: bool) -> dict[Reading, float]:
        """The change of the outputs, under these signs, by the rounding of each value; `more` signs follow."""
        self._changes.clear()
        torch.autograd.grad(outputs, self._first, signs, retain_graph=more, allow_unused=True)
        return dict(self._changes)


def _dot(a: Tensor, b: Tensor) -> float:
    """The sum of products of two tensors' elements, in parts: float32 adds up few of them well, and a sum in float64
    would first write all products."""
    pairs = zip(*(torch.split(x.reshape(-1), _AT_ONCE) for x in (a, b)), strict=True)
    return sum(float(torch.dot(*pair)) for pair in pairs)


class _Noted(torch.autograd.Function):
    """A value as it is. On the way back, how much an error of it changes the outputs, to first order."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, error: Tensor, note: Callable[[float], None]) -> Tensor:
        """The value."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(error)
        ctx.note = note
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        """The gradient as it is."""
        if gradient is not None:
            (error,) = ctx.saved_tensors
            ctx.note(_dot(gradient, error))
        return gradient, None, None
