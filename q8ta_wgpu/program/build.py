"""Builds a program of a plan: linked WGSL, packed constants, buffer slots, dispatches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import RANGES, Array, Graph, State, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Layout, pack, word_count
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.passes.layout_sync.limits import too_large
from q8ta_wgpu.program import link
from q8ta_wgpu.program import slots as memory
from q8ta_wgpu.program.program import BufferRef, Dispatch, Port, Program

MANY = 16 << 20
"""Bytes of constants from which several threads pack them: one took 1.3 seconds for a decoder's 1.5 GB."""

_THREADS = 8
"""Threads that pack. Each has a weight's copies in memory; what more of them would read and write, memory limits."""

Linked = Callable[[str, int], None]
"""Called with each linked shader and its number of storage buffers, while weights are packed."""


def build(graph: Graph, target: Target, plan: Plan, linked: Linked = lambda text, buffers: None) -> Program:
    """The program that runs a plan of a lowered `graph` on `target`.

    Raises DeviceError if a tensor or a packed constant is larger than the target can bind.
    """
    builder = _Builder(graph, target, plan)
    many = sum(array.nbytes for array in graph.constants.values()) >= MANY
    with ThreadPoolExecutor(_THREADS) if many else contextlib.nullcontext() as pool:
        if pool:
            builder.pack_ahead(pool)
        for step in plan.steps:
            linked(builder.link(step), len(step.node.inputs) + 1)
        for step in plan.steps:
            builder.add(step)
    return builder.finish()


