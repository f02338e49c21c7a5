"""What may follow a weighted sum in its own dispatch: from int32 accumulators to the result that is stored.

Every row of EPILOGUES is a variant of q8ta_conv2d, q8ta_linear ... with the name's suffix, its further operands and
attributes, and the WGSL that computes it. `apply` is the definition in numpy.

A sum is rounded to int8 as `quantize` would, and what the graph computes next from that int8 value may join: the same
bytes, one dispatch and one round trip through memory fewer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT32, SMALLEST_SCALE, Array, Attrs, Call, QParams, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import INT8_RANGE, Attr, Operand
from q8ta_wgpu.kernels.epilogue import curve as curves


def _valid_curve(call: Call, arrays: Sequence[Array | None]) -> str:
    knots = arrays[5]
    assert knots is not None
    return curves.valid(knots)


RESIDUAL = Operand("residual", dtypes=(INT8X4,), at_result=True)
ADDEND = Operand("addend", dtypes=(INT8X4,), at_result=True)
CURVE = Operand("curve", constant=True, dtypes=(INT32,), valid=_valid_curve)
TABLE = Operand("table", constant=True, dtypes=(INT8,))

RANGE: Mapping[str, Attr] = {"lo": INT8_RANGE, "hi": INT8_RANGE}
INNER: Mapping[str, Attr] = {"inner_lo": INT8_RANGE, "inner_hi": INT8_RANGE, "inner_zero": INT8_RANGE}
"""The range and zero point of the int8 value between the sum and what follows it."""
LARGEST_RESIDUAL = (
    int(arithmetic.INT32_MAX - arithmetic.T_LIMIT - arithmetic.OFFSET_LIMIT - 2 ** (arithmetic.FRACTION - 1)) // 255
)
MULTIPLIER = Attr("int", low=-arithmetic.INT32_MAX, high=arithmetic.INT32_MAX)
SUM: Mapping[str, Attr] = {
    **INNER,
    "inner_multiplier": MULTIPLIER,
    "addend_multiplier": MULTIPLIER,
    "shift": Attr("int", low=arithmetic.SMALLEST_SHIFT, high=30),
}
"""Of a q8ta_add whose one operand is the sum's own int8 value."""

REAL: Mapping[str, Attr] = {
    "zero": INT8_RANGE,
    "scale": Attr("float", low=SMALLEST_SCALE, high=1 / SMALLEST_SCALE),
    "factor": Attr("int", low=1, high=64),
}
"""Of a dequantize that is stored as float32: the int8 value's zero point and scale, and the factor of a pixel_shuffle
before it (1 for none)."""


@dataclass(frozen=True)
class Epilogue:
    """One row: what follows the sum.

    Attributes:
        suffix: of the operator's name.
        value: stem of the WGSL that makes an int8 value of an accumulator, one element at a time; empty where there is
            none. Four channels at once have files of their own, see `quad`.
        operands: what it reads beyond the operands of the sum.
        schema: its attributes.
        real: whether the result is float32: dequantized, or the accumulator times its scale where `value` is empty.
    """

    suffix: str
    value: str
    operands: tuple[Operand, ...] = ()
    schema: Mapping[str, Attr] = field(default_factory=lambda: RANGE)
    real: bool = False

    @property
    def tolerance(self) -> float:
        """The largest relative error against `apply`: int8 values and what is dequantized of them are exact."""
        return 1e-6 if not self.value else 0.0

    @property
    def element(self) -> tuple[str, ...]:
        """WGSL behind `accumulate(p)`: a main and the epilogue, one element at a time."""
        if not self.real:
            return "tile_int8x4", self.value
        return ("tile_float32", "real_dequantize", self.value) if self.value else ("tile_float32", "real_sum")

    @property
    def quad(self) -> tuple[str, ...]:
        """WGSL behind the tiled kernels: `store_quad`, four channels at once.

        Value and store are apart: with both in one loop over a thread's accumulators, compilers stop unrolling it, and
        the accumulators leave registers (a residual block's product took twice as long on an H200).
        """
        if not self.value:
            return "quad_sum", "quad_channel"
        store = "quad_dequantize" if self.real else "quad_store"
        joins = next((end for end in ("_sum", "_table") if self.value.endswith(end)), "")
        value = f"quad_{self.value.removesuffix(joins)}"
        return store, f"quad_joined{joins}", value, "quad_finish", "quad_channel"


