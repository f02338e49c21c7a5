"""Programs with known results, which a device's matrix units must compute correctly before a network may use them.

Some drivers compute wrong products on matrix units (Mesa's Xe3 returned the tile at offset 0 for every offset). So
each kernel runs a product once, with sizes that end within a tile in each dimension, and with extreme values.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from q8ta_wgpu.ir import bits
from q8ta_wgpu.ir.graph import BOOL, INT8X4, Array, Attrs, Call, Graph, Node, QParams, TensorType
from q8ta_wgpu.ir.kernel import Kernel, Variant
from q8ta_wgpu.ir.layout import Layout, pack
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.attention.attention import COARSE, powers
from q8ta_wgpu.kernels.attention.sizes import STRIDES
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stages import Requantize
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.layout_sync import Plan, Step
from q8ta_wgpu.program.build import build
from q8ta_wgpu.program.program import Program

ROWS, DEPTH, CHANNELS = 300, 400, 150
"""Sizes of a linear: larger than every tile and no multiple of any. They take three to seven steps of k, the last one
partial."""

GROUP = 32
"""Inputs with one factor, of weights of 4 bits."""

SHALLOW = 32
"""k of a linear, so small that some tiles have more threads than vectors of weights in a step."""

KEYS, HEAD = 150, 40
"""Sizes for products of two activations and for attention: several steps of each, the last one partial."""

ROW_MAJOR = Layout.PACKED_INT8_4W


_SHAPE = ("UNIT_M", "UNIT_N", "UNIT_K", "LANES", "SUBGROUPS_M", "SUBGROUPS_N", "FRAGMENTS_M", "FRAGMENTS_N", "PARTS",
          "ROWS", "KEYS", "THREADS")  # fmt: skip
"""The constants that say how a kernel shares a product on matrix units. All kernels with these numbers, and the same
WGSL for the product, multiply alike; others differ in what they load and store."""

Tile = frozenset[tuple[str, int]]
"""What kernels for matrix units have in common with the one that is tried: these constants, the WGSL file, and
whether a mask leaves out steps."""


def tile(kernel: Kernel, call: Call) -> Tile:
    """The tile of a kernel for matrix units."""
    constants, (source, _) = kernel.constants(call), kernel.linked(call)
    shape = {(name, constants[name]) for name in _SHAPE if name in constants}
    found = ((s, 0) for s in source if "units" in s or s == "masked_steps")
    return frozenset({*shape, *found, ("spares", _spares_threads(kernel, call))})


def tiles(plan: Plan, target: Target) -> frozenset[Tile]:
    """The tiles of a plan's kernels for matrix units."""
    without = replace(target, matrix_units=())
    steps = (step for step in plan.steps if not step.variant.kernel.runs(step.call, without))
    return frozenset(tile(step.variant.kernel, step.call) for step in steps)


@dataclass(frozen=True)
class _Case:
    """A graph of one node, and its inputs."""

    graph: Graph
    inputs: Mapping[str, Array]

    @functools.cached_property
    def expected(self) -> Array:
        """The result by the reference."""
        return reference.run(self.graph, dict(self.inputs))["y"]


@dataclass(frozen=True)
class Trial:
    """A program of one dispatch.

    Attributes:
        kernel: the kernel's name.
        unit: the matrix unit that it uses, and `tile` how.
        program: the program.
    """

    kernel: str
    unit: MatrixUnit
    tile: Tile
    program: Program
    case: _Case

    @property
    def shader(self) -> tuple[str, int]:
        """The WGSL, and its number of storage buffers."""
        return self.program.shaders[0], len(self.program.dispatches[0].buffers)

    @property
    def operands(self) -> Sequence[Array]:
        """The words of all buffers but the result's."""
        words = {port.buffer[1]: pack(self.case.inputs[port.name], ROW_MAJOR) for port in self.program.inputs}
        buffers = self.program.dispatches[0].buffers[:-1]
        return [self.program.constants[i] if kind == "constant" else words[i] for kind, i in buffers]

    @property
    def uniform(self) -> bytes:
        """The dispatch's parameters."""
        first, size = self.program.dispatches[0].uniform
        return self.program.uniforms[first : first + size]

    @property
    def groups(self) -> int:
        """Workgroups of the dispatch."""
        return self.program.dispatches[0].grid[0]

    @property
    def expected(self) -> Array:
        """The words of the expected result."""
        return pack(self.case.expected, ROW_MAJOR)


def _case(
    op: str, inputs: Mapping[str, TensorType], constants: Mapping[str, Array], attrs: Attrs, out: TensorType
) -> _Case:
    """A node with random operands. The first two rows of the first operand are -128 and 127."""
    rng = np.random.default_rng(1)
    graph = Graph(inputs=list(inputs), outputs=["y"], types={**inputs, "y": out})
    names = [graph.add_constant(name, array) for name, array in constants.items()]
    graph.nodes = [Node(op, (*inputs, *names), "y", attrs)]
    arrays = {name: rng.integers(-128, 128, t.shape, dtype=np.int8) for name, t in inputs.items()}
    first = next(iter(arrays.values()))
    first.reshape(-1, first.shape[-1])[:2] = ((-128,), (127,))
    return _Case(graph, arrays)


def _int8(*shape: int, zero: int) -> TensorType:
    return TensorType(shape, INT8X4, QParams(0.5, zero))


def _spread(depth: int) -> float:
    """A multiplier with which sums of `depth` random products fill the int8 range."""
    return float(np.float32(2.0**14 * 60 / (73 * 73 * depth**0.5)))


