"""The kernels of q8ta_attention: blocks of queries in workgroup memory, or one thread for each query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params, where_loops_are_slow
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels.attention.sizes import STRIDES, Sizes, operand_strides, result_strides, sizes
from q8ta_wgpu.kernels.epilogue import magic_rounding
from q8ta_wgpu.kernels.product import weighted
from q8ta_wgpu.kernels.product.units import NVIDIA


@dataclass(frozen=True)
class Block:
    """The tile of a workgroup.

    Attributes:
        rows: queries of a workgroup.
        keys: keys, and then values, that workgroup memory holds at a time.
        threads: threads of a workgroup. With dot products, rows * keys / 16.
        unit: the matrix unit for products; None for packed dot products.
    """

    rows: int
    keys: int
    threads: int
    unit: MatrixUnit | None = None

    def depth(self, found: Sizes) -> int:
        """Words of a row of queries and keys, padding included."""
        words = self.unit.k // 4 if self.unit else 4
        return -(-found.depth // (4 * words)) * words

    def width(self, found: Sizes) -> int:
        """Columns of the context, padding included."""
        return -(-found.width // 16) * 16

    def steps(self, found: Sizes) -> int:
        """Number of times that keys are loaded."""
        return -(-found.keys // self.keys)

    def memory(self, call: Call) -> int:
        """Bytes of workgroup memory."""
        found = sizes(call)
        depth, width = self.depth(found), self.width(found)
        if self.unit:
            sums = self.threads // self.unit.lanes * self.unit.m * (self.unit.n + 4)
            others = max(self.keys * (depth + 4), self.keys * (width // 4 + 4), sums)
        else:
            others = max(self.keys * (depth + 4), width * (self.keys // 4 + 4)) + max(self.keys, width)
        row = depth + 4 + self.steps(found) * (self.keys // 4 + 1) + 4
        if fine(call):  # the lower halves of weights, and the zero points' terms of their sums
            row += self.steps(found) * self.keys // 4 + 4 + 1
        return 4 * (self.rows * (row + 4) + others + self.threads + 1)

    def fits(self, call: Call, target: Target) -> bool:
        """Whether a target can run the block: it needs workgroup memory for all scores, and the matrix unit, which
        multiplies weights of eight bits only."""
        has_unit = not self.unit or (self.unit in target.matrix_units and not fine(call))
        return has_unit and self.memory(call) <= target.workgroup_memory

    def groups(self, found: Sizes) -> int:
        """Workgroups of a call."""
        return found.batch * found.heads * -(-found.queries // self.rows)

    def constants(self, call: Call) -> dict[str, int]:
        """The constants of its WGSL."""
        found = sizes(call)
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
            "BIASED": _biased(call),
            "DISTANCES": _distances(call),
            "FINE": int(fine(call)),
            **units,
        }


LEAST = -(1 << 29)
"""Lower than any score by more than all distances. Excluded elements have a score of twice that."""

BLOCKS = {
    "units_16x64": Block(16, 64, 128, NVIDIA),
    "units_16x32": Block(16, 32, 64, NVIDIA),
    "units_16x128": Block(16, 128, 128, NVIDIA),
    "dots_32x64": Block(32, 64, 128),
    "dots_16x64": Block(16, 64, 64),
}
"""All blocks by name: the product, the queries of a workgroup, and the keys that it loads at a time."""

MANY_GROUPS = 600
"""From this many workgroups of 16 queries on, which keep a large GPU busy, small blocks are faster."""

MANY_KEYS = 512
"""From this many keys on, loading 128 of them at a time is faster on matrix units."""

FEW_QUERIES = 4
"""Up to this many queries of a head, each gets its own workgroup. A decoder that generates a token has one."""

TEAM = 256
"""Threads that share the keys of a query."""

MOST_COLUMNS = 16
"""The most words of the context that a thread of the kernel without workgroup memory computes."""

WRITTEN_OUT = 32
"""The most iterations of a fixed loop that software adapters do not count (q8ta_wgpu/ir/target.py)."""


def choose(call: Call, target: Target) -> str:
    """The name of the kernel for a call: "query" or a key of BLOCKS. Empty where workgroup memory is too small, and on
    software, where blocks are no faster.

    Measured on an H200's matrix units with 16 queries of a workgroup, microseconds:

        keys loaded at a time                               32      64      128
        batch 32, 12 heads of 197 x 64                      93.5    97.8    119
        the same, batch 1                                   11.0    9.2     8.8
        batch 256, 4 heads of 49 x 32                       19.8    23.6    38
        batch 4, 12 heads of 577 x 64                       112     110     100
        32 heads of 512 queries and 1,024 keys of 64        182     184     154

    With packed dot products the first takes 186 with 32 queries of a workgroup and 191 with 16; the second takes 15.2
    and 15.9.
    """
    if target.shares_memory and sizes(call).queries <= FEW_QUERIES and _query_fits(call, target):
        return "query"
    fitting = [label for label, block in BLOCKS.items() if target.shares_memory and block.fits(call, target)]
    units = [label for label in fitting if BLOCKS[label].unit]
    found = sizes(call)
    many = BLOCKS["units_16x32"].groups(found) >= MANY_GROUPS
    best = "units_16x128" if found.keys >= MANY_KEYS else "units_16x32" if many else "units_16x64"
    return next(iter((*((best,) if best in units else ()), *units, *fitting)), "")


def macs(call: Call) -> int:
    """The number of multiply-accumulates of both products."""
    found = sizes(call)
    return math.prod(found.scores) * (found.depth + found.width)


def _biased(call: Call) -> int:
    return int(call.inputs[4].numel > 1 or sizes(call).keys == 1)


def _has_vectors(call: Call) -> bool:
    """Whether rows of all operands begin at, and consist of, vectors of 16 elements."""
    found = sizes(call)
    numbers = itertools.chain(*operand_strides(found, call.attrs), (found.depth, found.width))
    return all(n % 16 == 0 for n in numbers)


def _params(call: Call) -> Params:
    attrs, found = call.attrs, sizes(call)
    ends = [] if fine(call) else [(attrs[end] - call.q.zero) << arithmetic.FRACTION for end in ("lo", "hi")]
    offset, *bits = magic_rounding.pack(np.zeros(4, np.int64), *ends)[0, :, 0] if ends else (np.int32(0),)
    strides = {**dict(zip(STRIDES, operand_strides(found, attrs), strict=True)), "result": result_strides(found, attrs)}
    words = {name: tuple(n // 4 for n in numbers) for name, numbers in strides.items()}
    counts = {"queries": found.queries, "keys": found.keys, "depth": found.depth, "width": found.width}
    bias = call.inputs[4].shape
    return {
        **{name: (a, b, c, d) for name, (a, b, c, d) in words.items()},
        "bias_dims": (bias[0], bias[1], bias[2], bias[3]),
        **{name: np.uint32(n) for name, n in counts.items()},
        "heads": np.uint32(found.heads),
        "group": np.uint32(found.heads // found.shared),
        "matrices": np.uint32(found.batch * found.heads),
        "bias_words": np.uint32(-(-bias[3] // 4) * 2),
        **{f"{name}_zero": np.int32(zero) for name, zero in zip(STRIDES, call.zeros, strict=False)},
        "masked_score": np.int32(LEAST if attrs["even"] else 2 * LEAST),
        "score_multiplier": np.float32(attrs["score_multiplier"]),
        "multiplier": np.float32(attrs["multiplier"]),
        "offset": offset,
        **{name: b.view(np.float32) for name, b in zip(("low", "high", "magic"), bits, strict=bool(bits))},
        "zero": np.int32(call.q.zero),
        **(_fine_params(call) if fine(call) else {}),
    }


def _fine_params(call: Call) -> Params:
    return {**arithmetic.stored_fields(call), "fraction": np.uint32(arithmetic.fraction(call.q.dtype))}


def _distances(call: Call) -> int:
    """The number of entries in the table of weights."""
    return call.inputs[3].numel


def fine(call: Call) -> bool:
    """Whether weights have fourteen bits."""
    return _distances(call) > 256


FINE_HOOKS = (
    "store_distances=store_fine_distances",
    "softmax_weights=fine_softmax_weights",
    "low_four=low_weight_four",
    "store_sums=store_fine_sums",
)
COARSE_HOOKS = ("low_four=no_weight_four",)
"""What the kernels with blocks link for weights of fourteen bits and of eight."""


def _needed(call: Call) -> str:
    """The prefix of the WGSL function that says which keys a row needs: all, or with a mask those up to the last one
    that is not masked."""
    return "masked" if len(call.inputs) > 5 else "all"


def _row_hooks(call: Call) -> tuple[str, ...]:
    kind = "fine" if fine(call) else "coarse"
    return f"inverse_of_row={kind}_inverse", f"context_of_row={kind}_context", f"needed_keys={_needed(call)}_keys"


def _pack_bias(call: Call, bias: Array) -> Array:
    """The bias as the shaders read it: two int16 in a word, rows padded to a multiple of four numbers."""
    lines = np.pad(bias.reshape(-1, bias.shape[-1]), ((0, 0), (0, -bias.shape[-1] % 4)))
    return np.ascontiguousarray(lines.astype(np.int16)).reshape(-1).view("<i4")


def _loads(call: Call, names: Sequence[str]) -> tuple[str, ...]:
    """The links by which operands are read as vectors of four words where their rows allow it, else word by word."""
    kind = "vector" if _has_vectors(call) else "words"
    return tuple(f"{name}_words={name}_by_{kind}" for name in names)


def _kernel(label: str, block: Block) -> Kernel:
    body = "attention_units" if block.unit else "attention_dots"

    def source(call: Call) -> tuple[str, ...]:
        loads = _loads(call, STRIDES)
        hooks = FINE_HOOKS if fine(call) else COARSE_HOOKS
        return body, "attention", f"{_needed(call)}_steps", "scores", "mask", "dot", *loads, *hooks

    def wide(call: Call) -> tuple[str, ...]:
        return ("q", "k", "v")[: 3 if block.unit else 2] if _has_vectors(call) else ()

    def threads(call: Call, layout: Layout) -> tuple[int, int, int]:
        return block.groups(sizes(call)) * block.threads, 1, 1

    def turns(call: Call) -> int:
        found = sizes(call)
        inner = 64 + 2 * block.depth(found) + block.keys + 4 * block.width(found)
        return block.steps(found) * (inner + 1) + 3 * block.steps(found) * block.keys // 4

    return Kernel(
        f"q8ta_attention.{label}",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=block.fits,
        preferred=lambda call, target: label == choose(call, target),
        turns=turns,
        wide=wide,
        params=_params,
        constants=block.constants,
        prepack={4: _pack_bias},
        threads=threads,
        workgroup=(block.threads, 1, 1),
        unrolled=lambda target: block.unit is not None,
        cost=lambda call: macs(call) / weighted.MACS_A_BYTE["tiled"],
    )


def _slices(call: Call) -> int:
    """The number of threads that compute the context of a query, each a slice of its channels."""
    return -(-sizes(call).width // (4 * MOST_COLUMNS))


def row_iterations(found: Sizes) -> int:
    """The most loop iterations of a thread of the kernel without workgroup memory."""
    inner = sum(
        n + 1 for n in (found.depth // 4, found.depth // 4, min(found.width // 4, MOST_COLUMNS)) if n > WRITTEN_OUT
    )
    return (-(-found.keys // 4) + 1) * (3 + inner)


def _by_rows() -> Kernel:
    return Kernel(
        "q8ta_attention",
        lambda call: ("attention_rows", "scores", "mask", "dot", *_row_hooks(call)),
        (ONLY_4W,),
        ONLY_4W,
        turns=lambda call: row_iterations(sizes(call)),
        params=lambda call: {**_params(call), "slices": np.uint32(_slices(call))},
        constants=lambda call: {
            "DEPTH": sizes(call).depth // 4,
            "COLUMNS": min(sizes(call).width // 4, MOST_COLUMNS),
            "BIASED": _biased(call),
            "QUERY_ZERO": int(call.zeros[0] != 0),
            "DISTANCES": _distances(call),
            "FINE": int(fine(call)),
        },
        prepack={4: _pack_bias},
        threads=lambda call, layout: (math.prod(sizes(call).scores[:3]) * _slices(call), 1, 1),
        unrolled=where_loops_are_slow,
        cost=lambda call: macs(call) / weighted.MACS_A_BYTE["direct"],
    )


def _across(found: Sizes) -> int:
    """Threads that share the channels of a context, 16 each, rounded up to a power of two."""
    return 1 << ((found.width - 1) // 16).bit_length()


def _length(found: Sizes) -> int:
    return -(-found.keys // 4) * 4


def _query_fits(call: Call, target: Target) -> bool:
    """Whether workgroup memory holds all scores of a query, and the threads of a workgroup cover its channels."""
    found = sizes(call)
    memory = 4 * (_length(found) + 16 * _across(found) * (1 + fine(call)) + 3)
    return found.width <= 16 * TEAM and memory <= target.workgroup_memory and target.invocations >= TEAM


def _by_query() -> Kernel:
    def source(call: Call) -> tuple[str, ...]:
        loads = _loads(call, ("key", "value"))
        return "attention_query", "scores", "mask", "dot", *loads, *_row_hooks(call)

    return Kernel(
        "q8ta_attention.query",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=_query_fits,
        preferred=lambda call, target: choose(call, target) == "query",
        turns=lambda call: sizes(call).keys,
        wide=lambda call: ("k", "v") if _has_vectors(call) else (),
        params=_params,
        constants=lambda call: {
            "DEPTH": -(-sizes(call).depth // 16) * 4,
            "LENGTH": _length(sizes(call)),
            "THREADS": TEAM,
            "ACROSS": _across(sizes(call)),
            "DEPTH_FULL": int(sizes(call).depth % 16 == 0),
            "BIASED": _biased(call),
            "QUERY_ZERO": int(call.zeros[0] != 0),
            "DISTANCES": _distances(call),
            "FINE": int(fine(call)),
        },
        prepack={4: _pack_bias},
        threads=lambda call, layout: (math.prod(sizes(call).scores[:3]) * TEAM, 1, 1),
        workgroup=(TEAM, 1, 1),
        unrolled=lambda target: True,
        cost=lambda call: macs(call) / weighted.MACS_A_BYTE["shared"],
    )


KERNELS = (_by_query(), *(_kernel(label, block) for label, block in BLOCKS.items()), _by_rows())
