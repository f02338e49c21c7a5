"""Steps that are taken whatever noise was measured: of values that lose more on other inputs than on those of the
calibration, or that lose in 8 bits what a module asks for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver
from q8ta_wgpu.frontend.calibrate.row_scales import operands
from q8ta_wgpu.frontend.calibrate.steps import (
    LITTLE,
    NOTHING,
    Step,
    at_once,
    cost_of,
    is_recurrent,
    is_slice,
    moved,
    reads_int16,
    sliced,
    stays_exact,
    traffic,
    unrounded,
    widths,
)
from q8ta_wgpu.frontend.calibrate.stored import Role, Storage, Stored, Width
from q8ta_wgpu.frontend.calibrate.zeroed import before_zeros
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.frontend.nodes import is_transform, kind
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Moves, Rowwise, WeightedSum
from q8ta_wgpu.quantization.ranges import FEW

_NEAR = 32
"""A divisor whose smallest value is fewer int16 steps than this comes near zero: its largest value is at least 512
times its smallest, or 256 times with more room, and for other inputs it may come nearer."""

_DIVIDES = {"aten.div.Tensor": 1, "aten.reciprocal.default": 0, "aten.rsqrt.default": 0}
"""Operators that divide, and the index of the argument by which they divide."""

_ROOT = "aten.sqrt.default"

_EXPONENTIALS = ("aten.exp.default", "aten.exp2.default", "aten.expm1.default")

_NOTICED = 2.0**-8
"""A change of an exponential's argument that leaves 59 dB of its signal, as a step of int16."""

_POINTS = 1025
"""Numbers of a range for which functions of it are computed."""

_KEEP_TAILS = ("aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor")
"""Operators whose results are far larger for few elements if those of an operand are."""


def always(storage: Storage) -> list[Step]:
    """The steps that are taken whatever noise was measured.

    * Scores that a softmax reads from memory. Its shares follow from the distance of each score from the largest.
      Scores that are larger than all of the calibration would be clipped, and would then have equal shares.
    * Results of which calibration met few values, such as one number for each input. One in some dozens of inputs would
      exceed their range.
    * What an exponential above 1 reads whose result others than layers read. An argument that is larger than all of the
      calibration would be clipped, and the result would be too small by a factor.
    * What such an exponential gives, and its sums and products, such as the sizes of boxes. Few of them are far larger
      than the others.
    * Divisors that come near zero.
    * Values of which the module asks which elements are infinite or NaN."""
    found = asked(storage)
    for stored in storage.stored:
        readers = stored.readers("others") if stored.width == "int8" else []
        why = ""
        if is_recurrent(stored):
            continue
        if any(map(_is_softmax, readers)):
            why = "since a softmax tells the largest apart"
        elif any(user.op == "output" for user in readers) and 0 < _met(stored) < FEW:
            why = "since other inputs reach further than the few values that calibration met"
        if why:
            reading: Reading = (stored, "others")
            found.append(at_once(reading, "int16", why))
    results = (stored for stored in storage.stored if stored.readers("others"))
    read = (argument for stored in results for argument in _arguments_of_exp(storage, stored))
    why = "since an exponential makes larger what calibration did not reach"
    arguments = [_finer(step) for step in _with_slices(storage, read, why)]
    given = [step for step in _exponentials(storage) if step.reading not in widths(arguments)]
    return [*found, *arguments, *given, *_divisors(storage)]


def _finer(step: Step) -> Step:
    """A step to int16 of what an exponential reads, or to float32 where a step of int16 would change the exponential
    noticeably. That is so where values share their scale with far larger ones, as in a cat with sizes of boxes."""
    stored, _ = step.reading
    if isinstance(stored, Node) or is_slice(stored) or float(stored.wide.calculate_qparams()[0]) < _NOTICED:
        return step
    return replace(step, width="float32", cost=cost_of(step.reading, "float32"))


