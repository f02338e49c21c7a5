"""linear, x @ weight.T + bias over the last dimension, and its int8 form. mm and addmm are imported as it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import bits
from q8ta_wgpu.ir.graph import FLOAT32, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall, WeightedSum
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import WIDTH_PACKED_INT8, Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, dims
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.stage import Phase
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.lib.thresholds import FEW_ROWS
from q8ta_wgpu.kernels.product import four_bit_weights, gemm, gemv, halves, sgemm, tiled, weighted


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, weight = types[0].shape, types[1].shape
    if len(weight) != 2 or not x or x[-1] != weight[1]:
        raise GraphError(f"linear: the last dimension of {x} must be the weight's second, found weight {weight}")
    for t in types[2:5]:
        if t.shape != (weight[0],):
            raise GraphError(f"linear with {weight[0]} outputs: a per-output operand has shape {t.shape}")
    return (*x[:-1], weight[0]), FLOAT32


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if len(types[1].shape) == 3 and types[0].shape:
        weight = bits.check(types[1].shape, types[0].shape[-1])
        types = (types[0], replace(types[1], shape=weight), *types[2:])
    return epilogue.check(types, attrs, _infer(types, attrs)[0], epilogue.EVERY - {Phase.SHUFFLE})


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, bias = (a.astype(np.float64) for a in arrays)
    return np.asarray(x @ weight.T + bias).astype(np.float32)


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    x, weight, multiplier, offset, _, *more = arrays
    # float64 is exact here: every partial sum is an integer below 2^53.
    w = weighted.values(call, weight)
    acc = (x.astype(np.float64) - weighted.input_zero(call)) @ w.astype(np.float64).T
    return epilogue.apply(call, acc.astype(np.int64), -1, (multiplier, offset, *more))


def _lower(call: QuantizedCall) -> Int8Form:
    return weighted.lower(call, "linear", {})


def _params(call: Call) -> Params:
    depth = {"depth_quads": np.uint32(four_bit_weights.words(call))}
    return {**epilogue.params(call), **four_bit_weights.params(call), **halves.params(call), **depth}


def _pack(call: Call, weight: Array) -> Array:
    return weighted.pack_rows(weight[:, None, :])


def _sizes(call: Call) -> tuple[int, int, int]:
    """(rows, outputs, words of int8 along k) of the matrix product."""
    n, c, h, w = dims(call.output)
    return n * c * h, w, four_bit_weights.words(call)


def _rows(call: Call, weight: Array) -> Array:
    more = -weight.shape[1] % 4
    return np.pad(weight, ((0, 0), (0, more))) if more else weight


def _has_vectors(call: Call) -> bool:
    """Whether rows of x are whole vectors of four words."""
    return four_bit_weights.row_words(call) % 4 == 0


def _reads(call: Call, tile: gemm.AnyTile) -> tuple[str, ...]:
    vectors = "vectors_whole" if _has_vectors(call) else "vectors_of_words"
    return "gemm_rows", "rows_in_order", vectors, "gemm_pixels", "sums_rows"


def _direct_source(call: Call) -> tuple[str, ...]:
    weights = four_bit_weights.source(call, "weights")
    return "q8ta_linear", "dot", "direct", *epilogue.source(call), "sums_rows", *weights, *halves.source(call)


def _products(op: str) -> Iterator[Kernel]:
    """Tiled matrix products, and the kernels for any call."""
    yield from tiled.kernels(
        tiled.Product(
            name=f"{op}.tiled",
            layouts=ONLY_4W,
            sizes=_sizes,
            weights=_rows,
            reads=_reads,
            params=lambda call: {"row_words": np.uint32(four_bit_weights.row_words(call))},
            has_vectors=_has_vectors,
            halves=2 if op == "q16ta_linear" else 1,
        )
    )
    yield from share.kernels(
        Kernel(
            f"{op}.direct",
            _direct_source,
            (WIDTH_PACKED_INT8 | FLOAT,),
            WIDTH_PACKED_INT8 | FLOAT,
            wide=(*weighted.PER_CHANNEL, "weight"),
            params=_params,
            constants=lambda call: four_bit_weights.constants(call, 1),
            prepack={1: four_bit_weights.packed(_pack, 1), **weighted.PAD_CHANNELS},
            threads=weighted.quads_of_sums,
            cost=weighted.cost("direct"),
        ),
        lambda call: (four_bit_weights.words(call),),
    )


def _few_rows(op: str) -> tuple[Kernel, ...]:
    """The kernels for few rows, whose threads share k."""
    return gemv.kernels(
        op,
        ONLY_4W,
        "sums_rows",
        _sizes,
        _rows,
        _has_vectors,
        supports=lambda call, target: _sizes(call)[0] * halves.of(call) <= FEW_ROWS,
    )


def _float_sizes(call: Call) -> sgemm.Sizes:
    n, c, h, w = dims(call.output)
    return sgemm.Sizes(1, n * c * h, w, call.inputs[1].shape[1])


def _transposed(call: Call, weight: Array) -> Array:
    return np.ascontiguousarray(weight.T)


def _case(m: Shape, k: int, n: int, values: str = "random") -> Case:
    return Case(((*m, k), (n, k), (n,)), {}, values)


linear = Op(
    name="linear",
    operands=(Operand("x"), Operand("weight", constant=True), Operand("bias", constant=True)),
    infer=_infer,
    reference=_reference,
    macs=weighted.macs,
    kernels=(
        *sgemm.kernels(sgemm.Product("linear", "linear", ("x", "weight", "y"), _float_sizes), prepack={1: _transposed}),
        *share.kernels(Kernel("linear", ("linear", "map"), (FLOAT,), FLOAT), lambda call: call.inputs[1].shape[1:]),
    ),
    int8=WeightedSum(_lower, reads_int16=True, gives_int16=True, reads_rows=True),
    cases=(
        _case((1,), 16, 8),
        _case((5,), 13, 7),
        _case((2, 3), 33, 10),
        _case((2, 2, 3), 4, 5),
        _case((), 9, 6),
        _case((2, 2, 2, 3), 5, 3),
        _case((4,), 300, 12, "saturate"),
        _case((4,), 8, 4, "ties"),
        _case((1,), 1, 1),
        _case((70,), 336, 37),
        _case((2, 19), 1040, 66, "saturate"),
        _case((3,), 77, 10, "bits32"),
        _case((1,), 512, 12, "bits128"),
        _case((131,), 300, 150, "bits64"),
        _case((9,), 24, 48),
    ),
    tolerance=1e-5,
)


q8ta_linear = Op(
    name="q8ta_linear",
    operands=weighted.OPERANDS,
    infer=_infer_int8,
    reference=_reference_int8,
    macs=weighted.macs,
    schema={"epilogue": epilogue.EPILOGUE},
    kernels=(*_few_rows("q8ta_linear"), *_products("q8ta_linear")),
)

q16ta_linear = Op(
    name="q16ta_linear",
    operands=(Operand("x", dtypes=(INT16X4,)), *weighted.OPERANDS[1:]),
    infer=_infer_int8,
    reference=_reference_int8,
    macs=weighted.macs,
    schema={"epilogue": epilogue.EPILOGUE},
    kernels=(*_few_rows("q16ta_linear"), *_products("q16ta_linear")),
)
"""q8ta_linear with an int16 operand (kernels/product/halves.py)."""
