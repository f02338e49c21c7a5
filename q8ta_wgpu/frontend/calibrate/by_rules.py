"""Steps that are taken whatever noise was measured: those that the rules of q8ta_wgpu/quantization/rules.py ask for,
and those beside states and before linears whose rows have scales of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.fx import Graph, GraphModule, Node

from q8ta_wgpu.frontend.calibrate.need import Reading
from q8ta_wgpu.frontend.calibrate.observer import RangeObserver, observer_of
from q8ta_wgpu.frontend.calibrate.preparing import Unrun
from q8ta_wgpu.frontend.calibrate.row_scales import operands
from q8ta_wgpu.frontend.calibrate.steps import Step, at_once, is_recurrent, reads_int16, sliced
from q8ta_wgpu.frontend.calibrate.stored import Storage, Stored
from q8ta_wgpu.frontend.calibrate.zeroed import before_zeros
from q8ta_wgpu.frontend.importer.importer import Imported, import_float
from q8ta_wgpu.frontend.multiply_adds import size_of
from q8ta_wgpu.frontend.nodes import is_transform
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, QParams
from q8ta_wgpu.passes.plan.storage import INT8, INT16
from q8ta_wgpu.passes.plan.storage import Storage as Kind
from q8ta_wgpu.quantization import rules, stored
from q8ta_wgpu.quantization.steps import Costs
from q8ta_wgpu.quantization.stored import RESULT, ROLES, Role, StoredValues


class ByRules:
    """The steps that the rules ask for, or some of them by name.

    Attributes:
        first: the steps that are taken.
        least: the steps that may go on to float32.
        matched: the names of all rules that matched, by reading.
    """

    def __init__(self, storage: Storage, *only: str) -> None:
        found = {str(id(each)): each for each in storage.stored}
        values = _values(storage)
        matched = rules.matched(values, Costs(values), only)
        self.first, self.least = list[Step](), list[Step]()
        self.matched: dict[Reading, list[str]] = {
            (found[given.place[1]], role): [step.rule for step in steps] for (given, role), steps in matched.items()
        }
        for step in rules.deciding(matched):
            given, role = found[step.reading[0].place[1]], step.reading[1]
            if given.readers(role):
                made = at_once((given, role), step.width, step.reason, step.rule)
                (self.least if step.rule == rules.FEW_VALUES else self.first).append(made)


def decisions(
    storage: Storage, taken: Iterable[Step], matched: Mapping[Reading, Sequence[str]], noise: Mapping[Reading, float]
) -> tuple[Decision, ...]:
    """Why each value is stored as it is for those who read it in a role.

    Args:
        storage: of a calibrated module.
        taken: the steps to more bits.
        matched: the names of the rules that matched.
        noise: what was predicted of 8 bits, relative to what outputs should have at most.
    """
    steps = {step.reading: step for step in taken}
    found = []
    for reading in ((each, role) for each in storage.stored for role in ROLES if each.readers(role)):
        names = tuple(reading[0].value(node).name for node in reading[0].nodes)
        of_rules, step = tuple(matched.get(reading, ())), steps.get(reading)
        how = ("plan", "", 0.0) if step is None else (step.rule or "noise", step.reason, float(step.cost))
        width = reading[0].width if step is None else step.width
        found.append(Decision(names, reading[1], width, *how[:2], of_rules, noise.get(reading), how[2]))
    return tuple(found)


def beside_states(storage: Storage, nodes: Iterable[Node]) -> list[Step]:
    """Stores values in int16 that are computed beside a state whose errors last for more calls than are simulated, for
    all readers but layers.

    Such errors add up. Besides, such a state changes slowly, so calibration meets few different values of it, and it
    reaches further in use."""
    read = (storage.values[node] for node in nodes if node in storage.values)
    return _with_slices(storage, read, "since errors of a state add up from call to call", "states")


def _with_slices(storage: Storage, read: Iterable[Stored], why: str, rule: str) -> list[Step]:
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
    return [at_once(reading, "int16", why, rule) for reading in readings]


def by_rows(storage: Storage) -> list[Step]:
    """Stores values in int16 if all weighted sums that read them are linears. The device rounds each of their rows to
    int8 by a scale of its own."""
    why = "since the device chooses a scale for each of its rows"
    return [
        Step((stored, "sums"), "int16", 0.0, math.inf, size_of(stored.nodes[0]), why, "scales of rows")
        for stored in storage.stored
        if (readers := stored.readers("sums")) and all(_multiplies_rows(storage, user) for user in readers)
    ]


def _multiplies_rows(storage: Storage, user: Node) -> bool:
    found = operands(user)
    return found is not None and found[1] in storage.weights


def _values(storage: Storage) -> StoredValues:
    """What a calibrated module stores, as values of the graph that is imported of it."""
    imported = import_float(_plain(storage.module))
    names = {node.name: value for value, node in imported.values.items()}
    every = [_stored(each, names) for each in storage.stored]
    given = {name: each for each in every for name in each.values}
    transforms = {n.output for n in imported.graph.nodes if _transforms(imported, n.output)}
    return StoredValues(imported.graph, imported.calls, every, given, transforms)


def _stored(given: Stored, names: dict[str, str]) -> stored.Stored:
    """Values that one observer watches, by their names in the graph."""
    found = stored.Stored(("", str(id(given))), INT16 if given.width == "int16" else INT8, _Met(given))
    found.zeros = given.has_zeros
    for node in given.nodes:
        value = names.get(given.value(node).name)
        if value is None:
            continue
        found.values.append(value)
        for user, reads in given.users[node].items():
            edge = RESULT if user.op == "output" else user.name, value
            found.roles[edge] = found.roles.get(edge, frozenset()) | reads.roles
            found.moves.update([edge] if reads.moves else [])
    return found


def _transforms(imported: Imported, output: str) -> bool:
    """Whether a value is that of a transform."""
    node = imported.values.get(output)
    return node is not None and is_transform(node)


class _Met:
    """What an observer met."""

    def __init__(self, given: Stored) -> None:
        self._given, observer = given, given.observer
        self.low, self.high = (float(getattr(observer, name, 0.0)) for name in ("min_val", "max_val"))

    @property
    def count(self) -> float:
        """The number of values that an observer counted; 0 if its range does not follow from data."""
        observer = self._given.observer
        return float(observer.histogram.sum()) if type(observer) is RangeObserver else 0.0

    def stored(self, storage: Kind, clips: bool = True) -> QParams:
        """Scale and zero point in 8 or 16 bits."""
        wide = storage == INT16
        own = self._given.width == ("int16" if wide else "int8")
        scale, zero = (self._given.observer if own else self._given.wide).calculate_qparams()
        return QParams(float(scale), int(zero), INT16X4 if wide else INT8X4)


def _plain(observed: GraphModule) -> GraphModule:
    """A calibrated module without observers, watchers, and zeros for elements that are left out. It shares all tensors,
    and never runs."""
    graph, same = Graph(), dict[Node, Any]()
    for node in observed.graph.nodes:
        if node.op == "call_module" and observer_of(observed, node) is None:
            continue  # a watcher, which gives nothing
        moved = before_zeros(node) if node.op != "call_module" else node.all_input_nodes[0]
        same[node] = same[moved] if moved is not node else graph.node_copy(node, same.__getitem__)
    return Unrun(observed, graph)
