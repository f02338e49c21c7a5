"""What the kernels of q8ta_attention share: parameters, names that they link, and the packed bias."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.kernels.attention.sizes import STRIDES, operand_strides, result_strides, sizes
from q8ta_wgpu.kernels.epilogue import magic_rounding

LEAST = -(1 << 29)
"""Lower than any score by more than all distances. Excluded elements have a score of twice that."""


def biased(call: Call) -> int:
    """1 if the bias may change weights, else 0."""
    return int(call.inputs[4].numel > 1 or sizes(call).keys == 1)


def has_vectors(call: Call) -> bool:
    """Whether rows of all operands begin at, and consist of, vectors of 16 elements."""
    found = sizes(call)
    numbers = itertools.chain(*operand_strides(found, call.attrs), (found.depth, found.width))
    return all(n % 16 == 0 for n in numbers)


def params_of(call: Call) -> Params:
    """The fields of `params` that all shaders read. Strides are in words."""
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


def distances(call: Call) -> int:
    """The number of entries in the table of weights."""
    return call.inputs[3].numel


def fine(call: Call) -> bool:
    """Whether weights have fourteen bits."""
    return distances(call) > 256


FINE_HOOKS = (
    "store_distances=store_fine_distances",
    "softmax_weights=fine_softmax_weights",
    "low_four=low_weight_four",
    "store_sums=store_fine_sums",
)
COARSE_HOOKS = ("low_four=no_weight_four",)
"""What the kernels with blocks link for weights of fourteen bits and of eight."""


def needed(call: Call) -> str:
    """The prefix of the WGSL function that says which keys a row needs: all, or with a mask those up to the last one
    that is not masked."""
    return "masked" if len(call.inputs) > 5 else "all"


def row_hooks(call: Call) -> tuple[str, ...]:
    """What the kernels without blocks link, which compute a query in a thread or a workgroup."""
    kind = "fine" if fine(call) else "coarse"
    return f"inverse_of_row={kind}_inverse", f"context_of_row={kind}_context", f"needed_keys={needed(call)}_keys"


def pack_bias(call: Call, bias: Array) -> Array:
    """The bias as the shaders read it: two int16 in a word, rows padded to a multiple of four numbers."""
    lines = np.pad(bias.reshape(-1, bias.shape[-1]), ((0, 0), (0, -bias.shape[-1] % 4)))
    return np.ascontiguousarray(lines.astype(np.int16)).reshape(-1).view("<i4")


def loads_of(call: Call, names: Sequence[str]) -> tuple[str, ...]:
    """The links by which operands are read as vectors of four words where their rows allow it, else word by word."""
    kind = "vector" if has_vectors(call) else "words"
    return tuple(f"{name}_words={name}_by_{kind}" for name in names)


def macs(call: Call) -> int:
    """The number of multiply-accumulates of both products."""
    found = sizes(call)
    return math.prod(found.scores) * (found.depth + found.width)
