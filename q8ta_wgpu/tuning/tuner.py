"""Chooses kernels and layouts by measurement: candidates are timed on the device.

For each distinct call of a graph the candidates are all kernels that can run it, preferred or not, in

* the layouts that the plan by estimates reads and writes there, and
* each layout that occurs in that plan, for all operands and the result alike. An operand that the kernel accepts in
  only one layout has that one. (Under 'greedy' the layouts are fixed, so there are no others.)

Convolutions that can be split into im2col and a 1x1 convolution (passes/use_im2col.py) are timed both ways, and so is a
network with and without prologues.

Times are converted to the bytes that a copy moves meanwhile and replace the estimates of `layout_sync.cost`. Then
layout sync plans again. Transitions are measured when a plan uses them, until all dispatches of the plan are measured.
All kernels give the same bytes, so tuning changes only the speed of a network.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array, Call, Graph
from q8ta_wgpu.ir.kernel import Variant
from q8ta_wgpu.ir.layout import Layout, word_count
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, sync_layouts
from q8ta_wgpu.passes.layout_sync.limits import fitting
from q8ta_wgpu.passes.use_im2col import by_rule, rewritable, with_im2col
from q8ta_wgpu.program import link
from q8ta_wgpu.progress import Update, bar
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.findings import Findings
from q8ta_wgpu.tuning.timer import Timer
from q8ta_wgpu.tuning.tuning_report import Tuning

MARGIN = 0.03
"""A variant of the plan by estimates is replaced only by one that is faster by this share. Smaller differences are
noise, and other kernels are more shaders to compile."""


def tune(forms: Sequence[Graph], device: Device, layouts: str = "optimal", progress: Update | None = None) -> Tuning:
    """Times the variants of each node of a network on `device`, and plans with these times.

    Times are stored in the user's cache for the adapter. Only those that are not there are measured.

    Args:
        forms: the network lowered for the device, with every convolution in one dispatch: as the rules have it, then
            in other forms.
        device: the device to time on.
        layouts: the policy of layout sync. Under 'greedy', layouts stay those of the sweep.
        progress: called with (candidates timed, candidates to time as far as known, operator) before each call is
            timed, and at the end with two equal numbers. By default a bar on stderr, if that is a terminal.

    Raises DeviceError if the device has no timestamp queries or fails, UnsupportedError as `sync_layouts` does.
    """
    if not device.timestamps:
        raise DeviceError(
            f"{device.name} has no timestamp queries, so kernels cannot be timed: leave tune out, take an adapter that "
            "has them, or request a device of your own with required_features=['timestamp-query']"
        )
    with bar("tuning", shown=progress is None) as update:
        return _Tuner(forms, device, layouts, progress or update).run()


def candidates(call: Call, target: Target, uniform: Iterable[Layout], planned: Iterable[Variant] = ()) -> list[Variant]:
    """The variants of a call to time: the planned ones, then every kernel in the layouts of these, and in each of the
    `uniform` layouts for all operands and the result."""
    variants = dict.fromkeys(planned)
    combinations = [(variant.reads, variant.out) for variant in variants]
    for fit in fitting(call, target):
        kernel, outs = fit.kernel, fit.outs
        readable: list[tuple[Layout | None, ...]] = [layouts or (None,) for layouts in fit.reads]
        alike = [
            (
                tuple(layouts[0] if len(layouts) == 1 else layout for layouts in readable),
                outs[0] if len(outs) == 1 else layout,
            )
            for layout in uniform
        ]
        for reads, out in (*combinations, *alike):
            fits = out in outs and all(read in layouts for read, layouts in zip(reads, readable, strict=True))
            axes = {cost.AXIS[layout] for layout in (*reads, out) if layout is not None} if fits else set()
            if fits and not (kernel.synced and len(axes) > 1):
                variants[Variant(kernel, reads, out)] = None
    return list(variants)


def dispatch_key(variant: Variant, call: Call, target: Target) -> str:
    """The cache key of a measurement: the kernel's name, and a hash of everything that its time depends on.

    That is the linked WGSL with its constants and layouts, the grid, the shapes, and the sizes in the uniform fields.
    Scales, zero points and bounds are left out, so that equal layers of a network are timed once.
    """
    op, kernel, words = OPS[call.op], variant.kernel, word_count(call.output.shape, variant.out)
    fields = link.fields(kernel, op, call.unscaled(), words)
    text = link.link(kernel, op, call, variant.reads, variant.out, fields, target)
    sizes = [int(v) if isinstance(v, np.uint32) else v for v in fields.values() if isinstance(v, (tuple, np.uint32))]
    grid = kernel.grid(call, variant.out, target)
    shapes = [(t.shape, t.dtype) for t in (*call.inputs, call.output)]
    content = f"{text}\n{grid} {sizes} {shapes}".encode()
    return f"{kernel.name} {hashlib.blake2b(content, digest_size=12).hexdigest()}"


COPY_KEY = "copy of 10^9 bytes"

LONGEST = 1e12
"""Upper bound of a time that is kept, in microseconds."""


def times_of(info: Mapping[str, Any]) -> Findings:
    """The microseconds that are kept for an adapter, by its `Device.info`."""
    return Findings.of("tune", info, lambda us: isinstance(us, float) and 0 < us < LONGEST)


@dataclass
class _Group:
    """A call to time: its constants by position, its variants in the plan by estimates, and layouts to try for all
    operands alike."""

    call: Call
    constants: dict[int, Array] = field(default_factory=dict)
    planned: list[Variant] = field(default_factory=list)
    uniform: Sequence[Layout] = ()


@dataclass
class _Tuner:
    forms: Sequence[Graph]
    device: Device
    policy: str
    progress: Update

    def __post_init__(self) -> None:
        self.started = time.perf_counter()
        self.target = self.device.target
        self.cache = times_of(self.device.info)
        self.timer = Timer(self.device)
        self.microseconds: dict[Call, dict[Variant, float]] = {}
        self.favoured: set[tuple[Call, Variant]] = set()
        self.asked: set[tuple[Call, Variant]] = set()
        self.known: set[str] = set()
        self.timed: set[str] = set()

    def run(self) -> Tuning:
        """Measures and plans in turns, until all dispatches of the plan are measured."""
        first = self.forms[0]
        rules = sync_layouts(with_im2col(first, by_rule(first, self.target)), self.target, self.policy)
        try:
            if COPY_KEY not in self.cache.found:
                self.cache.found[COPY_KEY] = self.timer.copy()
                self.timed.add(COPY_KEY)
            self.known.add(COPY_KEY)
            found = [
                made for form in self.forms if form is first or form.nodes != first.nodes for made in self._plans(form)
            ]
            plan, graph = min(found, key=lambda made: made[0].cost)
        finally:
            if self.timed:
                self.cache.save()
                self.progress(len(self.timed), len(self.timed), "")
        return Tuning(
            device=self.device.name,
            graph=graph,
            rules=rules,
            plan=plan,
            microseconds=self.microseconds,
            timed=len(self.timed),
            cached=len(self.known - self.timed),
            seconds=time.perf_counter() - self.started,
            cache=self.cache.path,
            note=self.cache.note,
        )

    def _plans(self, graph: Graph) -> list[tuple[Plan, Graph]]:
        """The best plans of a form of the network by measured times, each with its graph: with the convolutions split
        that the rule splits, and with those that are faster so."""
        self._measure(list(self._groups(graph, sync_layouts(graph, self.target, self.policy)).values()))
        graphs = [with_im2col(graph, by_rule(graph, self.target)), with_im2col(graph, self._to_split(graph))]
        return [(self._measured_plan(g), g) for g in graphs[: 1 if graphs[0].nodes == graphs[1].nodes else 2]]

    def _groups(self, graph: Graph, rules: Plan) -> dict[Call, _Group]:
        """The distinct calls of a graph, and of the transitions in its plan."""
        uniform = tuple(dict.fromkeys(rules.layouts.values())) if self.policy == "optimal" else ()
        found: dict[Call, _Group] = {}
        for node in graph.nodes:
            call = graph.call(node)
            arrays = {i: graph.constants[n] for i, n in enumerate(node.inputs) if n in graph.constants}
            found.setdefault(call, _Group(call, arrays, uniform=uniform))
        for step in rules.steps:
            found.setdefault(step.call, _Group(step.call)).planned.append(step.variant)
            self.favoured.add((step.call, step.variant))
        return found

    def _to_split(self, whole: Graph) -> list[str]:
        """Results of the convolutions of a graph to split into im2col and a 1x1 convolution: if both ways are measured,
        those that are faster so; else those of the rule."""
        single = {node.output: whole.call(node) for node in whole.nodes}
        if not (names := list(rewritable(whole))):
            return []
        graph = with_im2col(whole, names)
        groups = self._groups(graph, sync_layouts(graph, self.target, self.policy))
        producers = {node.output: node for node in graph.nodes}
        pairs = {name: [graph.call(producers[n]) for n in (producers[name].inputs[0], name)] for name in names}
        self._measure([groups[call] for call in dict.fromkeys(itertools.chain(*pairs.values()))])
        split = set(by_rule(whole, self.target))
        for name, pair in pairs.items():
            one, *two = (min(self.microseconds.get(call, {}).values(), default=None) for call in (single[name], *pair))
            if one is not None and None not in two:
                faster = sum(us for us in two if us is not None) < (1 - MARGIN) * one
                split = split | {name} if faster else split - {name}
        return sorted(split)

    def _measured_plan(self, graph: Graph) -> Plan:
        """The best plan by measured times, its transitions measured, too."""
        plan = self._plan(graph)
        while missing := self._missing(plan):
            self._measure(missing)
            plan = self._plan(graph)
        return plan

    def _missing(self, plan: Plan) -> list[_Group]:
        """The transitions of a plan that were not measured, each returned only once."""
        found: dict[Call, _Group] = {}
        for step in plan.transitions:
            pair = step.call, step.variant
            if pair not in self.asked and step.variant not in self.microseconds.get(step.call, {}):
                found.setdefault(step.call, _Group(step.call)).planned.append(step.variant)
                self.asked.add(pair)
        return list(found.values())

    def _measure(self, groups: Sequence[_Group]) -> None:
        """Looks up or measures the time of every candidate of the groups."""
        work = []
        for group in groups:
            variants = candidates(group.call, self.target, group.uniform, group.planned)
            work.append((group, {variant: dispatch_key(variant, group.call, self.target) for variant in variants}))
        total = len(self.timed) + len({key for _, keys in work for key in keys.values()} - self.cache.found.keys())
        for group, keys in work:
            new = {key: variant for variant, key in keys.items() if key not in self.cache.found}
            if new:
                self.progress(len(self.timed), total, group.call.op)
                known = {variant: self.cache.found[key] for variant, key in keys.items() if key not in new}
                found = self.timer.times(group.call, group.constants, list(new.values()), known)
                self.cache.found.update(zip(new, found, strict=True))
                self.timed.update(new)
            self.known.update(keys.values())
            measured = self.microseconds.setdefault(group.call, {})
            measured.update({variant: self.cache.found[key] for variant, key in keys.items()})

    def _plan(self, graph: Graph) -> Plan:
        """The best plan by the times so far."""
        rate = 1e9 / self.cache.found[COPY_KEY]
        calls = {
            call: {v: us * rate * (1 - MARGIN if (call, v) in self.favoured else 1) for v, us in variants.items()}
            for call, variants in self.microseconds.items()
            if variants
        }
        return sync_layouts(graph, self.target, self.policy, calls)
