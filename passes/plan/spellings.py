"""Operators that programs write as several, such as `x * sigmoid(x)` or a norm by pow, mean and rsqrt, in any spelling.

Nodes that compute one value from another one are tried on numbers: where they give what an operator gives, that
operator takes their place. This comes before values are rounded: where nothing within is quantized it is one region,
one table, one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import Attrs, Graph, Node
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.affine import channels_of
from q8ta_wgpu.passes.plan.rotary import rotary_of
from q8ta_wgpu.passes.plan.row_operators import row_operator
from q8ta_wgpu.passes.plan.trial import Operator, Trial, trials
from q8ta_wgpu.passes.rewriter import Rewriter

FUNCTIONS: tuple[tuple[str, Attrs], ...] = (
    ("sigmoid", {}),
    ("tanh", {}),
    ("silu", {}),
    ("quick_gelu", {}),
    ("gelu", {}),
    ("gelu_tanh", {}),
    ("hardswish", {}),
    ("hardsigmoid", {}),
    ("softplus", {"beta": 1.0, "threshold": 20.0}),
    ("mish", {}),
    ("softsign", {}),
)
"""Functions that are written as several: names of `kernels/elementwise/functions.py` with their attributes."""

_NEAR = 1e-5
"""How far apart, absolutely and relative to it, two spellings of a function may be: some write constants with 6
digits."""

_SIZES = np.concatenate([np.arange(1, 200) / 16.0, 10.0 ** np.arange(-3, 31)])
_NUMBERS = np.concatenate([-_SIZES[::-1], _SIZES]).astype(np.float32)


@dataclass(frozen=True)
class Combined:
    """An operator in place of several.

    Attributes:
        made: the operator, with moves before and after it where it would not read rows otherwise.
        written: the nodes that they stand for.
    """

    made: tuple[Node, ...]
    written: tuple[Node, ...]


def combine(graph: Graph) -> None:
    """Puts operators in place of what they are written as."""
    combined(graph)


def combined(graph: Graph, channels: bool = False) -> list[Combined]:
    """The same; says what was put in place of what. `channels` makes factors and terms of channels batch norms, which
    only pays where they are rounded."""
    rewriter, found = Rewriter(graph), list[Combined]()
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    for node in rewriter.backwards():
        if (rotary := rotary_of(rewriter, places, node)) is not None:
            found.append(Combined((rewriter.replace(node, replace(rotary.made, source=node.source)),), rotary.nodes))
            continue
        for trial in reversed(list(trials(rewriter, places, node))):
            if made := _place(rewriter, trial, channels):
                found.append(Combined(made, trial.nodes))
                break
    rewriter.commit()
    return found


def _place(rewriter: Rewriter, trial: Trial, channels: bool) -> tuple[Node, ...]:
    """Puts an operator in place of a trial's nodes; returns the new ones, none where there is no such operator."""
    dims, found = trial.reduced(), None
    if trial.computes and dims is not None:
        found = row_operator(trial, dims) if dims else function_of(trial)
    # What is subtracted from an input, or divides it, is no value of its own.
    if channels and found is None and dims == () and (trial.computes or trial.source in trial.graph.inputs):
        found = channels_of(trial)
    return () if found is None else found.place(rewriter, trial)


def function_of(trial: Trial) -> Operator | None:
    """The elementwise function that nodes compute. Where they overflow, as log(1 + exp(x)) does, it may be anything."""
    if any(array.size != 1 for array in trial.constants):
        return None
    given = trial(_NUMBERS).ravel().astype(np.float64)
    finite = np.isfinite(given)
    for op, attrs in FUNCTIONS:
        kind = OPS[op].int8
        assert isinstance(kind, Elementwise)
        wanted = kind.function(_NUMBERS.astype(np.float64), attrs)
        if np.allclose(given[finite], wanted[finite], _NEAR, _NEAR) and finite[np.abs(_NUMBERS) < 80].all():
            return Operator(op, attrs)
    return None
