"""Dynamic quantization by rows: rows of float32 or int16 as int8, each with a scale from its largest magnitude,
computed on the device.

A scale is r * 2^e with an integer r in 64..127, counted in steps of an int16 operand, or in 2^-32 for float32. So it is
exact on every device, and so is its product with a multiplier (q8ta_wgpu/ir/arithmetic.py). It is at most a 64th larger
than the largest magnitude requires, which costs 0.05 dB on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params, four_words
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib import rows

VALUES = Operand("x", dtypes=(FLOAT32, INT16X4))
UP = 32
"""Scales of float32 rows are counted in 2^-UP."""


def _is_float(call: Call) -> bool:
    return call.inputs[0].dtype == FLOAT32


def _infer_scale(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    if not types[0].shape:
        raise GraphError("rows have at least one dimension, found a scalar")
    return (*types[0].shape[:-1], 1), FLOAT32


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    wanted, _ = _infer_scale(types, attrs)
    if types[1].shape != wanted:
        raise GraphError(f"rows of {types[0].shape} have scales of shape {wanted}, found {types[1].shape}")
    return types[0].shape, INT8X4


def _values(call: Call, x: Array) -> Array:
    """The numbers that are multiplied by the inverse of a scale, float32: float32 values with NaN as 0, or int16 steps
    from the zero point."""
    if _is_float(call):
        return np.where(np.isnan(x), np.float32(0), x.astype(np.float32))
    return (x.astype(np.int32) - call.zeros[0]).astype(np.float32)


def _reference_scale(call: Call, arrays: Sequence[Array]) -> Array:
    largest = np.abs(_values(call, arrays[0])).max(-1, keepdims=True)
    if _is_float(call):
        largest = np.minimum(largest, np.float32(2.0**75)) * np.float32(2.0**UP)
    return arithmetic.row_scale(largest)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    inverse = arithmetic.row_inverse(arrays[1]) * np.float32(2.0**UP if _is_float(call) else 1)
    with np.errstate(over="ignore"):
        steps = np.clip(_values(call, arrays[0]) * inverse, np.float32(-127), np.float32(127))
    return np.asarray(np.rint(steps)).astype(np.int8)


def _row_words(call: Call) -> int:
    return -(-dims(call.inputs[0])[3] // 4)


def _lines(call: Call) -> rows.Rows:
    shape = call.inputs[0].shape
    length = shape[-1] if _is_float(call) else _row_words(call)
    return rows.Rows(call.output.numel, length, 1, vectors=shape[-1] if _is_float(call) else 1)


def _vectors(call: Call) -> bool:
    return _is_float(call) and call.inputs[0].shape[-1] % 4 == 0


def _items(call: Call) -> int:
    return _lines(call).length // (4 if _vectors(call) else 1)


def _lanes(call: Call) -> int:
    return rows.lanes(_lines(call), 4 if _vectors(call) else 1)


def _scale_source(call: Call) -> tuple[str, ...]:
    kind = "magnitude_of_word" if not _is_float(call) else f"magnitude_of_{'four' if _vectors(call) else 'float'}"
    dtype = "float" if _is_float(call) else "steps"
    return "by_rows", "row_scale", "rows", "int8_rows", f"magnitude={kind}", f"scaled_magnitude=scaled_{dtype}"


def _zero(call: Call) -> Params:
    return {} if _is_float(call) else {"x_zero": np.int32(call.zeros[0])}


def _scale_params(call: Call) -> Params:
    width = call.inputs[0].shape[-1]
    return {
        "rows": np.uint32(call.output.numel),
        "items": np.uint32(_items(call)),
        "width": np.uint32(width),
        "line": np.uint32(-(-width // 4)),
        **_zero(call),
    }


def _scale_kernel(
    name: str, lanes: Callable[[Call], int], threads: int, preferred: Callable[[Call, Target], bool]
) -> Kernel:
    """The kernel of row_scale in which a team of `lanes` threads computes a row. On CPUs a team of one takes a fifth of
    the time: it needs no barriers."""
    return Kernel(
        name,
        _scale_source,
        (ONLY_4W | FLOAT,),
        FLOAT,
        preferred=preferred,
        turns=lambda call: -(-_items(call) // lanes(call)),
        wide=lambda call: ("x",) if _vectors(call) else (),
        params=_scale_params,
        constants=lambda call: {"THREADS": threads, "LANES": lanes(call)},
        threads=lambda call, layout: (call.output.numel * lanes(call), 1, 1),
        workgroup=(threads, 1, 1),
    )


def _source(call: Call) -> tuple[str, ...]:
    kind = "words" if not _is_float(call) else "vectors" if _vectors(call) else "floats"
    return "quantize_rows", "words", f"values_at=values_of_{kind}"


_SHAPES = ((1, 64), (3, 13), (2, 3, 4, 7), (1, 2, 2, 3, 5), (3, 1040), (5,))

OPS = (
    Op(
        name="row_scale",
        operands=(VALUES,),
        infer=_infer_scale,
        reference=_reference_scale,
        kernels=(
            _scale_kernel("row_scale.alone", lambda call: 1, 64, lambda call, target: not target.shares_memory),
            _scale_kernel("row_scale", _lanes, rows.THREADS, lambda call, target: True),
        ),
        cases=tuple(Case((shape,), {}, "special" if i < 2 else "random") for i, shape in enumerate(_SHAPES)),
        work=lambda call: call.inputs[0].numel,
    ),
    Op(
        name="quantize_rows",
        operands=(VALUES, Operand("scale")),
        infer=_infer,
        reference=_reference,
        kernels=(
            Kernel(
                "quantize_rows",
                _source,
                (ONLY_4W | FLOAT, FLOAT),
                ONLY_4W,
                wide=lambda call: ("x",) if _vectors(call) else (),
                params=lambda call: {"row_words": np.uint32(_row_words(call)), **_zero(call)},
                constants=lambda call: {"UP": UP if _is_float(call) else 0},
                threads=four_words,
            ),
        ),
        cases=tuple(
            Case((shape, (*shape[:-1], 1)), {}, "special" if i < 2 else "random") for i, shape in enumerate(_SHAPES)
        ),
    ),
)
