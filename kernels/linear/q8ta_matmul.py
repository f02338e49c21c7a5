"""q8ta_matmul, the matrix product of two int8 activations, such as q k^T and weights times values in attention.
q16ta_matmul is the same where one or both are int16.

The second operand is transposed, (..., columns, depth), so that both operands are contiguous along the sum: see
`Product` in q8ta_wgpu/ir/int8.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import WIDTH_PACKED_INT8, Layout, Shape, canonical
from q8ta_wgpu.ir.op import INTEGERS, Attr, Op, Operand, dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Phase
from q8ta_wgpu.kernels.epilogue.stages import Requantize, RequantizeInt16
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MACS_A_BYTE, MANY_GROUPS, UNIT_WORK
from q8ta_wgpu.kernels.product import gemm, halves, tiled

LONGEST = arithmetic.INT32_MAX // 255**2
"""The longest sum of products (a - a_zero) * (b - b_zero) of int8 that cannot pass int32."""


def product_shape(a: Shape, transposed: Shape) -> Shape:
    """The shape of a product of `a`, (..., rows, depth), and `transposed`, (..., columns, depth): (..., rows, columns).
    Batch dimensions broadcast.

    Raises:
        GraphError: depths differ, or batch dimensions do not broadcast in the last four dimensions.
    """
    if len(a) < 2 or len(transposed) < 2 or a[-1] != transposed[-1]:
        raise GraphError(f"a product of rows along the last dimensions of {a} and {transposed}: their extents differ")
    try:
        batch = np.broadcast_shapes(a[:-2], transposed[:-2])
    except ValueError:
        raise GraphError(f"a product of {a} and {transposed}: their batch dimensions do not broadcast") from None
    shape = (*batch, a[-2], transposed[-2])
    if any(canonical(s)[0] not in (1, canonical(shape)[0]) for s in (a, transposed)):
        raise GraphError(
            f"a product of {a} and {transposed} broadcasts left of the last three dimensions; expand first"
        )
    return shape


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = product_shape(types[0].shape, types[1].shape)
    longest = _longest(types[0].dtype, types[1].dtype)
    if types[0].shape[-1] > longest:
        raise GraphError(f"a sum of {types[0].shape[-1]} products could pass int32, which {longest} cannot")
    if attrs["epilogue"].keeps_accumulator:
        raise GraphError(f"a product of activations is rounded, found {attrs['epilogue']}")
    return epilogue.check(types, attrs, shape, frozenset({Phase.ROUNDING, Phase.INT8, Phase.REAL}))


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b, *more = arrays
    # float64 is exact here: every partial sum is an integer below 2^53.
    left, right = (x.astype(np.float64) - zero for x, zero in zip((a, b), call.zeros, strict=False))
    sums = (left @ np.swapaxes(right, -1, -2)).astype(np.int64)
    scale, none = np.array([call.attrs["multiplier"]], np.float32), np.zeros(1, np.int32)
    return epilogue.apply(call, sums, -1, (scale, none, *more))


def lower(call: QuantizedCall) -> Int8Form:
    """The int8 form of a product of two activations: a weighted sum with one multiplier for all columns and no offset.
    Raises NoInt8Form if there is none."""
    a, b, out = call.quantized(), call.quantized(1), call.result
    depth, longest = call.inputs[0].shape[-1], _longest(a.dtype, b.dtype)
    if depth > longest:
        raise NoInt8Form(f"a sum of {depth} products could pass int32, which {longest} cannot")
    with np.errstate(over="ignore"):
        multiplier = np.float32(a.scale * b.scale * 2.0 ** arithmetic.fraction(out.dtype) / out.scale)
    if not np.isfinite(multiplier):
        raise NoInt8Form("the ratio of its scales is not a finite float32")
    op = "q16ta_matmul" if INT16X4 in (a.dtype, b.dtype) else "q8ta_matmul"
    rounds = (RequantizeInt16 if out.dtype == INT16X4 else Requantize)(call.lo, call.hi)
    return Int8Form(op, (0, 1), {"multiplier": float(multiplier), "epilogue": Epilogue((rounds,))})


def _longest(a: str, b: str) -> int:
    """The longest sum that cannot pass int32 for operands of two dtypes. For two int16 operands, two sums of halves are
    added."""
    return LONGEST // 2 if a == b == INT16X4 else LONGEST


def macs(call: Call) -> int:
    """The number of multiply-accumulates of a call."""
    return call.output.numel * call.inputs[0].shape[-1]


def _params(call: Call) -> Params:
    columns = call.output.shape[-1]
    magic: Params = {}
    if call.attrs["epilogue"].rounds_by_addition:
        offset, *bits = epilogue.pack_offset(call, np.zeros(4, np.int32))[0, :, 0]
        ends = dict(zip(("low", "high", "magic"), (b.view(np.float32) for b in bits), strict=True))
        magic = {"offset": offset, **ends}
    return {
        **epilogue.params(call),
        "channels": np.uint32(columns),
        "quads": np.uint32(-(-columns // 4)),
        "multiplier": np.float32(call.attrs["multiplier"]),
        **magic,
        **_zeros(call),
    }


def _zeros(call: Call) -> Params:
    """Uniform fields with the zero points of both operands. An int16 operand has one for each half."""
    found: dict[str, Any] = {}
    for i, side in enumerate("ab"):
        high, low = halves.zeros(call.zeros[i]) if halves.of(call, i) == 2 else (call.zeros[i], 0)
        found |= {f"{side}_zero": np.int32(high), f"{side}_low_zero": np.int32(low)}
    return found


def _constants(call: Call) -> dict[str, int]:
    return {"HALVES_A": halves.of(call, 0), "HALVES_B": halves.of(call, 1)}


def _halves_source(call: Call) -> tuple[str, ...]:
    """WGSL that reads the halves of each operand, by its dtype, and that adds their sums."""
    total = {1: "real_product", 2: "real_of_two", 4: "real_of_four"}[halves.of(call, 0) * halves.of(call, 1)]
    found = [f"real_products={total}"]
    for i, side in enumerate("ab"):
        int16 = halves.of(call, i) == 2
        found += [
            f"{side}_zero=zero_of_{side}{'_half' if int16 else ''}",
            f"{side}_word_half={'half_of_word' if int16 else 'whole_word'}",
            *((f"{side.upper()}Vector=RowVector", f"{side}_half=half_before_depth") if int16 else ()),
        ]
    return tuple(found)


def _channels(call: Call) -> tuple[str, ...]:
    """WGSL bindings of what follows a product: all columns have one multiplier."""
    magic = "magic_" if call.attrs["epilogue"].rounds_by_addition else ""
    return *epilogue.source(call), f"numbers_of={magic}product_numbers"


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    *rows, columns = call.output.shape
    return math.prod(rows) * -(-columns // 4), 1, 1


TILES = {label: gemm.TILES[label] for label in ("units_64x64", "64x64", "32x32")}


def _choose(call: Call, target: Target) -> str:
    if not target.shares_memory or dims(call.output)[2] <= FEW_ROWS:
        return ""
    if TILES["units_64x64"].fits(target) and macs(call) >= UNIT_WORK:
        return "units_64x64"
    large = _groups(call, TILES["64x64"]) >= MANY_GROUPS
    return "64x64" if large or "q16ta" in call.op else "32x32"


def _groups(call: Call, tile: gemm.AnyTile) -> int:
    n, c, rows, columns = dims(call.output)
    return n * c * -(-rows // (tile.m // halves.of(call, 0))) * -(-columns // (tile.n // halves.of(call, 1)))


class _Pairs(tiled.Product):
    """A product of two activations: nothing is packed, and both operands are read as rows."""

    def shaped(self, call: Call, tile: gemm.AnyTile) -> gemm.AnyTile:
        """The tile with the step for a call's depth. With int16 on either side, threads share fewer rows."""
        fewest = max(_constants(call).values())
        return replace(tile, step=replace(tile, halves=fewest).at_depth(self.vectors(call)).step)

    def groups(self, call: Call, tile: gemm.AnyTile) -> int:
        return _groups(call, tile)

    def source(self, call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
        kind = "whole" if self.has_vectors(call) else "words"
        int16 = ["int16_" if halves.of(call, i) == 2 else "" for i in range(2)]
        sides = tuple(f"{side}_vector={side}_{half}{kind}" for side, half in zip("ab", int16, strict=True))
        files = ("halves_int16",) if any(int16) else ()
        return f"{tile.body}_pairs", *tile.source[1:], *self.reads(call, tile), *sides, *files

    def wide(self, call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
        return ("a", "b") if self.has_vectors(call) else ()

    def fields(self, call: Call, tile: gemm.AnyTile) -> Params:
        return {**_params(call), "steps": np.uint32(tile.steps(self.vectors(call)))}

    def constants(self, call: Call, tile: gemm.AnyTile) -> dict[str, int]:
        return {**tile.constants, **_constants(call)}

    def prepack(self, tile: gemm.AnyTile) -> dict[int, Callable[[Call, Array], Array]]:
        return {}

    def memory(self, tile: gemm.AnyTile) -> int:
        """Also of the sums of rows and columns."""
        return tile.memory + 4 * tile.step * (tile.m + tile.n)

    def chosen(self, call: Call, target: Target) -> str:
        return _choose(call, target)


def _sizes(call: Call) -> tuple[int, int, int]:
    """(rows, columns, words along k) of a batch's matrix."""
    _, _, rows, columns = dims(call.output)
    return rows, columns, -(-call.inputs[0].shape[-1] // 4)


def _kernels(op: str, labels: Iterable[str]) -> tuple[Kernel, ...]:
    """Tiled products with these tiles, and the kernel for any call."""
    pairs = _Pairs(
        name=f"{op}.tiled",
        layouts=ONLY_4W,
        sizes=_sizes,
        weights=lambda call, weight: weight,
        reads=lambda call, tile: ("pairs_rows", "sums_rows", *_channels(call), *_halves_source(call)),
        params=_params,
        has_vectors=lambda call: call.inputs[0].shape[-1] % 16 == 0,
        among={label: TILES[label] for label in labels},
        cost=lambda call: macs(call) / MACS_A_BYTE["tiled"],
    )
    general = Kernel(
        op,
        _general_source,
        (WIDTH_PACKED_INT8 | FLOAT,),
        WIDTH_PACKED_INT8 | FLOAT,
        params=_params,
        constants=_constants,
        threads=_threads,
        turns=lambda call: -(-call.inputs[0].shape[-1] // 4),
        cost=lambda call: macs(call) / MACS_A_BYTE["direct"],
    )
    return *tiled.kernels(pairs), general


def _general_source(call: Call) -> tuple[str, ...]:
    return "q8ta_matmul", "pairs_rows", "dot", "direct", "sums_rows", *_channels(call), *_halves_source(call)


q8ta_matmul = Op(
    name="q8ta_matmul",
    operands=(Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,))),
    infer=_infer,
    reference=_reference,
    schema={"multiplier": Attr("float", low=0, high=3.4e38), "epilogue": epilogue.EPILOGUE},
    bounds=("multiplier", "epilogue"),
    kernels=_kernels("q8ta_matmul", TILES),
    macs=macs,
    work=macs,
)

q16ta_matmul = replace(
    q8ta_matmul,
    name="q16ta_matmul",
    operands=(Operand("a", dtypes=INTEGERS), Operand("b", dtypes=INTEGERS)),
    kernels=_kernels("q16ta_matmul", ("units_64x64", "64x64")),
)
"""q8ta_matmul where one or both operands are int16 (kernels/product/halves.py)."""
