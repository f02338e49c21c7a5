"""Layout sync's view of the operator table: the options of every node, with their costs, and the sets of the sweep."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import RANGES, UINT8, Call, Graph, Node, TensorType
from q8ta_wgpu.ir.kernel import ANY, Kernel, Variant
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.passes.layout_sync import cost
from q8ta_wgpu.passes.layout_sync.free_views import Digit, address_order, part_offset
from q8ta_wgpu.passes.layout_sync.greedy import Registered
from q8ta_wgpu.passes.layout_sync.limits import Fit, allowed, bound, preferred, refusal, too_large
from q8ta_wgpu.passes.layout_sync.op_repsets import NodeShapes, OpRepSets
from q8ta_wgpu.passes.layout_sync.problem import Choice, Option, Problem, undominated
from q8ta_wgpu.passes.layout_sync.tensor_repr import NO_STORAGE, TensorRepSet, TensorRepSetList


def kernel_options(fit: Fit, call: Call, base: float) -> list[Option[Layout]]:
    """The options of one kernel: one for each layout it writes. `base` is what it costs in any of them."""
    kernel, found = fit.kernel, []
    for out in fit.outs:
        reads = tuple(
            {
                layout: cost.read_cost(kernel, t, layout, out)
                for layout in layouts
                if not kernel.synced or cost.AXIS[layout] == cost.AXIS[out]
            }
            for t, layouts in zip(call.inputs, fit.reads, strict=True)
        )
        if all(read or not layouts for read, layouts in zip(reads, fit.reads, strict=True)):
            found.append(Option(kernel, reads, out, base + cost.write_cost(call.output, out)))
    return found


def free_views(call: Call, target: Target) -> list[Option[Layout]]:
    """For a view, permute or slice: the layouts in which its result is its operand's buffer as it is, or a part of
    it."""
    x, y = call.inputs[0], call.output
    if call.op == "slice":
        outs = bound(y, bound(x, allowed(ANY, x.dtype), target), target)
        return [Option(None, ({out: 0.0},), out, 0.0) for out in outs if slice_offset(call, out) is not None]
    if call.op not in ("view", "permute"):
        return []
    dims = tuple(call.attrs["dims"]) if call.op == "permute" else None
    layouts = allowed(ANY, x.dtype)
    views = []
    for out in bound(y, layouts, target):
        order = address_order(y.shape, out)
        reads = {layout: 0.0 for layout in bound(x, layouts, target) if address_order(x.shape, layout, dims) == order}
        if reads:
            views.append(Option(None, (reads,), out, 0.0))
    return views


def slice_offset(call: Call, layout: Layout) -> int | None:
    """The byte of its operand at which the result of a slice begins where it is a part of it in a layout; else None."""
    x, attrs = call.inputs[0], call.attrs
    taken = range(x.shape[attrs["dim"]])[attrs["start"] : attrs["end"] : attrs["step"]]
    return part_offset(x, call.output, attrs["dim"], taken.start, layout) if attrs["step"] == 1 else None


Options = tuple[Option[Layout], ...]
Known = dict[object, Options]


def options(
    graph: Graph,
    node: Node,
    target: Target,
    known: Known,
    measured: cost.Measurements = cost.UNMEASURED,
    ports: Collection[str] = (),
) -> Options:
    """All options worth considering for a node, only the measured ones of a measured call. `ports` are values that are
    read or written from outside, as those that are the same buffer: no part of a buffer stands for one.

    Raises UnsupportedError if no kernel is made for the call, DeviceError if none fits the target.

    Equal nodes of a network share one object, kept in `known`: scale and zero point play no part.
    """
    call = graph.call(node)
    fixed = any(name in graph.constants for name in node.inputs) or (node.op == "slice" and node.output in ports)
    views = [] if fixed else free_views(call, target)
    types = call.unscaled().inputs, call.output.unscaled()
    same: tuple[object, ...] = (call.op, types, tuple((v.out, *v.reads[0]) for v in views))
    if variants := measured.get(call):
        key = (*same, frozenset(variants.items()))
        if key not in known:
            known[key] = undominated([*views, *measured_options(variants)])
        return known[key]
    fits = preferred(call, target)
    bases = tuple(cost.base_cost(fit.kernel, call) for fit in fits)
    key = (*same, tuple(fit.kernel for fit in fits), bases)
    if key not in known:
        runs = [kernel_options(fit, call, base) for fit, base in zip(fits, bases, strict=True)]
        known[key] = undominated([*views, *(option for run in runs for option in run)])
    if not known[key]:
        raise refusal(call, target, f"node {node.output} ({node.op}){node.origin}", (*node.inputs, node.output))
    return known[key]


def measured_options(variants: Mapping[Variant, float]) -> list[Option[Layout]]:
    """The options of a measured call: one for each variant, with just the layouts it was measured in."""
    return [
        Option(v.kernel, tuple({} if layout is None else {layout: 0.0} for layout in v.reads), v.out, measured)
        for v, measured in variants.items()
    ]


Transitions = Mapping[tuple[Layout, Layout], tuple[float, Kernel]]
"""(from, to) -> cost and kernel of the cheapest q8ta_clone; empty for float32, which has one layout."""


def transitions(t: TensorType, target: Target, measured: cost.Measurements = cost.UNMEASURED) -> Transitions:
    """The transitions of a value; among measurements, those that were not measured cost what a copy does."""
    estimated = _estimated_transitions(t, target)
    if not measured:
        return estimated
    found = {pair: (cost.copy_cost(t, *pair), kernel) for pair, (_, kernel) in estimated.items()}
    variants = measured.get(clone_call(t), {})
    for variant in sorted(variants, key=variants.__getitem__, reverse=True):  # the cheapest comes last
        if variant.reads[0] is not None:
            found[variant.reads[0], variant.out] = variants[variant], variant.kernel
    return found


@functools.lru_cache(maxsize=1 << 12)
def _estimated_transitions(t: TensorType, target: Target) -> Transitions:
    found: dict[tuple[Layout, Layout], tuple[float, Kernel]] = {}
    if t.dtype not in RANGES:
        return found
    call = clone_call(t)
    for fit in preferred(call, target):
        for option in kernel_options(fit, call, cost.base_cost(fit.kernel, call)):
            for source, read in option.reads[0].items():
                total = option.cost + read
                if (source, option.out) not in found or total < found[source, option.out][0]:
                    found[source, option.out] = total, fit.kernel
    return found


def clone_call(t: TensorType) -> Call:
    """The call of q8ta_clone on a value of type `t`."""
    return Call("q8ta_clone", {}, (t,), t)


def problem_of(graph: Graph, target: Target, measured: cost.Measurements = cost.UNMEASURED) -> Problem[Layout]:
    """The layout problem of a graph on a target, by `cost` and what was measured."""

    @functools.cache
    def of_type(t: TensorType) -> Transitions:
        return transitions(t, target, measured)

    def transition(name: str, source: Layout, wanted: Layout) -> float:
        return of_type(graph.types[name]).get((source, wanted), (math.inf,))[0]

    def free(name: str) -> tuple[Layout, ...]:
        t = graph.types[name]
        found = bound(t, allowed(ANY, t.dtype), target)
        if not found:
            size = min(cost.size(t, layout) for layout in allowed(ANY, t.dtype))
            raise DeviceError(
                f"{too_large(f'input {name}', size, target)}: use a smaller one, or q8ta_wgpu.TiledSession"
            )
        return as_given(t, found) if name in graph.uint8 | graph.bools else found

    known: Known = {}

    def of_node(node: Node) -> Options:
        found = options(graph, node, target, known, measured, ports)
        if node.output in given:
            t = graph.types[node.output]
            rows = as_given(t, bound(t, allowed(ANY, t.dtype), target))
            found = tuple(option for option in found if option.out in rows) or found
        if node.output not in kept:
            return found
        every = (*found, *options(graph, node, target, {}, ports=ports)) if measured else found
        return tuple(option for option in every if option.out == kept[node.output])

    kept, ports = _kept(graph, target), _ports(graph)
    given = {name for name in graph.outputs if graph.types[name].q == UINT8}
    return Problem(
        tuple(Choice(n.inputs, n.output, of_node(n)) for n in graph.nodes),
        {name: (kept[name],) if name in kept else free(name) for name in graph.inputs},
        graph.constants.keys(),
        transition,
    )


def as_given(t: TensorType, layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """Of the layouts of an input or a result, those that keep its elements in the order of rows, with the fewest bytes;
    all of them if none does.

    The host packs images of uint8 and masks of bools. In the order of rows that is a copy. Other orders take it longer
    than a device takes for a network: 32 images of 240x426 take 0.2 ms in 4W and 15 ms in 4C, in four times the bytes
    (`python -m pytest bench/bench_host.py -k packing`). Int8 inputs are free, as `Session.bind` may take them from
    another program as they lie."""
    rows = [layout for layout in layouts if _is_in_rows(address_order(t.shape, layout) or ())]
    least = min((cost.size(t, layout) for layout in rows), default=0)
    return tuple(layout for layout in rows if cost.size(t, layout) == least) or layouts


def _is_in_rows(digits: Sequence[Digit]) -> bool:
    """Whether addresses grow with the row-major index: every digit has one stride, smaller than the one before."""
    strides = [stride for _, (stride, *_) in digits]
    return all(len(each) == 1 for _, each in digits) and all(a > b for a, b in itertools.pairwise(strides))


def _ports(graph: Graph) -> set[str]:
    """Inputs and outputs, what may be a part of an input, and what an output may be a part of."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    moves = [node for node in graph.nodes if node.op in ("view", "permute", "slice")]
    for node in moves:
        inputs.update((node.output,) if node.inputs[0] in inputs else ())
    for node in reversed(moves):
        outputs.update(node.inputs[:1] if node.output in outputs else ())
    return inputs | outputs


