"""Layout sync: a layout for every value and a kernel for every node, with transitions where a reader needs another."""

from __future__ import annotations

from dataclasses import dataclass

from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.ir import INT8X4, Graph, Node
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.layout import INT8_LAYOUTS, ROW_MAJOR, Layout, packed_axis
from q8ta_wgpu.op import Call, Kernel, LayoutSet, Op
from q8ta_wgpu.target import Target
from q8ta_wgpu.verify import call_of


@dataclass(frozen=True)
class Step:
    """One dispatch of the plan: a node, the kernel that runs it and the layouts it reads and writes.

    Attributes:
        layouts: layout of each input, None for constant operands.
        out: layout of the output.
    """

    node: Node
    call: Call
    kernel: Kernel
    layouts: tuple[Layout | None, ...]
    out: Layout


@dataclass(frozen=True)
class Plan:
    """Steps in execution order and the layout of every value, inputs and layout-carrying constants included."""

    steps: tuple[Step, ...]
    layouts: dict[str, Layout]


def allowed(layouts: LayoutSet, dtype: str) -> tuple[Layout, ...]:
    """The members of a kernel's layout set that fit a dtype, in a fixed order."""
    order = INT8_LAYOUTS if dtype == INT8X4 else (ROW_MAJOR,)
    return tuple(layout for layout in order if layout in layouts)


def input_layouts(kernel: Kernel, op: Op, call: Call) -> list[tuple[Layout, ...]]:
    """Layouts allowed for each input; empty for constant operands."""
    found: list[tuple[Layout, ...]] = []
    activations = 0
    for position, t in enumerate(call.inputs):
        if op.operand(position).constant:
            found.append(())
            continue
        found.append(allowed(kernel.inputs[min(activations, len(kernel.inputs) - 1)], t.dtype))
        activations += 1
    return found


def usable_kernels(op: Op, call: Call, target: Target, place: str) -> list[Kernel]:
    """The kernels that can run a call on a target, preferred first; raises UnsupportedError if there is none."""
    found = [kernel for kernel in op.kernels if kernel.when(call, target)]
    if not found:
        types = ", ".join(map(str, call.inputs))
        raise UnsupportedError(f"no kernel of {op.name} can run {place} on {target.name} for inputs {types}")
    return found


def sync_layouts(graph: Graph, target: Target) -> Plan:
    """One forward sweep: keep the layout a value has if its reader allows it, else insert q8ta_clone, once per layout."""
    layouts = {
        name: Layout.PACKED_INT8_4W if graph.types[name].dtype == INT8X4 else ROW_MAJOR for name in graph.inputs
    }
    copies: dict[tuple[str, Layout], str] = {}
    steps: list[Step] = []
    for node in graph.nodes:
        op, call = OPS[node.op], call_of(graph, node)
        kernel = usable_kernels(op, call, target, f"node {node.output}")[0]
        choices = input_layouts(kernel, op, call)
        common: int | None = None
        chosen: list[Layout | None] = []
        names: list[str] = []
        for name, options in zip(node.inputs, choices, strict=True):
            if not options:
                chosen.append(None)
                names.append(name)
                continue
            if kernel.synced and common is not None:
                options = tuple(o for o in options if packed_axis(o) == common)
            current = layouts.get(name)
            layout = current if current in options else options[0]
            common = packed_axis(layout)
            chosen.append(layout)
            if name in graph.constants:
                layouts.setdefault(name, layout)
            if layouts[name] != layout:
                name = _copy(graph, copies, layouts, steps, name, layout)
            names.append(name)
        outs = allowed(kernel.output, call.output.dtype)
        if kernel.synced:
            outs = tuple(o for o in outs if packed_axis(o) == common)
        first = next((layout for layout in chosen if layout is not None), None)
        preferred = first if first in outs else outs[-2 if len(outs) == 3 else 0]
        layouts[node.output] = preferred
        renamed = Node(node.op, tuple(names), node.output, node.attrs, node.source)
        steps.append(Step(renamed, call, kernel, tuple(chosen), preferred))
    return Plan(tuple(steps), layouts)


def _copy(
    graph: Graph, copies: dict[tuple[str, Layout], str], layouts: dict[str, Layout], steps: list[Step], name: str, layout: Layout
) -> str:
    key = (name, layout)
    if key not in copies:
        copies[key] = f"{name}@{layout.short}"
        layouts[copies[key]] = layout
        t = graph.types[name]
        node = Node("q8ta_clone", (name,), copies[key])
        steps.append(Step(node, Call({}, (t,), t), OPS["q8ta_clone"].kernels[0], (layouts[name],), layout))
    return copies[key]