def of_few(storage: Storage, known: Mapping[Reading, Width]) -> list[Step]:
    """Stores values in int16 of which calibration met few, for all readers but layers, as long as that costs next to
    nothing: such as the matrix that turns all points of an item. The cost includes what is computed from them, which
    other kernels may have to compute. Readings with `known` widths are left out."""
    why = "since other inputs reach further than the few values that calibration met"
    roles: tuple[Role, ...] = ("products", "others")
    few = [
        stored
        for stored in storage.stored
        if 0 < _met(stored) < FEW and not stored.readers("sums") and not is_recurrent(stored)
        if any(stored.value(node).op != "get_attr" for node in stored.nodes)
    ]
    found = [
        (sum(map(size_of, readers)), at_once(reading, "int16", why))
        for reading in itertools.product(few, roles)
        if (readers := reading[0].readers(reading[1])) and stays_exact(*reading) and reading not in known
    ]
    found.sort(key=lambda pair: pair[0] + pair[1].cost)
    costs = itertools.accumulate(size + step.cost for size, step in found)
    most = max(NOTHING * traffic(storage), LITTLE)
    return [step for (_, step), cost in zip(found, costs, strict=True) if cost <= most]


def _arguments_of_exp(storage: Storage, stored: Stored) -> Iterator[Stored]:
    """The int8 values of which this value is an exponential, perhaps with functions before and behind it."""
    for node in map(stored.value, stored.nodes):
        found = False
        while isinstance(kind(node), Elementwise | Arithmetic) and len(node.all_input_nodes) == 1:
            found = found or (str(node.target) in _EXPONENTIALS and _passes_1(storage, node))
            (node,) = node.all_input_nodes
        if found and node in storage.values:
            yield storage.values[node]


def _passes_1(storage: Storage, exponential: Node) -> bool:
    """Whether an exponential passes 1 somewhere in the range of the stored value of which its argument is a function;
    True where it is none of one value alone."""
    behind, calls = exponential.all_input_nodes[0], list[Node]()
    while behind not in storage.values:
        if not isinstance(kind(behind), Elementwise | Arithmetic) or len(behind.all_input_nodes) != 1:
            return True
        calls.append(behind)
        behind = behind.all_input_nodes[0]
    observer = storage.values[behind].observer
    low, high = (float(getattr(observer, name, 0.0)) for name in ("min_val", "max_val"))
    met = torch.linspace(low, high, _POINTS) if math.isfinite(high - low) else torch.zeros(1)
    for call in reversed(calls):
        args = [met if isinstance(arg, Node) else arg for arg in call.args]
        met = call.target(*args, **call.kwargs)  # type: ignore[operator]
    return bool((met > 0).any())


def _exponentials(storage: Storage) -> list[Step]:
    """Stores exponentials above 1 in int16, and their sums and products, for all readers but layers and products. A sum
    with what a layer gives, as in a residual stream, ends that: it is as large for other elements."""
    large = set[Node]()
    for node in storage.module.graph.nodes:
        first, *_ = node.all_input_nodes or (None,)
        if str(node.target) in _EXPONENTIALS:
            grows = _passes_1(storage, node)
        elif str(node.target) in _KEEP_TAILS:
            grows = not large.isdisjoint(node.all_input_nodes) and not any(map(_is_of_layer, node.all_input_nodes))
        else:
            moves = node in storage.values or isinstance(kind(node), Moves)
            grows = moves and first is not None and before_zeros(first) in large
        if grows:
            large.add(node)
    why = "since few exponentials are far larger than the others"
    readings: list[Reading] = [
        (stored, "others")
        for stored in storage.stored
        if stored.width == "int8" and not large.isdisjoint(stored.nodes) and stored.readers("others")
    ]
    return [at_once(reading, "int16", why) for reading in readings]


def _is_of_layer(value: Node) -> bool:
    """Whether a value is what a weighted sum gives, before or behind its observer."""
    made = value.all_input_nodes[0] if value.op == "call_module" else value
    return isinstance(kind(moved(made)), WeightedSum)


