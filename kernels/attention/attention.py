"""q8ta_attention: softmax(q k^T) v of int8 in one dispatch, its scores and weights never in memory.

It is what a q8ta_matmul, a q8ta_softmax and a q8ta_matmul make together, byte for byte, and reads queries, keys and
values wherever moves of whole words found them: heads side by side in the result of one linear, as often as not.
kernels/attention/attention.wgsl says how a workgroup goes through a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8, INT8X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, canonical
from q8ta_wgpu.ir.op import INT8_RANGE, RANGE, Attr, Op, Operand
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels.epilogue import near
from q8ta_wgpu.kernels.linear.q8ta_matmul import LONGEST
from q8ta_wgpu.kernels.norm import softmax
from q8ta_wgpu.kernels.product import weighted
from q8ta_wgpu.kernels.product.units import NVIDIA

MOST_STEPS = 1 << 16
"""Steps of a weight that the kernels' quotients hold: a scale of 2^-16, where softmax has 2^-8."""


@dataclass(frozen=True)
class Sizes:
    """Extents of a call: batch, heads of it, queries and keys of a head, elements of a key and of a value."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int

    @property
    def operands(self) -> tuple[Shape, Shape, Shape]:
        """Shapes of queries, keys and values."""
        lead = self.batch, self.heads
        return (*lead, self.queries, self.depth), (*lead, self.keys, self.depth), (*lead, self.keys, self.width)

    @property
    def scores(self) -> Shape:
        """Shape of the scores."""
        return self.batch, self.heads, self.queries, self.keys


def sizes(attrs: Attrs) -> Sizes:
    """The extents that attributes say."""
    return Sizes(*attrs["sizes"])


WALKS = ("query", "key", "value")
"""Attributes that say where an operand's elements lie: of the first one, and how far it is from one batch, head and row
to the next. Elements of a row lie side by side."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    found = sizes(attrs)
    for name, t, shape in zip(WALKS, types, found.operands, strict=False):
        first, *steps = attrs[name]
        last = first + sum((n - 1) * step for n, step in zip(shape, steps, strict=False)) + shape[-1]
        if last > t.numel or any(n % 4 for n in (*attrs[name], shape[-1], t.shape[-1])):
            raise GraphError(f"attention reads rows of whole words of {t.shape}, found {name} {attrs[name]} of {shape}")
    if max(found.depth, found.keys) > LONGEST:
        raise GraphError(f"a sum of {max(found.depth, found.keys)} products could pass int32, which {LONGEST} cannot")
    scores = TensorType(found.scores, INT8X4, types[0].q)
    softmax.q8ta_softmax.infer((scores, *types[3:5]), {"dim": 3})
    return (found.batch, found.queries, found.heads * found.width), INT8X4


def _valid_powers(call: Call, arrays: Sequence[Array | None]) -> str:
    powers, length = arrays[3], sizes(call.attrs).keys
    assert powers is not None
    if text := softmax.wrong_powers(powers, length):
        return text
    steps = int(powers[1].max()) // int(powers[0, 0])
    return f"give a weight of {steps} steps, {MOST_STEPS} at most" if steps > MOST_STEPS else ""