EPILOGUES: tuple[Epilogue, ...] = (
    # Rounded to int8, clamped.
    Epilogue("", "requantize"),
    # A residual joins before rounding.
    Epilogue("_add", "requantize_add", (RESIDUAL,), {**RANGE, "residual_multiplier": Attr("int", 0, LARGEST_RESIDUAL)}),
    # An activation before rounding, as a curve.
    Epilogue("_act", "requantize_curve", (CURVE,)),
    # Rounded, then q8ta_add with another value.
    Epilogue("_sum", "requantize_sum", (ADDEND,), {**RANGE, **SUM}),
    # Rounded, then q8ta_table.
    Epilogue("_table", "requantize_table", (TABLE,), INNER),
    # Rounded, then (pixel_shuffle and) dequantize.
    Epilogue("_dequantize", "requantize", (), {**RANGE, **REAL}, real=True),
    Epilogue("_sum_dequantize", "requantize_sum", (ADDEND,), {**RANGE, **SUM, **REAL}, real=True),
    # Never rounded: a float32 head.
    Epilogue("_float", "", (), {}, real=True),
)


def keeps_accumulator(call: Call) -> bool:
    """Whether the result is the float32 accumulator times its scale, never rounded to int8."""
    return call.output.dtype == FLOAT32 and "scale" not in call.attrs


def check(types: Sequence[TensorType], attrs: Attrs, sums: Shape) -> tuple[Shape, str]:
    """Shape and dtype of what follows sums of shape `sums`; `types` are all operands'. Raises GraphError."""
    for t in types[5:]:
        if t.dtype == INT8X4 and t.shape != sums:
            raise GraphError(f"what is added must have the sum's shape {sums}, found {t.shape}")
        if t.dtype == INT8 and t.shape != (256,):
            raise GraphError(f"a table has 256 entries, found shape {t.shape}")
    if "shift" in attrs:
        a, b, shift = attrs["inner_multiplier"], attrs["addend_multiplier"], attrs["shift"]
        if not arithmetic.sum_fits(a, b, shift):
            raise GraphError(f"multipliers {a} and {b} with shift {shift} pass int32")
    if "inner_lo" in attrs and attrs["inner_lo"] > attrs["inner_hi"]:
        raise GraphError(f"the range inner_lo..inner_hi is empty, found {attrs['inner_lo']}..{attrs['inner_hi']}")
    if "factor" in attrs:
        return shuffled(sums, attrs["factor"]), FLOAT32
    return sums, INT8X4 if {"lo", "inner_lo"} & set(attrs) else FLOAT32


def shuffled(shape: Shape, factor: int) -> Shape:
    """The shape of pixel_shuffle of (n, c, h, w); raises GraphError where c is no multiple of factor^2."""
    if factor == 1:
        return shape
    if len(shape) != 4 or shape[1] % factor**2:
        wanted = f"(n, c, h, w) with c a multiple of {factor**2}"
        raise GraphError(f"pixel_shuffle by {factor} takes {wanted}, found {shape}")
    n, c, h, w = shape
    return n, c // factor**2, h * factor, w * factor


def sums(call: Call) -> Shape:
    """The shape of the sums behind a result: before its pixel_shuffle."""
    shape, factor = call.output.shape, call.attrs.get("factor", 1)
    if factor == 1:
        return shape
    n, c, h, w = shape
    return n, c * factor**2, h // factor, w // factor


def _inner(call: Call) -> Call:
    """The call that makes the first int8 value of a sum."""
    attrs, q = call.attrs, call.output.q
    if q is None:
        q = QParams(attrs["scale"], attrs["zero"])
    if "inner_lo" in attrs:
        q = replace(q, zero=attrs["inner_zero"])
        attrs = {**attrs, "lo": attrs["inner_lo"], "hi": attrs["inner_hi"]}
    return replace(call, attrs=attrs, output=TensorType(sums(call), INT8X4, q))


