"""q8ta_matmul: the product of two int8 activations, such as q k^T and weights times values of attention.

Its second operand is transposed, (..., columns, depth), so that both sides are contiguous along the sum; see `Product`
in q8ta_wgpu/ir/int8.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, SMALLEST_SCALE, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import WIDTH_PACKED_INT8, Layout, Shape, canonical
from q8ta_wgpu.ir.op import Attr, Op, Operand, dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.epilogue import epilogue
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Stage
from q8ta_wgpu.kernels.epilogue.stages import FixedPoint, Requantize, RequantizeInt16, Scale
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import RealResidual
from q8ta_wgpu.kernels.product import gemm, weighted
from q8ta_wgpu.kernels.product.half import HIGH, LOW, half, half_of
from q8ta_wgpu.kernels.product.units import UnitTile

LONGEST = arithmetic.INT32_MAX // 255**2
"""Most products of two differences of int8 whose sum cannot pass int32."""


def product_shape(a: Shape, transposed: Shape) -> Shape:
    """The shape of a product of (..., rows, depth) and (..., columns, depth), whose batch dimensions broadcast.

    Raises GraphError where there is none.
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
    first = attrs["epilogue"].stages[0]
    if attrs["epilogue"].shuffle or not isinstance(first, Requantize | RequantizeInt16 | RealResidual | Scale):
        raise GraphError(f"a product of activations is rounded first and not shuffled, found {attrs['epilogue']}")
    shape = product_shape(types[0].shape, types[1].shape)
    if types[0].shape[-1] > LONGEST:
        raise GraphError(f"a sum of {types[0].shape[-1]} products could pass int32, which {LONGEST} cannot")
    return epilogue.check(types, attrs, shape)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b, *more = arrays
    # float64 is exact here: every partial sum is an integer below 2^53.
    left, right = (x.astype(np.float64) - zero for x, zero in zip((a, b), call.zeros, strict=False))
    sums = (left @ np.swapaxes(right, -1, -2)).astype(np.int64)
    kept = call.attrs["epilogue"].keeps_accumulator
    scale, none = np.array([call.attrs["multiplier"]], np.float32), np.zeros(1, np.float32 if kept else np.int32)
    return epilogue.apply(call, sums, -1, (scale, none, *more))


def lower(call: QuantizedCall) -> Int8Form | str:
    """The contract's sum with one multiplier for all columns and no offset. An int16 operand is two int8 halves: their
    products, the least first, each have the one before as a float32 residual."""
    a, b = call.q
    if a is None or b is None or call.out is None:
        return "it needs two quantized operands and a quantized result"
    depth = call.inputs[0].shape[-1]
    if depth > LONGEST:
        return f"a sum of {depth} products could pass int32"
    pairs = list(itertools.product(_halves(0, a), _halves(1, b)))
    carried, held = None, 0.0
    for (left, p), (right, q) in pairs[:-1]:
        reached = held + depth * p.span * p.scale * q.span * q.scale
        carried = _real((left, right), p.scale * q.scale, carried, reached)
        if carried is None:
            return "its steps are no normal float32 numbers"
        held = reached
    (left, p), (right, q) = pairs[-1]
    unit = 2.0 ** arithmetic.fraction(call.out.dtype) / call.out.scale
    if held * unit > arithmetic.TERM_LIMIT:  # a float32 result holds any sum of the two: it is quantized by itself
        reached = held + depth * p.span * p.scale * q.span * q.scale
        real = _real((left, right), p.scale * q.scale, carried, reached, call.factor)
        return Int8Form("quantize", (real,), {"lo": call.lo, "hi": call.hi}) if real else "its result is past float32"
    rounds = (RequantizeInt16 if call.out.dtype == INT16X4 else Requantize)(call.lo, call.hi)
    stages = (RealResidual(float(np.float32(unit))), rounds) if carried else (rounds,)
    with np.errstate(over="ignore"):
        multiplier = np.float32(p.scale * q.scale * unit)
    if not np.isfinite(multiplier):
        return "the ratio of its scales is not a finite float32"
    return _form((left, right), float(multiplier), stages, carried)


def _real(
    operands: tuple[int | Int8Form, int | Int8Form],
    scale: float,
    before: Int8Form | None,
    reached: float,
    factor: float = 1.0,
) -> Int8Form | None:
    """A product in float32, with a residual that came before, if any, of at most `reached` in all, times a factor; None
    where float32 cannot hold its numbers. `scale` is what a step of its sums is worth."""
    step = float(np.float32(reached / arithmetic.TERM_LIMIT)) if before else 1.0
    numbers = (step, 1 / step, float(np.float32(scale / step)), float(np.float32(step * factor)))
    if not all(SMALLEST_SCALE <= n <= 1 / SMALLEST_SCALE for n in numbers):
        return None
    stages = (RealResidual(float(np.float32(1 / step))), FixedPoint(numbers[3])) if before else (Scale(),)
    return _form(operands, numbers[2], stages, before)


def _form(
    operands: tuple[int | Int8Form, int | Int8Form], multiplier: float, stages: Sequence[Stage], before: Int8Form | None
) -> Int8Form:
    attrs = {"multiplier": multiplier, "epilogue": Epilogue(tuple(stages))}
    return Int8Form("q8ta_matmul", (*operands, before) if before else operands, attrs)


