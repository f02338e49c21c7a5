"""The kernels of weighted sums with few rows, kernels/product/gemv.wgsl: the threads of a workgroup share k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, SHALLOW
from q8ta_wgpu.kernels.product import four_bit_weights, halves, weighted
from q8ta_wgpu.kernels.product.gemm import Sizes

THREADS = 64
"""Threads of a workgroup."""

TEAMS = {"gemv": THREADS, "gemv_8": 8}
"""Threads of a team, by kernel name: a team makes four channels of all rows. At least FEW_ROWS. Eight threads are one
vector on lavapipe, where teams of 64 take three times as long."""


def is_faster(rows: int, words: int, target: Target) -> bool:
    """Whether these kernels are faster than tiles, for rows of int8 of so many words."""
    shallow = next((inputs for most, inputs in SHALLOW.items() if rows <= most), 0)
    return rows <= FEW_ROWS and (4 * words > shallow or not target.shares_memory)


def kernels(
    op: str,
    layouts: LayoutSet,
    sums: str,
    sizes: Sizes,
    rows: Callable[[Call, Array], Array],
    has_vectors: Callable[[Call], bool],
    supports: Callable[[Call, Target], bool],
) -> tuple[Kernel, ...]:
    """The kernels of an operator for few rows, one for each of TEAMS.

    Args:
        op: the operator's name.
        layouts: of its input and of an int8 result.
        sums: the WGSL file with the positions of a sum's channels in the result.
        sizes: (rows, channels, words of int8 along k) of a call; at most FEW_ROWS rows.
        rows: returns the weight as int8 (channels, bytes along k).
        has_vectors: whether each row of x is a whole number of vectors of four words.
        supports: as for Kernel.
    """

    def most_rows(call: Call) -> int:
        return next(n for n in (1, 4, FEW_ROWS) if sizes(call)[0] <= n)

    def sums_of(call: Call) -> int:
        """The number of sums that a thread makes for each channel."""
        return most_rows(call) * halves.of(call)

    def vectors(call: Call) -> int:
        """The number of loop turns along k, of all threads: vectors, or pairs of them for 4 bits."""
        return -(-sizes(call)[2] // (8 if four_bit_weights.is_grouped(call) else 4))

    def params(call: Call) -> Params:
        count, _, words = sizes(call)
        row_words = four_bit_weights.row_words(call) if four_bit_weights.is_grouped(call) else words
        numbers = {"rows": count, "row_words": row_words, "vectors": vectors(call)}
        return {
            **epilogue.params(call),
            **four_bit_weights.params(call),
            **halves.params(call),
            **{name: np.uint32(n) for name, n in numbers.items()},
        }

    def source(call: Call) -> tuple[str, ...]:
        return (
            "gemv",
            *epilogue.source(call),
            "dot",
            "vectors_whole" if has_vectors(call) else "vectors_of_words",
            sums,
            *four_bit_weights.source(call, "gemv_weights"),
            *halves.source(call),
        )

    def pack(call: Call, weight: Array) -> Array:
        """The weight as words in order (channel quad, vector of k, channel in quad), padded with 0."""
        found = rows(call, weight)
        padded = np.pad(found, ((0, -found.shape[0] % 4), (0, -found.shape[1] % 16)))
        split = padded.reshape(-1, 4, padded.shape[1] // 16, 16)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1).view("<u4")

    def preferred(call: Call, target: Target, team: int) -> bool:
        rows, _, words = sizes(call)
        return is_faster(rows * halves.of(call), words, target) and (team == THREADS) == target.shares_memory

    def with_team(name: str, team: int) -> Kernel:
        return Kernel(
            f"{op}.{name}",
            source,
            (layouts | FLOAT,),
            layouts | FLOAT,
            supports=supports,
            preferred=lambda call, target: preferred(call, target, team),
            wide=lambda call: (*weighted.PER_CHANNEL, "weight", *(("x",) if has_vectors(call) else ())),
            params=params,
            constants=lambda call: {
                "ROWS": most_rows(call),
                "HALVES": halves.of(call),
                "TEAM": team,
                "THREADS": THREADS,
                **four_bit_weights.constants(call, 4),
            },
            prepack={1: four_bit_weights.packed(pack, 4), **weighted.PAD_CHANNELS},
            threads=lambda call, layout: (-(-sizes(call)[1] // 4) * team, 1, 1),
            workgroup=(THREADS, 1, 1),
            turns=lambda call: -(-vectors(call) // team) * (1 + sums_of(call)),
            cost=weighted.cost("shared"),
        )

    return tuple(with_team(name, team) for name, team in TEAMS.items())
