"""The calibration of a float graph: inserts observers, runs it on inputs, and converts it to an int8 program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from q8ta_wgpu.errors import InputError
from q8ta_wgpu.frontend.calibrate import faults
from q8ta_wgpu.frontend.calibrate.by_rules import ByRules, by_rows, decisions
from q8ta_wgpu.frontend.calibrate.fit_weights import round_weights, watch_inputs
from q8ta_wgpu.frontend.calibrate.heads import InParts
from q8ta_wgpu.frontend.calibrate.held_back import HeldBack
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver, observer_of
from q8ta_wgpu.frontend.calibrate.precision import Precision, Precisions
from q8ta_wgpu.frontend.calibrate.preparing import converted, prepared
from q8ta_wgpu.frontend.calibrate.pt2e import Quantizer as TorchaoQuantizer
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.calibrate.recurrent_states import scale_states, watch_states
from q8ta_wgpu.frontend.calibrate.row_scales import insert_rows
from q8ta_wgpu.frontend.calibrate.state_precision import share_states, store_finely
from q8ta_wgpu.frontend.calibrate.steps import widths
from q8ta_wgpu.frontend.calibrate.stored import Storage
from q8ta_wgpu.frontend.calibrate.widen import widen
from q8ta_wgpu.frontend.calibrate.zeroed import zero_left_out
from q8ta_wgpu.frontend.export.buffers_as_inputs import States
from q8ta_wgpu.frontend.export.folding import fold
from q8ta_wgpu.frontend.export.lifted import lifted
from q8ta_wgpu.frontend.export.tracing import torch_lock
from q8ta_wgpu.frontend.nodes import constant
from q8ta_wgpu.frontend.notes import SIZES, noted
from q8ta_wgpu.quantization.rules import ASKED

Tensors = tuple[torch.Tensor, ...]


def observed(
    graph: GraphModule,
    quantizer: TorchaoQuantizer,
    held: Sequence[Tensors],
    seen: Callable[[GraphModule], None] | None,
    fit_weights: bool,
) -> GraphModule:
    """A float graph with the observers that a quantizer asks for, and with other modules that watch values. `held` and
    `seen` are as in `prepared`."""
    with torch_lock():  # quantizers may trace patterns
        model = prepared(graph, quantizer, held, seen)
    share_states(model)
    zero_left_out(model)
    watch_states(model)
    if fit_weights:
        watch_inputs(model)
    model.recompile()
    return model


def calibrate(
    model: GraphModule,
    items: Iterable[Tensors],
    back: HeldBack | None,
    update: Callable[[int], None],
    buffers: faults.Buffers,
) -> tuple[int, bool]:
    """Runs a module with observers on every item, those that are held back last.

    Returns:
        The number of items, and whether all were zeros.

    Raises:
        InputError: there is no item, or one leads to NaN or an infinity.
    """
    count, zeros = 0, True
    run, ranges = _observing(model), [each for each in model.children() if isinstance(each, RangeObserver)]
    for index, arguments in back.order(items) if back is not None else enumerate(items):
        update(count)
        zeros = zeros and not any(x.any() for x in arguments)
        with faults.finite(model, arguments, index, buffers):
            if back is not None and back.holds(arguments):
                back.meet(arguments)
            else:
                run(*arguments)
        for each in ranges:
            each.peaks.end_item()
        count += 1
    if not count:
        raise InputError("the calibration is empty: give an iterable of representative inputs")
    return count, zeros


def _observing(model: GraphModule) -> Callable[..., Any]:
    """An interpreter of a module with observers. It follows the sizes of inputs if the module is annotated with them,
    and computes attention with many scores in slices. Observers of tables that are read in slices observe the whole
    tables, since every item may be smaller."""
    tables = [node for node in model.graph.find_nodes(op="get_attr") if "shape" in noted(node, SIZES, {})]
    for table in tables:
        for user in table.users:
            if observer_of(model, user) is not None:
                model.get_submodule(str(user.target))(constant(model, table))
    run = InParts(model)
    return run.run if run.is_large or any(noted(node, SIZES) for node in model.graph.nodes) else model


def quantized(
    model: GraphModule, program: ExportedProgram, own: Quantizer, back: HeldBack | None, states: States | None
) -> tuple[ExportedProgram, str, Precision]:
    """The int8 program of a calibrated module, a warning about rows that are masked as a whole, or values that int8
    makes constant, and the precision, which the items that were held back decide about if there are any."""
    buffers = states.buffers if states else {}
    faults.check_ranges(model, buffers)
    masked = faults.masked_rows(model)
    scale_states(model)
    precisions = Precisions(model, back, own.dynamic) if back is not None else None
    if own.fit_weights:
        _round_weights(model, precisions)
    precision = precisions.choose() if precisions is not None else _least(model, own.dynamic)
    store_finely(model)
    lost = masked or faults.lost_values(model)
    int8 = converted(model)
    fold(int8, quantizing=True)
    if own.dynamic:
        insert_rows(int8)
    return lifted(int8, program, buffers), lost, precision


def _least(model: GraphModule, dynamic: bool) -> Precision:
    """Widens what is widened whatever noise it makes."""
    storage = Storage(model)
    of_rules = ByRules(storage, ASKED)
    steps = [*of_rules.first, *(by_rows(storage) if dynamic else [])]
    found = replace(Precision.of(steps), decisions=decisions(storage, steps, of_rules.matched, {}))
    widen(model, storage, widths(steps))
    return found


def _round_weights(model: GraphModule, precisions: Precisions | None) -> None:
    """Fits weights and biases to the calibration inputs, unless the result is worse than rounding to the nearest. (A
    bias that corrects the mean error is wrong for tokens of zeros, if the network divides by their norm.)"""
    rounded = round_weights(model)
    for restore in (rounded.restore_biases, rounded.restore_weights):
        if precisions is None or not precisions.is_worse():
            break
        restore()


def taken(items: list[Tensors]) -> Iterator[Tensors]:
    """Yields the items of a list and removes each from it, so that its memory may be freed."""
    items.reverse()
    while items:
        yield items.pop()