def _halves(operand: int, q: QParams) -> Sequence[tuple[int | Int8Form, QParams]]:
    """The int8 values of an operand, the lower half of int16 first, and how each is quantized."""
    if q.dtype != INT16X4:
        return [(operand, q)]
    return [(half(operand, q, part), half_of(q, part)) for part in (LOW, HIGH)]


def macs(call: Call) -> int:
    """Multiply-accumulates of a product of two activations."""
    return call.output.numel * call.inputs[0].shape[-1]


def _params(call: Call) -> Params:
    columns = call.output.shape[-1]
    near: Params = {}
    if call.attrs["epilogue"].near:
        offset, *bits = epilogue.pack_offset(call, np.zeros(4, np.int32))[0, :, 0]
        ends = dict(zip(("low", "high", "magic"), (b.view(np.float32) for b in bits), strict=True))
        near = {"offset": offset, **ends}
    return {
        **epilogue.params(call),
        "channels": np.uint32(columns),
        "quads": np.uint32(-(-columns // 4)),
        "multiplier": np.float32(call.attrs["multiplier"]),
        **near,
        "a_zero": np.int32(call.zeros[0]),
        "b_zero": np.int32(call.zeros[1]),
    }


def _channels(call: Call) -> str:
    """What belongs to four columns, as the epilogue reads it."""
    after = call.attrs["epilogue"]
    kind = "near" if after.near else "scaled" if after.keeps_accumulator else "rounded"
    return f"channel_quad={kind}_product_quad"


def _threads(call: Call, layout: Layout) -> tuple[int, int, int]:
    *rows, columns = call.output.shape
    return math.prod(rows) * -(-columns // 4), 1, 1


TILES = {label: gemm.TILES[label] for label in ("units_64x64", "64x64", "32x32")}
MANY_GROUPS = 300
"""Workgroups from which on the large tile keeps a large GPU busy, as in kernels/product/sgemm.py."""

UNIT_WORK = 1 << 24
"""Multiply-accumulates from which matrix units pay: at twice as many, heads of 197 rows on an H200 took 4.8 and 5.8
microseconds with them, 5.1 and 6.5 without."""

FEW_ROWS = 8
"""Rows up to which a tile would be mostly empty."""


def _vectors(call: Call) -> int:
    return -(-call.inputs[0].shape[-1] // 16)


def _groups(tile: gemm.AnyTile, call: Call) -> int:
    n, c, rows, columns = dims(call.output)
    return n * c * tile.groups(rows, columns)


def _choose(call: Call, target: Target) -> str:
    large = _groups(TILES["64x64"], call) >= MANY_GROUPS
    if TILES["units_64x64"].fits(target) and macs(call) >= UNIT_WORK:
        return "units_64x64"
    return "64x64" if large else "32x32"


def _preferred(call: Call, target: Target, label: str) -> bool:
    return target.shares_memory and dims(call.output)[2] > FEW_ROWS and label == _choose(call, target)


def _tiled(label: str) -> Kernel:
    tile = TILES[label]
    units = isinstance(tile, UnitTile)

    def of(call: Call) -> gemm.AnyTile:
        return tile.at_depth(_vectors(call))

    def whole(call: Call) -> bool:
        """Whether rows are whole vectors."""
        return call.inputs[0].shape[-1] % 16 == 0

    def source(call: Call) -> tuple[str, ...]:
        kind = "whole" if whole(call) else "words"
        sides = (f"a_vector=a_{kind}", f"b_vector=b_{kind}")
        return (
            "gemm_units_pairs" if units else "gemm_pairs",
            "pairs_rows",
            "dot",
            *sides,
            "sums_rows",
            _channels(call),
        )

    def params(call: Call) -> Params:
        return {**_params(call), "steps": np.uint32(of(call).steps(_vectors(call)))}

    return Kernel(
        f"q8ta_matmul.tiled_{label}",
        source,
        (ONLY_4W | FLOAT,),
        ONLY_4W | FLOAT,
        supports=lambda call, target: tile.fits(target),
        preferred=lambda call, target: _preferred(call, target, label),
        wide=lambda call: ("a", "b") if whole(call) else (),
        params=params,
        constants=lambda call: of(call).constants,
        threads=lambda call, layout: (_groups(tile, call) * tile.threads, 1, 1),
        turns=lambda call: tile.turns(_vectors(call)),
        workgroup=(tile.threads, 1, 1),
        workgroup_memory=tile.memory + 4 * tile.step * (tile.m + tile.n),
        unrolled=tile.unrolled,
        cost=lambda call: macs(call) / weighted.MACS_A_BYTE["tiled"],
    )


q8ta_matmul = Op(
    name="q8ta_matmul",
    operands=(Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,))),
    infer=_infer,
    reference=_reference,
    schema={"multiplier": Attr("float", low=0, high=3.4e38), "epilogue": epilogue.EPILOGUE},
    bounds=("multiplier", "epilogue"),
    kernels=(
        *(_tiled(label) for label in TILES),
        Kernel(
            "q8ta_matmul",
            lambda call: ("q8ta_matmul", "dot", "direct", "sums_rows", _channels(call)),
            (WIDTH_PACKED_INT8 | FLOAT,),
            WIDTH_PACKED_INT8 | FLOAT,
            params=_params,
            threads=_threads,
            turns=lambda call: -(-call.inputs[0].shape[-1] // 4),
            cost=lambda call: macs(call) / weighted.MACS_A_BYTE["direct"],
        ),
    ),
    macs=macs,
    work=macs,
)