def _linear(depth: int, group: int = 0) -> _Case:
    """A linear with weights of 8 bits, or of 4 bits with a factor for each `group` inputs."""
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (CHANNELS, depth), dtype=np.int8)
    weight[:3] = ((-127,), (127,), (0,))
    if group:
        weight = rng.integers(-128, 128, (CHANNELS, -(-depth // group), 1 + group // 2), dtype=np.int8)
        weight[:2, :, 0] = ((-127,), (127,))
        weight[:2, :, 1:] = -120  # both n are -8
    rows = bits.values(weight, depth) if group else weight
    arrays: dict[str, Array] = {
        "weight": weight,
        "multiplier": (rng.uniform(0.5, 1.5, CHANNELS) * _spread(depth) * (73 / rows.std())).astype(np.float32),
        "offset": rng.integers(-(2**19), 2**19, CHANNELS).astype(np.int32),
        "correction": (-128 * rows.sum(1, dtype=np.int64)).astype(np.int32),
    }
    attrs = {"epilogue": Epilogue((Requantize(-128, 127),))}
    return _case("q8ta_linear", {"x": _int8(ROWS, depth, zero=-128)}, arrays, attrs, _int8(ROWS, CHANNELS, zero=7))


def _attention() -> _Case:
    """Attention with two heads side by side, as separate linears make them."""
    return _case("q8ta_attention", *_of_attention(), _int8(1, KEYS, 2 * HEAD, zero=0))


def _masked_attention() -> _Case:
    """The same where bools select the first keys, so that the last steps are left out."""
    inputs, constants, attrs = _of_attention()
    shape = (1, 1, 1, KEYS)
    types = {**inputs, "mask": TensorType(shape, INT8X4, BOOL)}
    found = _case("q8ta_attention", types, constants, attrs, _int8(1, KEYS, 2 * HEAD, zero=0))
    (node,) = found.graph.nodes
    found.graph.nodes = [replace(node, inputs=(*inputs, *constants, "mask"))]
    first = (np.arange(KEYS) < 2 * KEYS // 3).astype(np.int8).reshape(shape)
    return replace(found, inputs={**found.inputs, "mask": first})


def attentions() -> Iterator[Graph]:
    """Graphs of attention, without a mask and with one."""
    yield from (case.graph for case in (_attention(), _masked_attention()))


def _of_attention() -> tuple[dict[str, TensorType], dict[str, Array], Attrs]:
    """Inputs, constants and attributes of attention."""
    inputs = {name: _int8(1, KEYS, 2 * HEAD, zero=zero) for name, zero in zip("qkv", (-128, 1, -1), strict=True)}
    attrs: dict[str, object] = {
        "sizes": (1, 2, KEYS, KEYS, HEAD, HEAD, 2),
        **dict.fromkeys(STRIDES, (0, 2 * KEYS * HEAD, HEAD, 2 * HEAD)),
        **{"score_multiplier": float(np.float32(COARSE.steps / (73.0**2 * HEAD**0.5)))},
        **{"multiplier": 4.0 * 2.0 ** (14 - COARSE.reciprocal), "even": False, "lo": -128, "hi": 127},
    }
    return inputs, {"powers": powers(), "bias": np.zeros((1, 1, 1, 1), np.int32)}, attrs


def _spares_threads(kernel: Kernel, call: Call) -> bool:
    """Whether a step of k has fewer vectors of weights than the workgroup has threads."""
    constants = kernel.constants(call)
    sizes = [constants.get(name, 0) for name in ("STEP", "UNIT_N", "FRAGMENTS_N", "SUBGROUPS_N")]
    return 0 < math.prod(sizes) < kernel.workgroup[0]


def unit_trials(target: Target, tiles: Collection[Tile] | None = None) -> Iterator[Trial]:
    """A trial of each kernel of `target` that needs a matrix unit, a second one for tiles that load few weights in a
    step, one with weights of 4 bits, and one of attention with a mask; with `tiles`, of kernels with these."""
    without, shallow = replace(target, matrix_units=()), _linear(SHALLOW)
    cases = (_linear(DEPTH), shallow, _linear(DEPTH, GROUP), _attention(), _masked_attention())
    for unit, case in itertools.product(target.matrix_units, cases):
        (node,) = case.graph.nodes
        call, with_unit = case.graph.call(node), replace(target, matrix_units=(unit,))
        for kernel in OPS[node.op].kernels:
            needs_unit = kernel.runs(call, with_unit) and not kernel.runs(call, without)
            if not needs_unit or (case is shallow and not _spares_threads(kernel, call)):
                continue
            if tiles is not None and tile(kernel, call) not in tiles:
                continue
            reads = tuple(None if name in case.graph.constants else ROW_MAJOR for name in node.inputs)
            step = Step(node, call, Variant(kernel, reads, ROW_MAJOR))
            program = build(case.graph, with_unit, Plan((step,), dict.fromkeys((*case.inputs, "y"), ROW_MAJOR)))
            yield Trial(kernel.name, unit, tile(kernel, call), program, case)


def wrong_words(trial: Trial, found: Array) -> int:
    """Number of words of a result that differ from the expected ones, padding lanes ignored."""
    lanes = pack(np.full(trial.case.expected.shape, -1, np.int8), ROW_MAJOR)
    return int(((found[: lanes.size] ^ trial.expected) & lanes != 0).sum())
