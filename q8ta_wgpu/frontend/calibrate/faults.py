"""Finds values in calibration that cannot be rounded, or not well: NaN and infinities, zeros, values of almost no
range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import InputError, one_line
from q8ta_wgpu.frontend.calibrate.observer import observer_of
from q8ta_wgpu.frontend.calibrate.simulate import outputs_and_states
from q8ta_wgpu.frontend.calibrate.state_precision import states_of
from q8ta_wgpu.frontend.calibrate.zeroed import before_zeros
from q8ta_wgpu.frontend.export.sized import Sized
from q8ta_wgpu.frontend.nodes import constant, is_constant, kind, module_paths, origins, source_of
from q8ta_wgpu.ir.int8 import Product, WeightedSum
from q8ta_wgpu.quantization.ranges import too_small

Buffers = Mapping[str, torch.Tensor]
"""What the states begin with, by the names of the module's buffers."""


@contextmanager
def finite(prepared: GraphModule, item: tuple[torch.Tensor, ...], index: int, buffers: Buffers) -> Iterator[None]:
    """On an error of a block that observes an item, raises InputError that names its cause: the first value that is NaN
    or infinite, with the buffer that becomes so, or an operator that cannot run."""
    try:
        yield
    except Exception as error:
        search, states = _Search(prepared), list[torch.Tensor]()
        with suppress(Exception):
            _, states = outputs_and_states(prepared, search.run(*item))
        if search.found is not None:
            kept = [name for name, x in zip(buffers, states, strict=False) if not x.isfinite().all()]
            also = f", and with it buffer {', '.join(kept)}" if kept else ""
            where = f"calibration item {index}{search.rows}{also}"
            raise _not_finite(prepared, search.found, where, buffers) from error
        if search.failed is None:
            raise
        where = source_of(search.failed) or search.failed.name
        raise InputError(f"calibration item {index} does not run: {one_line(error)} at {where}") from error


def check_ranges(prepared: GraphModule, buffers: Buffers) -> None:
    """Raises InputError if an observer saw NaN or an infinity without an error, or nothing but numbers so small that
    float32 has no scale for them."""
    for node, _, low, high in _ranges(prepared):
        unseen = bool((low > high).all())  # an observer that saw nothing has an empty range
        if not unseen and not (torch.isfinite(low).all() and torch.isfinite(high).all()):
            raise _not_finite(prepared, node, "the calibration", buffers)
        if low.numel() == 1 and not unseen and (said := too_small(float(low), float(high))):
            value = before_zeros(node.all_input_nodes[0])
            skip = f", or leave it in float: Quantizer(skip={paths})" if (paths := module_paths(value)[-1:]) else ""
            raise InputError(f"the value of {value.name} ({source_of(value) or value.target}) {said}{skip}")


def _ranges(prepared: GraphModule) -> Iterator[tuple[Node, Any, torch.Tensor, torch.Tensor]]:
    """The observers that saw values: node, module, and the ends of their range."""
    for node in prepared.graph.nodes:
        observer = observer_of(prepared, node)
        low, high = (getattr(observer, name, None) for name in ("min_val", "max_val"))
        if isinstance(low, torch.Tensor) and isinstance(high, torch.Tensor) and low.numel():
            yield node, observer, low, high


ZEROS = (
    "every calibration input is zero: scales are those of what the network computes of zeros, and other inputs will be "
    "clipped. Calibrate with representative inputs"
)
"""The warning about a calibration of zeros."""


_LAST_BITS = 2.0**-16
"""Numbers that differ relatively by no more than this are taken for equal: float32 has computed them in a few steps."""


