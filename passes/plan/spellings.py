"""Replaces operators that programs write as several, such as `x * sigmoid(x)`, or a norm by pow, mean and rsqrt.

Nodes that compute one value from another one are run on chosen numbers. If an operator gives the same results, it
replaces the nodes, whatever their spelling. This comes before values are rounded, so that none within is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir.graph import Array, Attrs, Graph, Node
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.plan.affine import channels_of
from q8ta_wgpu.passes.plan.match_rotary import rotary_of
from q8ta_wgpu.passes.plan.row_operators import row_operator
from q8ta_wgpu.passes.plan.trial import Computed, Operator, Trial, trials
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
"""Functions that are looked for: names of `kernels/elementwise/functions.py` with their attributes."""

_TOLERANCE = 1e-5
"""Absolute and relative tolerance between two spellings: some programs write constants with 6 digits."""

_MOST = 16
"""Limit of nodes that are tried as one function. The longest spelling of one, gelu by tanh, has a dozen."""

_SIZES = np.concatenate([np.arange(1, 200) / 16.0, 10.0 ** np.arange(-3, 31)])
_NUMBERS = np.concatenate([-_SIZES[::-1], _SIZES]).astype(np.float32)
_FIRST_NUMBERS = np.array([-5, -2.5, -1, -0.25, 0.5, 1.5, 2.75, 6], np.float32)


def _results(numbers: Array) -> Array:
    """The results of all functions (function, number), float64."""
    found = []
    for op, attrs in FUNCTIONS:
        kind = OPS[op].int8
        assert isinstance(kind, Elementwise)
        found.append(kind.function(numbers.astype(np.float64), attrs))
    return np.stack(found)


_OF_FIRST, _OF_ALL = _results(_FIRST_NUMBERS), _results(_NUMBERS)


@dataclass(frozen=True)
class Combined:
    """An operator that replaced several nodes.

    Attributes:
        made: the operator, with a permute or view before and after it where it works on rows.
        replaced: the nodes.
    """

    made: tuple[Node, ...]
    replaced: tuple[Node, ...]


def combine(graph: Graph) -> None:
    """Replaces nodes by operators that compute the same."""
    combined(graph)


def combined(graph: Graph, channels: bool = False) -> list[Combined]:
    """Replaces nodes by operators that compute the same; returns what was replaced.

    `channels` makes factors and terms of channels batch norms, which only pays where these are rounded. Otherwise only
    those become one that our quantizer rounded as one: another quantizer may have rounded what it saw between them.
    """
    rewriter, found, computed = Rewriter(graph), list[Combined](), Computed()
    positions = {node.output: position for position, node in enumerate(graph.nodes)}
    for node in rewriter.backwards():
        if (rotary := rotary_of(rewriter, positions, node)) is not None:
            made = rewriter.replace(node, replace(rotary.operator, source=node.source))
            found.append(Combined((made,), rotary.nodes))
            continue
        for trial in reversed(list(trials(rewriter, positions, node, computed))):  # the longest first
            if operator := _operator_of(trial, channels):
                found.append(Combined(operator.substitute(rewriter, trial), trial.nodes))
                break
    rewriter.commit()
    return found


def _operator_of(trial: Trial, channels: bool) -> Operator | None:
    """The operator that nodes compute; None where there is none."""
    dims, found, known = trial.reduced(), None, trial.graph.values
    channels = channels or any(known[node.output].is_joined for node in trial.nodes)
    if trial.computes and dims is not None:
        found = row_operator(trial, dims) if dims else function_of(trial)
    # Also of a single node that reads an input, as `input / std`: its constant is then no value that must be quantized.
    if channels and found is None and dims == () and (trial.computes or trial.source in trial.graph.inputs):
        found = channels_of(trial)
    return found


def function_of(trial: Trial) -> Operator | None:
    """The elementwise function that nodes compute; None where there is none.

    Only finite results are compared: `log(1 + exp(x))` overflows where softplus does not.
    """
    if len(trial.nodes) > _MOST or any(array.size != 1 for array in trial.constants):
        return None
    few = np.abs(trial(_FIRST_NUMBERS).ravel() - _OF_FIRST) <= _TOLERANCE + _TOLERANCE * np.abs(_OF_FIRST)
    if not (likely := np.flatnonzero(few.all(1))).size:  # nearly always, so it must be fast
        return None
    found = trial(_NUMBERS).ravel().astype(np.float64)
    finite = np.isfinite(found)
    for i in likely:
        expected = _OF_ALL[i]
        if np.allclose(found[finite], expected[finite], _TOLERANCE, _TOLERANCE) and finite[np.abs(_NUMBERS) < 80].all():
            return Operator(*FUNCTIONS[i])
    return None