def _kept(graph: Graph, target: Target) -> dict[str, Layout]:
    """The layouts of states as they are read and written, which is one buffer: the first that fits."""
    types = {name: graph.types[name] for state in graph.states for name in (state.read, state.written)}
    fitting = {name: bound(t, allowed(ANY, t.dtype), target) for name, t in types.items()}
    return {name: layouts[0] for name, layouts in fitting.items() if layouts}


def registered(graph: Graph, target: Target) -> list[Registered]:
    """Every node with the representation sets of its kernels, for the sweep."""
    found, kept = [], _kept(graph, target)
    for node in graph.nodes:
        sets = []
        for fit in preferred(graph.call(node), target):
            pairs = zip(node.inputs, fit.reads, strict=True)
            reads = tuple(() if name in graph.constants else layouts for name, layouts in pairs)
            outs = tuple(out for out in fit.outs if out == kept.get(node.output, out))
            if outs:
                sets.append(_repsets(reads, outs, fit.kernel.synced))
        found.append(Registered(node.inputs, node.output, tuple(sets)))
    return found


@functools.lru_cache(maxsize=1 << 12)
def _repsets(reads: tuple[tuple[Layout, ...], ...], outs: tuple[Layout, ...], synced: bool) -> OpRepSets:
    """A kernel's registration, in buffers, which fit any shape: one set for all arguments if it is synced, else one
    each; nothing is asked of constants."""
    shape = (1,)
    node = NodeShapes(tuple((shape,) if layouts else () for layouts in reads), (shape,))
    sets = [TensorRepSet(layouts) for layouts in reads]
    if synced:
        sets = [repset for repset in sets if not repset.is_empty()][:1]
    return OpRepSets(TensorRepSetList(sets or NO_STORAGE), TensorRepSetList(TensorRepSet(outs)), node)
