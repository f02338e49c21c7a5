"""From the operator table to layout sync's problem: the options of every node with their costs, and sets for greedy."""

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
    """The options of one kernel: one for each layout that it writes. `base` is the part of the cost that all share."""
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
    """The options in which the result of a view or permute is its operand's buffer, or of a slice a part of it."""
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
    """The byte offset of a slice's result in its operand's buffer; None where it is not contiguous in that layout."""
    x, attrs = call.inputs[0], call.attrs
    indices = range(x.shape[attrs["dim"]])[attrs["start"] : attrs["end"] : attrs["step"]]
    return part_offset(x, call.output, attrs["dim"], indices.start, layout) if attrs["step"] == 1 else None


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
    """The options of a node without dominated ones; of a measured call only measured ones.

    Args:
        graph, node, target: the node and where it runs.
        known: cache, so that nodes with equal options share one object. Scale and zero point do not matter.
        measured: costs by call and variant.
        ports: values in the buffers of inputs and outputs. A slice that is one is no free view.

    Raises UnsupportedError if no kernel supports the call, DeviceError if none fits the target.
    """
    call = graph.call(node)
    no_view = any(name in graph.constants for name in node.inputs) or (node.op == "slice" and node.output in ports)
    views = [] if no_view else free_views(call, target)
    types = call.unscaled().inputs, call.output.unscaled()
    kind: tuple[object, ...] = (call.op, types, tuple((v.out, *v.reads[0]) for v in views))
    if variants := measured.get(call):
        key = (*kind, frozenset(variants.items()))
        if key not in known:
            known[key] = undominated([*views, *measured_options(variants)])
        return known[key]
    fits = preferred(call, target)
    bases = tuple(cost.base_cost(fit.kernel, call) for fit in fits)
    key = (*kind, tuple(fit.kernel for fit in fits), bases)
    if key not in known:
        by_kernel = [kernel_options(fit, call, base) for fit, base in zip(fits, bases, strict=True)]
        known[key] = undominated([*views, *itertools.chain(*by_kernel)])
    if not known[key]:
        raise refusal(call, target, f"node {node.output} ({node.op}){node.origin}", (*node.inputs, node.output))
    return known[key]


def measured_options(variants: Mapping[Variant, float]) -> list[Option[Layout]]:
    """The options of a measured call: one for each variant, with only the layouts it was measured in."""
    return [
        Option(v.kernel, tuple({} if layout is None else {layout: 0.0} for layout in v.reads), v.out, measured)
        for v, measured in variants.items()
    ]


Transitions = Mapping[tuple[Layout, Layout], tuple[float, Kernel]]
"""(from, to) -> cost and kernel of the cheapest q8ta_clone; empty for float32, which has one layout."""


def transitions(t: TensorType, target: Target, measured: cost.Measurements = cost.UNMEASURED) -> Transitions:
    """The transitions of a value. With measurements, a transition that was not measured costs `copy_cost`."""
    estimated = _estimated_transitions(t.unscaled(), target)
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
    """The layout problem of a graph on a target, with measured costs where there are any, else those of `cost`."""

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
        return as_given(t, found) if graph.values[name].given else found

    known: Known = {}

    def of_node(node: Node) -> Options:
        found = options(graph, node, target, known, measured, ports)
        if node.output in uint8_results:
            t = graph.types[node.output]
            rows = as_given(t, bound(t, allowed(ANY, t.dtype), target))
            found = tuple(option for option in found if option.out in rows) or found
        if node.output not in states:
            return found
        every = (*found, *options(graph, node, target, {}, ports=ports)) if measured else found
        return tuple(option for option in every if option.out == states[node.output])

    states, ports = _state_layouts(graph, target), _ports(graph)
    uint8_results = {name for name in graph.outputs if graph.types[name].q == UINT8}
    return Problem(
        tuple(Choice(n.inputs, n.output, of_node(n)) for n in graph.nodes),
        {name: (states[name],) if name in states else free(name) for name in graph.inputs},
        graph.constants.keys(),
        transition,
    )


def as_given(t: TensorType, layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """The layouts of an input or result that keep its elements in row-major order, in the fewest bytes; all if none is.

    The host packs uint8 images and masks of bools. In row-major order that is a copy. Other orders take it longer than
    a device takes for a network: 32 images of 240x426 take 0.2 ms in 4W and 15 ms in 4C, in four times the bytes. Int8
    inputs may have any layout, since `Session.bind` may read them from another program's buffer."""
    rows = [layout for layout in layouts if _is_in_rows(address_order(t.shape, layout) or ())]
    least = min((cost.size(t, layout) for layout in rows), default=0)
    return tuple(layout for layout in rows if cost.size(t, layout) == least) or layouts


def _is_in_rows(digits: Sequence[Digit]) -> bool:
    """Whether addresses grow with the row-major index: every digit has one stride, smaller than the one before."""
    strides = [stride for _, (stride, *_) in digits]
    return all(len(each) == 1 for _, each in digits) and all(a > b for a, b in itertools.pairwise(strides))


def _ports(graph: Graph) -> set[str]:
    """Inputs and outputs, and values that may share their buffers through views, permutes and slices."""
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    moves = [node for node in graph.nodes if node.op in ("view", "permute", "slice")]
    for node in moves:
        inputs.update((node.output,) if node.inputs[0] in inputs else ())
    for node in reversed(moves):
        outputs.update(node.inputs[:1] if node.output in outputs else ())
    return inputs | outputs


def _state_layouts(graph: Graph, target: Target) -> dict[str, Layout]:
    """The layout of each state as it is read and as it is written: the first that fits, since both are one buffer."""
    types = {name: graph.types[name] for state in graph.states for name in (state.read, state.written)}
    fitting = {name: bound(t, allowed(ANY, t.dtype), target) for name, t in types.items()}
    return {name: layouts[0] for name, layouts in fitting.items() if layouts}


def registered(graph: Graph, target: Target) -> list[Registered]:
    """Every node with the representation sets of its kernels, for the greedy sweep."""
    found, states = [], _state_layouts(graph, target)
    for node in graph.nodes:
        sets = []
        for fit in preferred(graph.call(node), target):
            pairs = zip(node.inputs, fit.reads, strict=True)
            reads = tuple(() if name in graph.constants else layouts for name, layouts in pairs)
            outs = tuple(out for out in fit.outs if out == states.get(node.output, out))
            if outs:
                sets.append(_repsets(reads, outs, fit.kernel.synced))
        found.append(Registered(node.inputs, node.output, tuple(sets)))
    return found


@functools.lru_cache(maxsize=1 << 12)
def _repsets(reads: tuple[tuple[Layout, ...], ...], outs: tuple[Layout, ...], synced: bool) -> OpRepSets:
    """A kernel's sets, of buffers only: one set for all arguments if it is synced, else one for each. Constants are
    free."""
    shape = (1,)
    node = NodeShapes(tuple((shape,) if layouts else () for layouts in reads), (shape,))
    sets = [TensorRepSet(layouts) for layouts in reads]
    if synced:
        sets = [repset for repset in sets if not repset.is_empty()][:1]
    return OpRepSets(TensorRepSetList(sets or NO_STORAGE), TensorRepSetList(TensorRepSet(outs)), node)
