"""The kernel of weighted sums of few rows, kernels/product/gemv.wgsl: the threads of a workgroup share k, not rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, LayoutSet, Params
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.product import groups, halves, weighted
from q8ta_wgpu.kernels.product.gemm import FEW_ROWS, Sizes

THREADS = 64
"""Fewest threads of a workgroup."""

TEAMS = {"gemv": 64, "gemv_256": 256, "gemv_8": 8}
"""Threads that make four channels of all rows, at least FEW_ROWS. Eight are one vector on lavapipe, where teams of 64
take three times as long."""

LONG = 8192
"""Inputs from which large teams are faster on a GPU (8,192 inputs to 2,048 outputs on an H200: 9.0 -> 7.7 us, with 4
bits 8.6 -> 6.3). Shorter sums are slower with them (4,096 to 4,096: 5.8 -> 7.5 us, 2,048 to 8,192: 8.0 -> 9.0)."""


def kernels(
    op: str,
    layouts: LayoutSet,
    sums: str,
    sizes: Sizes,
    rows: Callable[[Call, Array], Array],
    whole: Callable[[Call], bool],
    supports: Callable[[Call, Target], bool],
) -> tuple[Kernel, ...]:
    """The kernels `op`.gemv and those with other teams.

    Args:
        op: the operator's name.
        layouts: of its input and of an int8 result.
        sums: the WGSL file that says where a sum's channels lie in the result.
        sizes: from a call to (rows, channels, words of int8 along k), at most FEW_ROWS rows.
        rows: gives the weight as (channels, bytes along k).
        whole: whether rows of x are whole vectors.
        supports: whether the kernel is made for a call.
    """

    def most_rows(call: Call) -> int:
        return next(n for n in (1, 4, FEW_ROWS) if sizes(call)[0] <= n)

    def sums_of(call: Call) -> int:
        """Sums that a thread makes for each channel."""
        return most_rows(call) * halves.of(call)

    def vectors(call: Call) -> int:
        """Turns of all threads along k: vectors, or pairs of them."""
        return -(-sizes(call)[2] // (8 if groups.is_grouped(call) else 4))

    def params(call: Call) -> Params:
        count, _, words = sizes(call)
        row_words = groups.row_words(call) if groups.is_grouped(call) else words
        numbers = {"rows": count, "row_words": row_words, "vectors": vectors(call)}
        return {
            **epilogue.params(call),
            **groups.params(call),
            **halves.params(call),
            **{name: np.uint32(n) for name, n in numbers.items()},
        }

    def source(call: Call) -> tuple[str, ...]:
        bits = ("Turn=Turn4", "turn_of=turn_of_bits", "add_turn=add_turn_of_bits") if groups.is_grouped(call) else ()
        return (
            "gemv",
            "dot",
            f"x_vector={'whole_vector' if whole(call) else 'vector_of_words'}",
            sums,
            *bits,
            *halves.source(call),
        )

    def pack(call: Call, weight: Array) -> Array:
        """Words in order (channel quad, vector of k, channel in quad), zero padded."""
        found = rows(call, weight)
        padded = np.pad(found, ((0, -found.shape[0] % 4), (0, -found.shape[1] % 16)))
        split = padded.reshape(-1, 4, padded.shape[1] // 16, 16)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1).view("<u4")

    def team_of(call: Call, target: Target) -> str:
        if not target.shares_memory:
            return "gemv_8"
        return "gemv_256" if 4 * sizes(call)[2] >= LONG and sums_of(call) < FEW_ROWS else "gemv"

    def with_team(name: str, team: int) -> Kernel:
        threads = max(team, THREADS)
        return Kernel(
            f"{op}.{name}",
            source,
            (layouts | FLOAT,),
            layouts | FLOAT,
            supports=lambda call, target: supports(call, target) and (threads == THREADS or sums_of(call) < FEW_ROWS),
            preferred=lambda call, target: name == team_of(call, target),
            wide=lambda call: (*weighted.PER_CHANNEL, "weight", *(("x",) if whole(call) else ())),
            params=params,
            constants=lambda call: {
                "ROWS": most_rows(call),
                "HALVES": halves.of(call),
                "TEAM": team,
                "THREADS": threads,
                **groups.constants(call, 4),
            },
            prepack={1: groups.packed(pack, 4), **weighted.PAD_CHANNELS},
            threads=lambda call, layout: (-(-sizes(call)[1] // 4) * team, 1, 1),
            workgroup=(threads, 1, 1),
            turns=lambda call: -(-vectors(call) // team) * (1 + sums_of(call)),
            cost=weighted.cost("shared"),
        )

    return tuple(with_team(name, team) for name, team in TEAMS.items())