def _divisors(storage: Storage) -> list[Step]:
    """Leaves divisors that come near zero unrounded, since what counts is their relative error. So are the terms of a
    sum that is such a divisor; the dividend may be one of them."""
    by = (node.args[_DIVIDES[str(node.target)]] for node in storage.module.graph.nodes if str(node.target) in _DIVIDES)
    read = (storage.values[node] for node in by if isinstance(node, Node) and node in storage.values)
    found = dict.fromkeys(stored for stored in read if _is_near_zero(stored))
    for stored in (waiting := list(found)):
        new = [part for part in _made_of(storage, stored) if part not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    roles: tuple[Role, ...] = ("products", "others")
    readings: list[Reading] = [(stored, role) for stored in found for role in roles if stored.readers(role)]
    why = "since what is divided by comes near zero"
    return [at_once(reading, "float32", why) for reading in readings]


def _is_near_zero(stored: Stored) -> bool:
    """Whether values have one sign, and the one nearest to zero is few steps of int16 from it, or is not known, since
    others are zeros."""
    least = max(float(stored.observer.min_val), -float(stored.observer.max_val))
    one_sign = least >= 0 if stored.has_zeros else least > 0
    return one_sign and least < _NEAR * float(stored.wide.calculate_qparams()[0])


def _made_of(storage: Storage, stored: Stored) -> list[Stored]:
    """The stored values, none of them negative, whose sum, product, copy or root a value is. Its relative error is then
    as large as theirs."""
    found: dict[Stored, None] = {}
    for made in (waiting := [stored.value(node) for node in stored.nodes]):
        keeps = isinstance(kind(made), Arithmetic | Moves) or is_transform(made) or str(made.target) == _ROOT
        for node in made.all_input_nodes if keeps else ():
            if node in storage.values:
                found[storage.values[node]] = None
            elif node.op == "call_function" and node not in waiting:
                waiting.append(node)
    return [part for part in found if float(part.observer.min_val) >= 0]


def beside_states(storage: Storage, nodes: Iterable[Node]) -> list[Step]:
    """Stores values in int16 that are computed beside a state whose errors last for more calls than are simulated, for
    all readers but layers.

    Such errors add up. Besides, such a state changes slowly, so calibration meets few different values of it, and it
    reaches further in use."""
    read = (storage.values[node] for node in nodes if node in storage.values)
    return _with_slices(storage, read, "since errors of a state add up from call to call")


def _with_slices(storage: Storage, read: Iterable[Stored], why: str) -> list[Step]:
    """Stores values in int16 for all readers but layers. Of slices of a weighted sum all are stored so, or none: if one
    is wider than the others, the sum is computed in float32. What recurrent layers give stays as it is."""
    values = dict.fromkeys(stored for stored in read if not is_recurrent(stored))
    sums = {made for stored in values for made in sliced(stored)}
    values |= {stored: None for stored in storage.stored if not sums.isdisjoint(sliced(stored))}
    roles: tuple[Role, ...] = ("products", "others")
    readings: list[Reading] = [
        (stored, role)
        for stored in values
        for role in roles
        if stored.width == "int8" and (readers := stored.readers(role))
        if role == "others" or all(map(reads_int16, readers))
    ]
    return [at_once(reading, "int16", why) for reading in readings]


def _met(stored: Stored) -> float:
    """The number of values that an observer counted; 0 if its range does not follow from data."""
    return float(stored.observer.histogram.sum()) if type(stored.observer) is RangeObserver else 0.0


def by_rows(storage: Storage) -> list[Step]:
    """Stores values in int16 if all weighted sums that read them are linears. The device rounds each of their rows to
    int8 by a scale of its own."""
    why = "since the device chooses a scale for each of its rows"
    return [
        Step((stored, "sums"), "int16", 0.0, math.inf, size_of(stored.nodes[0]), why)
        for stored in storage.stored
        if (readers := stored.readers("sums")) and all(_multiplies_rows(storage, user) for user in readers)
    ]


def _multiplies_rows(storage: Storage, user: Node) -> bool:
    found = operands(user)
    return found is not None and found[1] in storage.weights


def asked(storage: Storage) -> list[Step]:
    """Leaves values unrounded for calls that ask which elements are infinite or NaN."""
    return [unrounded(stored, "since the module asks where it is infinite or NaN") for stored in storage.asked()]


def _is_softmax(user: Node) -> bool:
    int8 = kind(user)
    return isinstance(int8, Rowwise) and int8.masked