def masked_rows(prepared: GraphModule) -> str:
    """A warning about a softmax of which the calibration masks all rows as a whole; empty if there is none. It gives
    zeros then, where torch's softmax would give NaN (masked_rows.py). If its own range is not observed, that of a
    product with it shows that."""
    ranges = {node.all_input_nodes[0]: bool(low.any() or high.any()) for node, _, low, high in _ranges(prepared)}
    for node in prepared.graph.nodes:
        read = [x.all_input_nodes[0] if observer_of(prepared, x) is not None else x for x in node.all_input_nodes]
        shares = next((x for x in (node, *read) if x.target is torch.ops.aten._safe_softmax.default), None)
        if (
            shares is None
            or ranges.get(node, True)
            or not (shares is node or isinstance(kind(node), Product | WeightedSum))
        ):
            continue
        if all(ranges.get(x, True) for x in read if x is not shares):
            return (
                f"calibration masks every row of {shares.name} ({source_of(shares) or shares.target}) as a whole: it "
                "gives zeros, so ranges behind it are too narrow for others. Calibrate with masks that leave elements "
                "in: is this mask True where the module takes False?"
            )
    return ""


def lost_values(prepared: GraphModule) -> str:
    """A warning about values that quantization makes constant, with a remedy; empty if there are none.

    These are values that vary in the calibration by less than two steps of the finest scale that represents them.
    Values that do not vary at all are not included. Nor are those that differ in the last bits of a float, as widths of
    equal intervals do.
    """
    lost: list[tuple[Node, str]] = []
    for node, observer, low, high in _ranges(prepared):
        if low.numel() != 1 or not high - low > _LAST_BITS * max(high, -low):
            continue
        whole = max(float(high), 0.0) - min(float(low), 0.0)
        steps = (getattr(observer, "quant_max", None) or 127) - (getattr(observer, "quant_min", None) or 0)
        step = max(whole / steps, float(getattr(observer, "eps", 0.0)))
        if float(high - low) < 2 * step:
            text = f"from {float(low):.2g} to {float(high):.2g}, where a step is {step:.2g}"
            lost.append((node.all_input_nodes[0], text))
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
    """Runs a prepared graph without its observers. `found` is the first observer that would see NaN or an infinity,
    `rows` says in which rows of the value, `failed` is the operator that cannot run."""

    def __init__(self, prepared: GraphModule) -> None:
        super().__init__(prepared)
        self._prepared = prepared
        self.found: Node | None = None
        self.rows = ""
        self.failed: Node | None = None

    def run_node(self, n: Node) -> Any:
        """The value of a node; for an observer, that of its input."""
        if observer_of(self._prepared, n) is None:
            self.failed = n
            found = super().run_node(n)
            self.failed = None
            return found
        (value,) = self.fetch_args_kwargs_from_env(n)[0]
        if self.found is None and not torch.isfinite(value).all():
            self.found, self.rows = n, _rows(value)
        return value


def _not_finite(prepared: GraphModule, observer: Node, where: str, buffers: Buffers) -> InputError:
    """The error of a value that is NaN or infinite. It names the buffer or the constant where the value is one, since
    the calibration is not at fault then."""
    node = before_zeros(observer.all_input_nodes[0])
    if is_constant(node):
        made_of, place = origins(node), source_of(node)
        what = f"constant {made_of[0]}" if made_of == [str(node.target)] else "a constant"
        if what == "a constant" and made_of:
            what += f" computed from {', '.join(made_of)}"
        return InputError(
            f"{what}{f' at {place}' if place else ''} holds {_wrong(constant(prepared, node))}, whatever the inputs "
            f"are: a range cannot be found for it. Let it be finite: a large number in place of infinity"
        )
    states = [read for read, _ in states_of(prepared)]
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


def _rows(value: torch.Tensor) -> str:
    """In which rows, along the first dimension, a value is not finite; empty if it is so in all."""
    wrong = ~value.isfinite().reshape(len(value), -1).all(1) if value.dim() > 1 else torch.ones(1, dtype=torch.bool)
    if wrong.all():
        return ""
    first, *others = wrong.nonzero().flatten().tolist()
    return f" (in row {first}{f' and {len(others)} more' if others else ''} of {len(value)})"


def _wrong(value: torch.Tensor) -> float:
    """The first number that is NaN or infinite."""
    return float(value.detach()[~value.isfinite()][0])