def apply(call: Call, acc: NDArray[np.int64], channel: int, arrays: tuple[Array, ...]) -> Array:
    """From sums of (x - z_x)*w to the result: the definition of every epilogue.

    `channel` is the axis of output channels; arrays are (multiplier, offset[, what the epilogue reads further]).
    """
    shape = [-1 if axis == channel % acc.ndim else 1 for axis in range(acc.ndim)]
    multiplier, offset = arrays[0].reshape(shape), arrays[1].astype(np.int64).reshape(shape)
    if keeps_accumulator(call):
        total = acc.astype(np.int32).astype(np.float32) + offset.astype(np.int32).astype(np.float32)
        return total * multiplier
    inner = _inner(call)
    attrs, q = inner.attrs, inner.output.q
    assert q is not None
    v = arithmetic.scaled_accumulator(acc, multiplier) + offset
    if "residual_multiplier" in attrs:
        v = v + (arrays[2].astype(np.int64) - call.zeros[-1]) * attrs["residual_multiplier"]
    elif len(arrays) == 3 and arrays[2].dtype == np.int32:
        v = curves.evaluate(v, arrays[2])
    value: Array = arithmetic.saturate(arithmetic.rte(v, arithmetic.FRACTION), q.zero, attrs["lo"], attrs["hi"])
    if "shift" in attrs:
        value = _joined(call, value, arrays[2])
    elif "inner_lo" in attrs:
        value = arrays[2][value.astype(np.int64) + 128]
    return _real(call, value) if "factor" in attrs else value


def _joined(call: Call, value: Array, addend: Array) -> Array:
    attrs, q = call.attrs, call.output.q
    terms = (
        (value, attrs["inner_zero"], attrs["inner_multiplier"]),
        (addend, call.zeros[-1], attrs["addend_multiplier"]),
    )
    v = sum((x.astype(np.int64) - zero) * multiplier for x, zero, multiplier in terms)
    zero = attrs["zero"] if q is None else q.zero
    return arithmetic.saturate(arithmetic.rte(np.asarray(v), attrs["shift"]), zero, attrs["lo"], attrs["hi"])


def _real(call: Call, value: Array) -> Array:
    real = arithmetic.dequantize(value, QParams(call.attrs["scale"], call.attrs["zero"]))
    r = call.attrs["factor"]
    if r == 1:
        return real
    n, c, h, w = value.shape
    return real.reshape(n, c // r**2, r, r, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(call.output.shape)


def params(call: Call) -> Params:
    """Uniform fields of the epilogue in requantize*.wgsl, quad_*.wgsl and place_*.wgsl."""
    fields: dict[str, np.uint32 | np.int32 | np.float32 | tuple[int, int, int, int]] = {
        "sums": canonical(sums(call)),
        "channels": np.uint32(call.inputs[1].shape[0]),
        "factor": np.uint32(call.attrs.get("factor", 1)),
    }
    if keeps_accumulator(call):
        return fields
    attrs, inner = call.attrs, _inner(call)
    assert inner.output.q is not None
    fields |= {
        "zero": np.int32(inner.output.q.zero),
        "lo": np.int32(inner.attrs["lo"]),
        "hi": np.int32(inner.attrs["hi"]),
    }
    if "residual_multiplier" in attrs:
        fields["residual_zero"] = np.int32(call.zeros[-1])
        fields["residual_multiplier"] = np.int32(attrs["residual_multiplier"])
    if "shift" in attrs:
        fields |= {
            "inner_multiplier": np.int32(attrs["inner_multiplier"]),
            "addend_zero": np.int32(call.zeros[-1]),
            "addend_multiplier": np.int32(attrs["addend_multiplier"]),
            "shift": np.uint32(attrs["shift"]),
            "sum_zero": np.int32(call.output.q.zero if call.output.q else attrs["zero"]),
            "sum_lo": np.int32(attrs["lo"]),
            "sum_hi": np.int32(attrs["hi"]),
        }
    if len(call.inputs) == 6 and call.inputs[5].dtype == INT32:
        fields["curve_end"] = np.int32(((call.inputs[5].numel - 1) << arithmetic.FRACTION) - 1)
    if "scale" in attrs:
        fields["real_zero"] = np.int32(attrs["zero"])
        fields["real_scale"] = np.float32(attrs["scale"])
    return fields
