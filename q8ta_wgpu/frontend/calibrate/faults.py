"""Finds values in calibration that cannot be rounded, or not well: NaN and infinities, zeros, values of almost no
range."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.errors import InputError, one_line
from q8ta_wgpu.frontend.export.buffers_as_inputs import lost_after
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.export.states import states_of
from q8ta_wgpu.frontend.nodes import constant, is_constant, module_paths, origins, source_of
from q8ta_wgpu.quantization.faults import rows_not_finite
from q8ta_wgpu.quantization.ranges import no_scale

Buffers = Mapping[str, torch.Tensor]
"""What the states begin with, by the names of the module's buffers."""


@dataclass(frozen=True)
class Met:
    """What calibration met of a value.

    Attributes:
        value: its node.
        low, high: its smallest and its largest number.
        steps: how many steps cover the range in which it is stored.
    """

    value: Node
    low: float
    high: float
    steps: int = 255


@contextmanager
def finite(
    graph: GraphModule, watched: Collection[Node], item: tuple[torch.Tensor, ...], index: int, buffers: Buffers
) -> Iterator[None]:
    """On an error of a block that looks at the values of an item, raises InputError that names its cause: the first
    value that is NaN or infinite, with the buffer that becomes so, or an operator that cannot run."""
    try:
        yield
    except Exception as error:
        search, states = _Search(graph, watched), list[torch.Tensor]()
        with suppress(Exception):
            found = pytree.tree_leaves(search.run(*item))
            states = found[len(found) - len(states_of(graph)) :]
        written = {node: name for name, (_, node) in zip(buffers, states_of(graph), strict=True)}
        if search.found in written and all(user.op == "output" for user in search.found.users):
            raise InputError(lost_after(written[search.found], index)) from error
        if search.found is not None:
            kept = [name for name, x in zip(buffers, states, strict=False) if not x.isfinite().all()]
            also = f", and with it buffer {', '.join(kept)}" if kept else ""
            where = f"calibration item {index}{search.rows}{also}"
            raise _not_finite(graph, search.found, where, buffers) from error
        if search.failed is None:
            raise
        where = source_of(search.failed) or search.failed.name
        raise InputError(f"calibration item {index} does not run: {one_line(error)} at {where}") from error


def check_weights(graph: GraphModule, weights: Iterable[Node]) -> None:
    """Raises InputError for a weight that holds NaN or infinities."""
    for node in weights:
        if not torch.isfinite(constant(graph, node)).all():
            raise _not_finite(graph, node, "", {})


def check_ranges(graph: GraphModule, met: Iterable[Met], buffers: Buffers) -> None:
    """Raises InputError where NaN or an infinity was met without an error, or numbers for whose range float32 has no
    scale."""
    for each in met:
        low, high, value = each.low, each.high, each.value
        if low > high:  # nothing was met
            continue
        if not (math.isfinite(low) and math.isfinite(high)):
            raise _not_finite(graph, value, "the calibration", buffers)
        if said := no_scale(low, high):
            skip = f", or leave it in float: Quantizer(skip={paths})" if (paths := module_paths(value)[-1:]) else ""
            raise InputError(f"the value of {value.name} ({source_of(value) or value.target}) {said}{skip}")


ZEROS = (
    "every calibration input is zero: scales are those of what the network computes of zeros, and other inputs will be "
    "clipped. Calibrate with representative inputs"
)
"""The warning about a calibration of zeros."""


_LAST_BITS = 2.0**-16
"""Numbers that differ relatively by no more than this are taken for equal: float32 has computed them in a few steps."""


def lost_values(met: Iterable[Met]) -> str:
    """A warning about values that quantization makes constant, with a remedy; empty if there are none.

    These are values that vary in the calibration by less than two steps of the finest scale that represents them.
    Values that do not vary at all are not included. Nor are those that differ in the last bits of a float, as widths of
    equal intervals do.
    """
    lost: list[tuple[Node, str]] = []
    for each in met:
        low, high = each.low, each.high
        if not high - low > _LAST_BITS * max(high, -low):
            continue
        step = (max(high, 0.0) - min(low, 0.0)) / each.steps
        if high - low < 2 * step:
            lost.append((each.value, f"from {low:.2g} to {high:.2g}, where a step is {step:.2g}"))
    if not lost:
        return ""
    value, text = lost[0]
    others = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
    skip = module_paths(value)[-1:] or ["..."]
    return (
        f"int8 makes the values of {source_of(value) or value.name}{others} constant: in the calibration they go "
        f"{text}. Load trained weights, and scale calibration inputs as in training; or leave such modules in float: "
        f"quantizer=q8ta_wgpu.Quantizer(skip={skip})"
    )


class _Search(Sized):
    """Runs a graph. `found` is the first watched value that is NaN or infinite, `rows` says in which of its rows,
    `failed` is the operator that cannot run."""

    def __init__(self, graph: GraphModule, watched: Collection[Node]) -> None:
        super().__init__(graph)
        self._watched = watched
        self.found: Node | None = None
        self.rows = ""
        self.failed: Node | None = None

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        self.failed = n
        value = super().run_node(n)
        self.failed = None
        if n in self._watched and self.found is None and not torch.isfinite(value).all():
            self.found, self.rows = n, rows_not_finite(value.detach().float().cpu().numpy())
        return value


def _not_finite(graph: GraphModule, node: Node, where: str, buffers: Buffers) -> InputError:
    """The error of a value that is NaN or infinite. It names the buffer or the constant where the value is one, since
    the calibration is not at fault then."""
    if is_constant(node):
        made_of, place = origins(node), source_of(node)
        what = f"constant {made_of[0]}" if made_of == [str(node.target)] else "a constant"
        if what == "a constant" and made_of:
            what += f" computed from {', '.join(made_of)}"
        return InputError(
            f"{what}{f' at {place}' if place else ''} holds {_wrong(constant(graph, node))}, whatever the inputs "
            f"are: a range cannot be found for it. Let it be finite: a large number in place of infinity"
        )
    states = [read for read, _ in states_of(graph)]
    if node in states:
        name, initial = list(buffers.items())[states.index(node)]
        way = f"leave what computes with it in float: Quantizer(skip={module_paths(node)[-1:] or ['...']})"
        return InputError(
            f"buffer {name} begins with {_wrong(initial)}: a range cannot be found for it. Let it begin with a finite "
            f"number near its later values, or {way}"
        )
    way = "Clean the calibration data"
    if node.op != "placeholder":
        way += ", or bound what this operator reads (clamp), also for elements that a later torch.where leaves out"
        way += f", or leave it in float: Quantizer(skip={paths})" if (paths := module_paths(node)[-1:]) else ""
    return InputError(
        f"the value of {node.name} ({source_of(node) or node.target}) is NaN or infinite on {where}: a range cannot "
        f"be found for it. {way}"
    )


def _wrong(value: torch.Tensor) -> float:
    """The first number that is NaN or infinite."""
    return float(value.detach()[~value.isfinite()][0])
