"""The kernels of q8ta_attention: blocks of queries in workgroup memory, or one thread for each query."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params, where_loops_are_slow
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.ir.target import MatrixUnit, Target
from q8ta_wgpu.kernels.attention.sizes import WALKS, Sizes, result_walk, sizes, walks
from q8ta_wgpu.kernels.epilogue import near
from q8ta_wgpu.kernels.product import weighted
from q8ta_wgpu.kernels.product.units import NVIDIA


@dataclass(frozen=True)
class Block:
    """How a workgroup computes a head.

    Attributes:
        rows: queries of a workgroup.
        keys: keys, and values, loaded to workgroup memory at a time.
        threads: threads of a workgroup. With dot products, rows * keys / 16.
        unit: the matrix unit that multiplies; None for dot products.
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
        if fine(call):  # the lower halves of weights, and what zero points take from their sums
            row += self.steps(found) * self.keys // 4 + 4 + 1
        return 4 * (self.rows * (row + 4) + others + self.threads + 1)

    def fits(self, call: Call, target: Target) -> bool:
        """Whether a target has the unit, which takes weights of eight bits, and memory for all scores of a block."""
        unit = not self.unit or (self.unit in target.matrix_units and not fine(call))
        return unit and self.memory(call) <= target.workgroup_memory

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
"""Less than any score by more than all distances; what takes no part has twice that."""

BLOCKS = {
    "units_16x64": Block(16, 64, 128, NVIDIA),
    "units_16x32": Block(16, 32, 64, NVIDIA),
    "units_16x128": Block(16, 128, 128, NVIDIA),
    "dots_32x64": Block(32, 64, 128),
    "dots_16x64": Block(16, 64, 64),
}
"""All blocks, by the queries of a workgroup and the keys loaded at a time."""

MANY_GROUPS = 600
"""Workgroups of 16 queries that keep a large GPU busy: small ones are then faster."""

MANY_KEYS = 512
"""From this many keys on, many of them at a time are faster there."""

FEW_QUERIES = 4
"""Up to this many queries of a head, as of a decoder that writes a token, each has a workgroup to itself."""

TEAM = 256
"""Threads that share the keys of a query."""

MOST_COLUMNS = 16
"""Most words of the context that a thread makes if it has a query to itself."""

WRITTEN_OUT = 32
"""Most turns of a fixed loop that software adapters do not count (q8ta_wgpu/ir/target.py)."""


