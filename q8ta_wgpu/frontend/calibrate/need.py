"""How much of the outputs' noise the rounding of each value makes.

Let e be the rounding error of a value, and g the gradient of the outputs multiplied by random signs. The mean of (g·e)²
over many signs is ‖J e‖², the squared error of the outputs to first order. (Hutchinson's estimator; "A Stochastic
Estimator of the Trace of the Influence Matrix", 1990.) It includes that errors of a value may share a sign, as where
most elements round to zero. The simpler s²/12·Σg², with steps of s, takes errors for independent.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F

from q8ta_wgpu.frontend.calibrate.rounder import Rounder, shares_in_steps
from q8ta_wgpu.frontend.calibrate.simulate import Run, Views, softmax
from q8ta_wgpu.frontend.calibrate.stored import Storage, Stored
from q8ta_wgpu.frontend.calibrate.successive_calls import Calls
from q8ta_wgpu.frontend.nodes import constant
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.quantization.stored import Role

SIGNS = 4
"""Vectors of random signs for each item, by default."""

_AT_ONCE = 1 << 16
"""The number of products that are summed in float32; such sums are added up in float64."""

Reading = tuple[Stored | Node, Role]
"""What is read, and the role in which it is read. It is a stored value, or a node: the softmax of an attention, or the
observer's call of the weights of a transform or of a table."""


def needs(
    storage: Storage, rounder: Rounder, calls: Calls, weights: Sequence[Sequence[Array]], signs: int = SIGNS
) -> dict[Reading, float]:
    """The noise that the rounding of each value for each role makes in some parts of the outputs, as a ratio of powers:
    the mean over these parts and so many vectors of random signs. `weights` are those of the parts' squared errors, as
    of `Judge.weights`. Errors of a state count in all later calls of a sequence."""
    (found,) = needs_apart(storage, [rounder], calls, weights, signs)
    return found


def needs_apart(
    storage: Storage,
    rounders: Sequence[Rounder],
    calls: Calls,
    weights: Sequence[Sequence[Array]],
    signs: int = SIGNS,
) -> list[dict[Reading, float]]:
    """As `needs`, for each of several rounders, of the values that they round by different steps. All use the same
    gradients, since those of the float network do not depend on the rounding."""
    found: list[dict[Reading, float]] = [defaultdict(float) for _ in rounders]
    roots = [[torch.from_numpy(w).sqrt().float() for w in each] for each in weights]
    for number, sequence in enumerate(calls.sequences()):
        traced = _Traced(storage, rounders)
        with torch.enable_grad():
            floats = calls.outputs(traced.run.call, sequence)
            pairs = [
                (value, root)
                for given, own in zip(floats, roots[sequence.start : sequence.stop], strict=True)
                for value, root in zip(given, own, strict=True)
                if value.requires_grad and root.any()
            ]
            if not pairs:
                continue
            wanted, random = [value for value, _ in pairs], torch.Generator().manual_seed(number)
            for left in reversed(range(signs)):
                given = [_signs(value, random) * root for value, root in pairs]
                for reading, changes in traced.changes(wanted, given, more=left > 0).items():
                    for each, change in zip(found, changes, strict=True):
                        each[reading] += change**2 / signs
    return [dict(each) for each in found]


def _signs(value: Tensor, random: torch.Generator) -> Tensor:
    """Random signs."""
    return torch.randint(0, 2, value.shape, generator=random) * 2.0 - 1.0


