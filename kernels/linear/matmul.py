"""matmul, the matrix product of two activations, such as q k^T and weights times values in attention; q8ta_matmul of
int8, and q16ta_matmul where one or both are int16. A product with a constant matrix is imported as `linear`.

The second operand of the integer forms is transposed, (..., columns, depth), so that both operands are contiguous along
the sum: see `Product` in q8ta_wgpu/ir/int8.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, Product, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import WIDTH_PACKED_INT8, Layout, Shape, canonical
from q8ta_wgpu.ir.op import INTEGERS, Attr, Case, Op, Operand, dims
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Phase
from q8ta_wgpu.kernels.epilogue.stages import Requantize, RequantizeInt16
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS, MACS_A_BYTE
from q8ta_wgpu.kernels.product import gemm, halves, sgemm

LONGEST = arithmetic.INT32_MAX // 255**2
"""The longest sum of products (a - a_zero) * (b - b_zero) of int8 that cannot pass int32."""


def product_shape(a: Shape, b: Shape, transposed: bool = True) -> Shape:
    """The shape of a product of `a`, (..., rows, depth), and `b`: (..., rows, columns). Batch dimensions broadcast.

    Args:
        a: a shape.
        b: (..., columns, depth) where it is `transposed`, else (..., depth, columns).
        transposed: which of the two `b` is.

    Raises:
        GraphError: depths differ, or batch dimensions do not broadcast in the last four dimensions.
    """
    along = -1 if transposed else -2
    if len(a) < 2 or len(b) < 2 or a[-1] != b[along]:
        raise GraphError(
            f"a product sums along the last dimension of {a} and dimension {along} of {b}, of other extents"
        )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise GraphError(f"a product of {a} and {b}: their batch dimensions do not broadcast") from None
    shape = (*batch, a[-2], b[-3 - along])
    if any(canonical(s)[0] not in (1, canonical(shape)[0]) for s in (a, b)):
        raise GraphError(f"a product of {a} and {b} broadcasts left of the last three dimensions; expand first")
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


def _total(call: Call) -> tuple[str, ...]:
    """The WGSL binding of what adds the sums of halves."""
    total = {1: "real_product", 2: "real_of_two", 4: "real_of_four"}[math.prod(_constants(call).values())]
    return (f"real_products={total}",)


def _channels(call: Call) -> tuple[str, ...]:
    """WGSL bindings of what follows a product: all columns have one multiplier."""
    magic = "magic_" if call.attrs["epilogue"].rounds_by_addition else ""
    return *epilogue.source(call), f"numbers_of={magic}product_numbers"


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    *rows, columns = call.output.shape
    return math.prod(rows) * -(-columns // 4), 1, 1


TILE = gemm.TILES["64x64"]


def _tile(call: Call) -> gemm.AnyTile:
    """The tile with the step for a call's depth. With int16 on either side, threads share fewer rows."""
    fewest = replace(TILE, halves=max(_constants(call).values()))
    return replace(TILE, step=fewest.at_depth(_vectors(call)).step)


def _vectors(call: Call) -> int:
    """Vectors of 16 int8 along k."""
    return -(-call.inputs[0].shape[-1] // 16)


def _groups(call: Call) -> int:
    n, c, rows, columns = dims(call.output)
    return n * c * -(-rows // (TILE.m // halves.of(call, 0))) * -(-columns // (TILE.n // halves.of(call, 1)))


def _tiled_source(call: Call) -> tuple[str, ...]:
    sides = []
    for i, side in enumerate("ab"):
        int16 = halves.of(call, i) == 2
        kind, half = ("RowVector", "half_vector") if int16 else ("Int8Vector", "whole_vector")
        vector = f"{side}_int16" if int16 else f"{side}_int8"
        sides += [f"{side.upper()}Vector={kind}", f"{side}_vector={vector}", f"{side}_half={half}"]
    hooks = _channels(call) + _total(call)
    return "q8ta_matmul_tiled", "q8ta_matmul", "dot", "sums_rows", *hooks, *sides, "halves_int16"


def _general_source(call: Call) -> tuple[str, ...]:
    halved = [halves.of(call, i) == 2 for i in range(2)]
    sides = [
        f"{s}_word_half={'half_of_word' if int16 else 'whole_word'}" for s, int16 in zip("ab", halved, strict=True)
    ]
    return "q8ta_matmul", "dot", "direct", "sums_rows", *_channels(call), *_total(call), *sides


def _kernels(op: str) -> tuple[Kernel, ...]:
    """The tiled product, and the kernel for any call."""
    tiled = Kernel(
        f"{op}.tiled",
        _tiled_source,
        (ONLY_4W,),
        ONLY_4W | FLOAT,
        turns=lambda call: TILE.turns(_vectors(call)),
        preferred=lambda call, target: target.shares_memory and dims(call.output)[2] > FEW_ROWS,
        params=lambda call: {**_params(call), "steps": np.uint32(_tile(call).steps(_vectors(call)))},
        constants=lambda call: {**_tile(call).constants, **_constants(call)},
        threads=lambda call, layout: (_groups(call) * TILE.threads, 1, 1),
        workgroup=(TILE.threads, 1, 1),
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
    return tiled, general


def _infer_float(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return product_shape(types[0].shape, types[1].shape, transposed=False), FLOAT32


def _reference_float(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.float64) for x in arrays)
    return np.asarray(a @ b).astype(np.float32)


def _float_sizes(call: Call) -> sgemm.Sizes:
    n, c, rows, columns = dims(call.output)
    return sgemm.Sizes(n * c, rows, columns, call.inputs[0].shape[-1])


matmul = Op(
    name="matmul",
    operands=(Operand("a"), Operand("b")),
    infer=_infer_float,
    reference=_reference_float,
    macs=macs,
    kernels=(
        *sgemm.kernels(sgemm.Product("matmul", "matmul", ("a", "b", "y"), _float_sizes)),
        *share.kernels(Kernel("matmul", ("matmul", "map"), (FLOAT,), FLOAT), lambda call: call.inputs[0].shape[-1:]),
    ),
    int8=Product(lower, reads_int16=True, gives_int16=True),
    cases=(
        Case(((5, 7), (7, 3))),
        Case(((2, 3, 17, 48), (2, 3, 48, 17))),
        Case(((3, 4, 5), (5, 6))),
        Case(((2, 1, 5, 4), (3, 4, 7))),
        Case(((1, 6), (2, 3, 6, 2))),
        Case(((2, 2, 3, 4, 5), (2, 2, 1, 5, 3))),
        Case(((11, 300), (300, 2))),
        Case(((2, 1, 69, 36), (3, 36, 132))),
        Case(((2, 66, 131), (131, 65))),
        Case(((1, 1), (1, 1))),
    ),
    tolerance=1e-5,
    work=macs,
)


q8ta_matmul = Op(
    name="q8ta_matmul",
    operands=(Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,))),
    infer=_infer,
    reference=_reference,
    schema={"multiplier": Attr("float", low=0, high=3.4e38), "epilogue": epilogue.EPILOGUE},
    bounds=("multiplier", "epilogue"),
    kernels=_kernels("q8ta_matmul"),
    macs=macs,
    work=macs,
)

q16ta_matmul = replace(
    q8ta_matmul,
    name="q16ta_matmul",
    operands=(Operand("a", dtypes=INTEGERS), Operand("b", dtypes=INTEGERS)),
    kernels=_kernels("q16ta_matmul"),
)
"""q8ta_matmul where one or both operands are int16 (kernels/product/halves.py)."""