def choose(call: Call, target: Target) -> str:
    """The name of the block for a call; empty where none has the memory, and on software, which it does not help.

    On an H200's matrix units, by 16 queries and 32, 64 or 128 keys at a time, microseconds: 12 heads of 197 x 64 at
    batch 32 take 93.5, 97.8, 119 (at batch 1 11.0, 9.2, 8.8), 256 times 4 heads of 49 x 32 19.8, 23.6, 38, 4 times 12
    heads of 577 x 64 112, 110, 100, 32 heads of 512 queries with a cache of 1,024 keys of 64 182, 184, 154. With packed
    dot products the first takes 186 by 32 queries and 191 by 16 (15.2 and 15.9).
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
    """Multiply-accumulates of both products."""
    found = sizes(call)
    return math.prod(found.scores) * (found.depth + found.width)


def _biased(call: Call) -> int:
    return int(call.inputs[4].numel > 1 or sizes(call).keys == 1)


def _whole(call: Call) -> bool:
    """Whether rows of all operands are whole vectors."""
    found = sizes(call)
    return not any(n % 16 for walk in walks(found, call.attrs) for n in walk) and not (
        found.depth % 16 or found.width % 16
    )


def _params(call: Call) -> Params:
    attrs, found = call.attrs, sizes(call)
    ends = [] if fine(call) else [(attrs[end] - call.q.zero) << arithmetic.FRACTION for end in ("lo", "hi")]
    offset, *bits = near.pack(np.zeros(4, np.int64), *ends)[0, :, 0] if ends else (np.int32(0),)
    placed = {**dict(zip(WALKS, walks(found, attrs), strict=True)), "result": result_walk(found, attrs)}
    words = {name: tuple(n // 4 for n in walk) for name, walk in placed.items()}
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
        **{f"{name}_zero": np.int32(zero) for name, zero in zip(WALKS, call.zeros, strict=False)},
        "left_out": np.int32(LEAST if attrs["even"] else 2 * LEAST),
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
    """Distances from the largest score of a row that have a weight of their own."""
    return call.inputs[3].numel


def fine(call: Call) -> bool:
    """Whether weights have fourteen bits."""
    return _distances(call) > 256


FINE_HOOKS = (
    "keep_scores=keep_fine_scores",
    "soften=soften_fine",
    "low_four=low_weight_four",
    "store_sums=store_fine_sums",
)
COARSE_HOOKS = ("low_four=no_weight_four",)
"""Of the kernels with blocks, for weights of fourteen bits and of eight."""


def _taken(call: Call) -> str:
    """Which keys are work: those up to the last one that a mask leaves to a row, or all."""
    return "masked" if len(call.inputs) > 5 else "all"


def _row_hooks(call: Call) -> tuple[str, ...]:
    kind = "fine" if fine(call) else "coarse"
    return f"inverse_of_row={kind}_inverse", f"context_of_row={kind}_context", f"taken_keys={_taken(call)}_keys"


def _pack_bias(call: Call, bias: Array) -> Array:
    """Two numbers a word, rows of whole groups of four."""
    lines = np.pad(bias.reshape(-1, bias.shape[-1]), ((0, 0), (0, -bias.shape[-1] % 4)))
    return np.ascontiguousarray(lines.astype(np.int16)).reshape(-1).view("<i4")


def _kernel(label: str, block: Block) -> Kernel:
    body = "attention_units" if block.unit else "attention_dots"

    def source(call: Call) -> tuple[str, ...]:
        kind = "whole" if _whole(call) else "each"
        words = (f"{name}_words={name}_{kind}" for name in WALKS)
        fineness = FINE_HOOKS if fine(call) else COARSE_HOOKS
        return body, "attention", f"{_taken(call)}_steps", "scores", "mask", "dot", *words, *fineness

    def wide(call: Call) -> tuple[str, ...]:
        return ("q", "k", "v")[: 3 if block.unit else 2] if _whole(call) else ()

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


def _parts(call: Call) -> int:
    """Threads that make the context of a query."""
    return -(-sizes(call).width // (4 * MOST_COLUMNS))


def turns_of_rows(found: Sizes) -> int:
    """The most loop turns of a thread that has a query to itself."""
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
        turns=lambda call: turns_of_rows(sizes(call)),
        params=lambda call: {**_params(call), "parts": np.uint32(_parts(call))},
        constants=lambda call: {
            "DEPTH": sizes(call).depth // 4,
            "COLUMNS": min(sizes(call).width // 4, MOST_COLUMNS),
            "BIASED": _biased(call),
            "QUERY_ZERO": int(call.zeros[0] != 0),
            "DISTANCES": _distances(call),
            "FINE": int(fine(call)),
        },
        prepack={4: _pack_bias},
        threads=lambda call, layout: (math.prod(sizes(call).scores[:3]) * _parts(call), 1, 1),
        unrolled=where_loops_are_slow,
        cost=lambda call: macs(call) / weighted.MACS_A_BYTE["direct"],
    )


def _across(found: Sizes) -> int:
    """Threads that take the channels of a context, 16 each: a power of two."""
    return 1 << ((found.width - 1) // 16).bit_length()


def _length(found: Sizes) -> int:
    return -(-found.keys // 4) * 4


def _query_fits(call: Call, target: Target) -> bool:
    """Whether all scores of a query fit workgroup memory, and its context a workgroup."""
    found = sizes(call)
    memory = 4 * (_length(found) + 16 * _across(found) * (1 + fine(call)) + 3)
    return found.width <= 16 * TEAM and memory <= target.workgroup_memory and target.invocations >= TEAM


def _by_query() -> Kernel:
    def source(call: Call) -> tuple[str, ...]:
        kind = "whole" if _whole(call) else "each"
        words = (f"{name}_words={name}_{kind}" for name in ("key", "value"))
        return "attention_query", "scores", "mask", "dot", *words, *_row_hooks(call)

    return Kernel(
        "q8ta_attention.query",
        source,
        (ONLY_4W,),
        ONLY_4W,
        supports=_query_fits,
        preferred=lambda call, target: choose(call, target) == "query",
        turns=lambda call: sizes(call).keys,
        wide=lambda call: ("k", "v") if _whole(call) else (),
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