@dataclass
class _Builder:
    graph: Graph
    target: Target
    plan: Plan
    shaders: dict[str, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    params: list[Params] = field(default_factory=list)
    packing: dict[object, Future[Array]] = field(default_factory=dict)
    constants: list[Array] = field(default_factory=list)
    constant_index: dict[object, int] = field(default_factory=dict)
    uniforms: bytearray = field(default_factory=bytearray)
    dispatches: list[Dispatch] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        steps = self.plan.steps
        sizes: dict[str, int] = {name: self._bytes(self.graph.types[name], name) for name in self.graph.inputs}
        sizes |= {step.node.output: self._bytes(step.call.output, step.node.output) for step in steps}
        root, states = self.plan.root, self.graph.states
        for name in self.plan.aliases:
            sizes[root(name)] = max(sizes[root(name)], self._bytes(self.graph.types[name], name))
        written = {state.written: state.read for state in states}  # a state is read and written in one slot
        lives = memory.lifetimes(
            [[root(name) for name in step.node.inputs] for step in steps],
            [step.node.output for step in steps],
            self.graph.inputs,
            [root(name) for name in (*self.graph.results, *(state.read for state in states))],
            sizes,
        )
        self.slot, self.slots = memory.assign_slots({name: life for name, life in lives.items() if name not in written})
        self.slot |= {name: self.slot[read] for name, read in written.items()}
        self.slot |= {name: self.slot[root(name)] for name in self.plan.aliases}
        for name, size in sizes.items():
            self._check(f"value {name}", size)

    def _check(self, what: str, size: int) -> None:
        if size > self.target.binding_size:
            raise DeviceError(too_large(what, size, self.target))

    def _bytes(self, t: TensorType, name: str) -> int:
        return max(16, -(-t.stored_bytes(self.plan.layouts[name]) // 16) * 16)

    def link(self, step: Step) -> str:
        """The WGSL of a step."""
        op, call, kernel, out = OPS[step.node.op], step.call, step.variant.kernel, step.variant.out
        self.params.append(link.fields(kernel, op, call, word_count(call.output.shape, out)))
        text = link.link(kernel, op, call, step.variant.reads, out, self.params[-1], self.target)
        self.shaders.setdefault(text, len(self.shaders))
        self.texts.append(text)
        return text

    def add(self, step: Step) -> None:
        """Packs the constants of a step and appends its dispatch."""
        op, call, kernel, out = OPS[step.node.op], step.call, step.variant.kernel, step.variant.out
        number = len(self.dispatches)
        buffers: list[BufferRef] = []
        moved = call.output.stored_bytes(out)
        for position, (name, layout) in enumerate(zip(step.node.inputs, step.variant.reads, strict=True)):
            if name in self.graph.constants:
                buffers.append(("constant", self._constant(step, position, name)))
                moved += int(self.constants[buffers[-1][1]].nbytes)
            else:
                buffers.append(("slot", self.slot[name]))
                moved += call.inputs[position].stored_bytes(layout or self.plan.layouts[name])
        buffers.append(("slot", self.slot[step.node.output]))
        offsets = (*map(self.plan.offset, step.node.inputs), 0)
        self.dispatches.append(
            Dispatch(
                kernel=kernel.name,
                value=step.node.output,
                source=step.node.source,
                shader=self.shaders[self.texts[number]],
                buffers=tuple(buffers),
                uniform=self._uniform(link.params_bytes(self.params[number])),
                grid=kernel.grid(call, out, self.target),
                layouts=tuple(layout.short for layout in (*step.variant.reads, out) if layout is not None),
                moved=moved,
                macs=op.macs(call),
                stages=" -> ".join(call.attrs[name].label for name in ("prologue", "epilogue") if name in call.attrs),
                offsets=offsets if any(offsets) else (),
            )
        )

    def _uniform(self, data: bytes) -> tuple[int, int]:
        offset = len(self.uniforms)
        self.uniforms += data + bytes(-len(data) % self.target.uniform_alignment)
        return offset, len(data)

    def pack_ahead(self, pool: ThreadPoolExecutor) -> None:
        """Begins to pack all constants, the largest first: a decoder's last linear has a sixth of its bytes, and was
        packed alone at the end."""
        constants = self.graph.constants
        read = [(step, i, name) for step in self.plan.steps for i, name in enumerate(step.node.inputs)]
        found = [each for each in read if each[2] in constants]
        for step, position, name in sorted(found, key=lambda each: -constants[each[2]].nbytes):
            key = self._key(step, position, name)
            if key not in self.packing:
                self.packing[key] = pool.submit(self._packed, step, position, name)

    def _key(self, step: Step, position: int, name: str) -> object:
        """What steps that read one packed constant have in common."""
        prepack = step.variant.kernel.prepack.get(position)
        return (name, step.variant.reads[position]) if prepack is None else (name, prepack, step.call)

    def _packed(self, step: Step, position: int, name: str) -> Array:
        """The words of a constant as a step reads it."""
        array, layout = self.graph.constants[name], step.variant.reads[position]
        prepack: Callable[..., Array] | None = step.variant.kernel.prepack.get(position)
        if layout is not None and self.graph.types[name].q:
            return pack(array, layout)
        return array if prepack is None else prepack(step.call, array)

    def _constant(self, step: Step, position: int, name: str) -> int:
        key = self._key(step, position, name)
        if key not in self.constant_index:
            packing = self.packing.get(key)
            array = packing.result() if packing else self._packed(step, position, name)
            self._check(f"constant {name}, as {step.variant.kernel.name} packs it,", array.nbytes)
            self.constant_index[key] = len(self.constants)
            self.constants.append(_whole_words(array))
        return self.constant_index[key]

    def _port(self, name: str) -> Port:
        t = self.graph.types[name]
        row_major = Layout.PACKED_INT8_4W if t.dtype in RANGES else Layout.TENSOR_WIDTH_PACKED
        layout = self.plan.layouts.get(name, row_major)
        buffer: BufferRef = (
            ("slot", self.slot[name]) if name in self.slot else ("constant", self._output_constant(name, layout))
        )
        return Port(name, t.shape, t.dtype, layout.short, buffer, t.stored_bytes(layout))

    def _state(self, state: State) -> tuple[Port, Array]:
        port, array = self._port(state.read), self.graph.constants[state.initial]
        layout = self.plan.layouts[state.read]
        return port, _whole_words(pack(array, layout) if layout.is_int8 else array)

    def _output_constant(self, name: str, layout: Layout) -> int:
        array = self.graph.constants[name]
        self.constants.append(_whole_words(pack(array, layout) if layout.is_int8 else array))
        return len(self.constants) - 1

    def finish(self) -> Program:
        """The program of all added steps."""
        return Program(
            shaders=tuple(self.shaders),
            inputs=tuple(self._port(name) for name in self.graph.arguments),
            outputs=tuple(self._port(name) for name in self.graph.results),
            states=tuple(self._state(state) for state in self.graph.states),
            slots=tuple(self.slots),
            constants=tuple(self.constants),
            uniforms=bytes(self.uniforms),
            dispatches=tuple(self.dispatches),
        )


def _whole_words(array: Array) -> Array:
    """The bytes of an array, padded to 16, the size of the smallest bound buffer."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return (np.pad(data, (0, -len(data) % 16)) if len(data) % 16 else data).view(np.uint32)