class _Traced:
    """Runs a module in float, and notes how the rounding of each value for each role would change the outputs. With
    several rounders these are only the values for which their steps differ.

    Attributes:
        run: runs the module.
    """

    def __init__(self, storage: Storage, rounders: Sequence[Rounder]) -> None:
        self.storage, self._rounders = storage, rounders
        self.run = Run(storage, self._view, self._weight, self._share, self._looked_up, self._attended)
        self._first: list[Tensor] = []
        self._of_shares: dict[Node, tuple[Node, Tensor]] = {}
        self._changes: dict[Reading, list[float]] = defaultdict(lambda: [0.0] * len(rounders))

    def _view(self, node: Node, value: Tensor) -> Views:
        stored = self.storage.values[node]
        seen: Views = dict.fromkeys(stored.users[node].values(), value)
        if value.dtype != torch.float32:
            return seen
        apart = len({rounder.scale(stored, stored.width) for rounder in self._rounders}) == len(self._rounders)
        if not value.requires_grad and apart:
            value = value.detach().requires_grad_()
            self._first.append(value)
        errors = [self._error(rounder, stored, value.detach()) for rounder in self._rounders] if apart else []
        return {
            reads: value if reads.moves or not apart else self._noted((stored, role), value, *errors)
            for reads in seen
            for role in reads.roles
        }

    def _error(self, rounder: Rounder, stored: Stored, value: Tensor) -> Tensor:
        return rounder.rounded(stored, value, stored.width).sub_(value)

    def _weight(self, node: Node, weight: Tensor, reader: Node) -> Tensor:
        known = weight.detach()
        if len(self._rounders) > 1 or not self.storage.transforms(reader):
            return known
        error = self._rounders[0].weight(node, known, self.storage.weights[node]) - known
        if error.any():  # ones, which add up windows, have none
            known.requires_grad_()
            self._first.append(known)
            return self._noted((node, "products"), known, error)
        return known

    def _looked_up(self, node: Node, rows: Tensor, places: Tensor) -> Tensor:
        """Notes the errors of rows that were looked up in a table. A gradient of the table itself would be as large as
        the table."""
        if len(self._rounders) > 1:
            return rows
        (table,) = (source for source in node.all_input_nodes if source in self.storage.weights)
        known = constant(self.storage.module, table.all_input_nodes[0]).detach()
        error = F.embedding(places, self._rounders[0].weight(table, known, self.storage.weights[table])) - rows
        rows.requires_grad_()
        self._first.append(rows)
        return self._noted((table, "others"), rows, error)

    def _share(self, node: Node, scores: Tensor) -> Tensor:
        shares = softmax(node, scores)
        if len(self._rounders) > 1:
            return shares
        error = shares_in_steps(scores.detach()).sub_(shares.detach())
        if (product := self.run.product_of(node)) is None:
            return self._noted((node, "others"), shares, error)
        self._of_shares[product] = node, error
        return shares

    def _attended(self, call: Node, result: Tensor, operands: Sequence[Any]) -> Tensor:
        """Notes the error of an attention's shares where it reaches the result, which takes much less memory to hold
        for the backward pass."""
        if call not in self._of_shares:
            return result
        node, error = self._of_shares.pop(call)
        with torch.no_grad():
            error = call.target(error, *operands[1:])  # type: ignore[operator]
        return self._noted((node, "others"), result, error)

    def _noted(self, reading: Reading, value: Tensor, *errors: Tensor) -> Tensor:
        def note(*changes: float) -> None:
            found = self._changes[reading]
            found[:] = map(operator.add, found, changes)

        noted: Tensor = _Noted.apply(value, note, *errors)  # type: ignore[no-untyped-call]
        return noted

    def changes(self, outputs: Sequence[Tensor], signs: Sequence[Tensor], more: bool) -> dict[Reading, list[float]]:
        """How each rounder's errors of each value change the outputs, multiplied by these signs and summed. `more` says
        whether other signs will follow."""
        self._changes.clear()
        torch.autograd.grad(outputs, self._first, signs, retain_graph=more, allow_unused=True)
        return dict(self._changes)


def _dot(a: Tensor, b: Tensor) -> float:
    """The sum of products of two tensors' elements. Slices are summed in float32 and added up in float64: a sum of many
    float32 numbers is inexact, and one in float64 would first write all products to memory."""
    pairs = zip(*(torch.split(x.reshape(-1), _AT_ONCE) for x in (a, b)), strict=True)
    return sum(float(torch.dot(*pair)) for pair in pairs)


class _Noted(torch.autograd.Function):
    """Gives a value as it is. In the backward pass it notes by how much each of several errors of the value would
    change the outputs, to first order."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, note: Callable[..., None], *errors: Tensor) -> Tensor:
        """The value."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*errors)
        ctx.note, ctx.errors = note, len(errors)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradient; zeros where it is not finite, as behind a root of negative elements that a where leaves out:
        autograd multiplies its slope, NaN, by 0."""
        if gradient is not None:
            if not math.isfinite(gradient.sum()):
                gradient = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
            ctx.note(*(_dot(gradient, error) for error in ctx.saved_tensors))
        return gradient, None, *([None] * ctx.errors)