def _valid_mask(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[4] is not None
    return softmax.wrong_mask(arrays[4])


def _operand(array: Array, walk: Sequence[int], shape: Shape) -> Array:
    """The elements that an operand's walk reads, int64."""
    flat = np.ascontiguousarray(array).reshape(-1)[walk[0] :]
    return np.lib.stride_tricks.as_strided(flat, shape, (*walk[1:], 1), writeable=False).astype(np.int64)


def _rounded(sums: Array, multiplier: float, zero: int, lo: int, hi: int) -> Array:
    """The contract's sum with a multiplier for all columns and no offset."""
    scaled = arithmetic.scaled_accumulator(sums, np.array([multiplier], np.float32))
    return np.clip(arithmetic.rte(scaled, arithmetic.FRACTION) + zero, lo, hi)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    found, attrs = sizes(call.attrs), call.attrs
    q, k, v = (
        (_operand(a, attrs[name], shape) - zero).astype(np.float64)  # exact: every partial sum is below 2^53
        for a, name, shape, zero in zip(arrays, WALKS, found.operands, call.zeros, strict=False)
    )
    scores = _rounded(
        (q @ np.swapaxes(k, -1, -2)).astype(np.int64),
        attrs["score_multiplier"],
        attrs["score_zero"],
        attrs["score_lo"],
        attrs["score_hi"],
    )
    powers, mask = arrays[3:5]
    weights = softmax.weights(scores, powers, mask, 3, attrs["weight_zero"], attrs["weight_lo"], attrs["weight_hi"])
    sums = ((weights.astype(np.float64) - attrs["weight_zero"]) @ v).astype(np.int64)
    assert call.output.q is not None
    context = _rounded(sums, attrs["multiplier"], call.output.q.zero, attrs["lo"], attrs["hi"])
    return context.transpose(0, 2, 1, 3).reshape(call.output.shape).astype(np.int8)


def _macs(call: Call) -> int:
    found = sizes(call.attrs)
    return math.prod(found.scores) * (found.depth + found.width)


@dataclass(frozen=True)
class Block:
    """How a workgroup goes through a head.

    Attributes:
        rows: queries of a workgroup.
        keys: keys, and values, brought to workgroup memory at a time.
        threads: threads of a workgroup. With dot products, rows * keys / 16.
        unit: the matrix unit that multiplies; without one, dot products do.
    """

    rows: int
    keys: int
    threads: int
    unit: MatrixUnit | None = None

    def depth(self, found: Sizes) -> int:
        """Words of a row of queries and keys, zeros included."""
        words = self.unit.k // 4 if self.unit else 4
        return -(-found.depth // (4 * words)) * words

    def width(self, found: Sizes) -> int:
        """Columns of the context, those past its last included."""
        return -(-found.width // 16) * 16

    def steps(self, found: Sizes) -> int:
        """How many times keys are brought."""
        return -(-found.keys // self.keys)

    def memory(self, call: Call) -> int:
        """Bytes of workgroup memory."""
        found = sizes(call.attrs)
        depth, width = self.depth(found), self.width(found)
        if self.unit:
            sums = self.threads // self.unit.lanes * self.unit.m * (self.unit.n + 4)
            others = max(self.keys * (max(depth, width // 4) + 4), sums)
        else:
            others = max(self.keys * (depth + 4), width * (self.keys // 4 + 4)) + max(self.keys, width)
        row = depth + 4 + self.steps(found) * self.keys // 4 + 4
        return 4 * (self.rows * (row + 2) + others + 2 * 256 + self.threads)

    def fits(self, call: Call, target: Target) -> bool:
        """Whether a target has the unit, and memory for all scores of a block."""
        return (not self.unit or self.unit in target.matrix_units) and self.memory(call) <= target.workgroup_memory

    def groups(self, found: Sizes) -> int:
        """Workgroups of a call."""
        return found.batch * found.heads * -(-found.queries // self.rows)

    def constants(self, call: Call) -> dict[str, int]:
        """The constants its WGSL is linked with."""
        found = sizes(call.attrs)
        unit = self.unit
        units = {"UNIT_M": unit.m, "UNIT_N": unit.n, "UNIT_K": unit.k, "LANES": unit.lanes} if unit else {}
        return {
            "ROWS": self.rows,
            "KEYS": self.keys,
            "THREADS": self.threads,
            "DEPTH": self.depth(found),
            "WIDTH": self.width(found),
            "LENGTH": self.steps(found) * self.keys,
            "DEPTH_FULL": int(4 * self.depth(found) == found.depth),
            "MASKED": int(call.inputs[4].numel > 1),
            **units,
        }


BLOCKS = {
    "units_32x32": Block(32, 32, 128, NVIDIA),
    "units_16x64": Block(16, 64, 128, NVIDIA),
    "dots_32x64": Block(32, 64, 128),
    "dots_16x64": Block(16, 64, 64),
}
"""The ways there are, by the queries of a workgroup and the keys it takes at a time."""

MANY_GROUPS = 300
"""Workgroups of 32 queries from which on they keep a large GPU busy."""


def choose(call: Call, target: Target) -> str:
    """The name of the block for a call; empty where none has the memory.

    On an H200, 12 heads of 197 x 64 at batch 32 take 150 microseconds on matrix units, with packed dot products 218 by
    blocks of 32 queries and 259 of 16; at batch 1 12 on units by 16 queries and 13.5 by 32, 17.6 and 19.2 without.
    """
    fitting = [label for label, block in BLOCKS.items() if block.fits(call, target)]
    units = [label for label in fitting if BLOCKS[label].unit]
    many = BLOCKS["units_32x32"].groups(sizes(call.attrs)) >= MANY_GROUPS
    small = [label for label in units if BLOCKS[label].rows < 32]
    return next(iter((*(() if many else small), *units, *fitting)), "")


def _whole(call: Call) -> bool:
    """Whether rows of all operands are whole vectors."""
    found = sizes(call.attrs)
    return not any(n % 16 for name in WALKS for n in call.attrs[name]) and not (found.depth % 16 or found.width % 16)


def _near(prefix: str, multiplier: float, zero: int, lo: int, hi: int) -> Params:
    """Uniform fields of a rounding."""
    ends = ((lo - zero) << arithmetic.FRACTION, (hi - zero) << arithmetic.FRACTION)
    offset, *bits = near.pack(np.zeros(4, np.int64), *ends)[0, :, 0]
    floats = {f"{prefix}{name}": b.view(np.float32) for name, b in zip(("low", "high", "magic"), bits, strict=True)}
    return {
        **floats,
        f"{prefix}multiplier": np.float32(multiplier),
        f"{prefix}offset": offset,
        f"{prefix}zero": np.int32(zero),
    }


def _params(call: Call, block: Block) -> Params:
    attrs, found = call.attrs, sizes(call.attrs)
    assert call.output.q is not None
    words = {name: tuple(n // 4 for n in attrs[name]) for name in WALKS}
    counts = {"queries": found.queries, "keys": found.keys, "depth": found.depth, "width": found.width}
    ends = (attrs["score_zero"], attrs["score_lo"], attrs["score_hi"])
    return {
        **{name: (a, b, c, d) for name, (a, b, c, d) in words.items()},
        "mask_dims": canonical(call.inputs[4].shape),
        **{name: np.uint32(n) for name, n in counts.items()},
        "heads": np.uint32(found.heads),
        "matrices": np.uint32(found.batch * found.heads),
        "steps": np.uint32(block.steps(found)),
        **{f"{name}_zero": np.int32(zero) for name, zero in zip(WALKS, call.zeros, strict=False)},
        **_near("score_", attrs["score_multiplier"], *ends),
        **{name: np.int32(attrs[name]) for name in ("weight_zero", "weight_lo", "weight_hi")},
        **_near("", attrs["multiplier"], call.output.q.zero, attrs["lo"], attrs["hi"]),
    }


def _kernel(label: str, block: Block) -> Kernel:
    body = "attention_units" if block.unit else "attention_dots"

    def source(call: Call) -> tuple[str, ...]:
        kind = "whole" if _whole(call) else "each"
        return body, "attention", "softmax_mask", "dot", *(f"{name}_words={name}_{kind}" for name in WALKS)

    def wide(call: Call) -> tuple[str, ...]:
        return ("q", "k", "v")[: 3 if block.unit else 2] if _whole(call) else ()

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return block.groups(sizes(call.attrs)) * block.threads, 1, 1

    def turns(call: Call) -> int:
        found = sizes(call.attrs)
        inner = 64 + 2 * block.depth(found) + block.keys + 4 * block.width(found)
        return block.steps(found) * inner + 3 * block.steps(found) * block.keys // 4

    return Kernel(
        f"q8ta_attention.{label}",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=block.fits,
        preferred=lambda call, target: label == choose(call, target),
        turns=turns,
        wide=wide,
        params=lambda call: _params(call, block),
        constants=block.constants,
        prepack={4: softmax.pack_mask},
        threads=threads,
        workgroup=(block.threads, 1, 1),
        unrolled=lambda target: block.unit is not None,
        cost=lambda call: _macs(call) / weighted.MACS_A_BYTE["tiled"],
    )


_WALK = Attr("ints", low=0, high=1 << 31, length=4)
_NUMBER = Attr("float", low=0, high=3.4e38)

q8ta_attention = Op(
    name="q8ta_attention",
    operands=(
        Operand("q", dtypes=(INT8X4,)),
        Operand("k", dtypes=(INT8X4,)),
        Operand("v", dtypes=(INT8X4,)),
        Operand("powers", constant=True, dtypes=(INT32,), valid=_valid_powers),
        Operand("mask", constant=True, dtypes=(INT8,), valid=_valid_mask),
    ),
    infer=_infer,
    reference=_reference,
    schema={
        **RANGE,
        "sizes": Attr("ints", low=1, length=6),
        **dict.fromkeys(WALKS, _WALK),
        **dict.fromkeys(("score_multiplier", "multiplier"), _NUMBER),
        **dict.fromkeys(("score_zero", "score_lo", "score_hi", "weight_zero", "weight_lo", "weight_hi"), INT8_RANGE),
    },
    kernels=tuple(_kernel(label, block) for label, block in BLOCKS.items()),
    macs=_macs,
    work=_macs,
)
