"""rotary: rotary position embeddings (Su et al. 2021, arXiv:2104.09864). Pairs of elements of the last dimension are
rotated by angles, whose cosines and sines are operands.

Networks write it as products, slices and a cat; passes/plan/match_rotary.py finds it. In int8 it is a sum of two terms
as in q16ta_add, rounded once. If the result is written into a state, it is lowered to `q8ta_rotary_update`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, NoInt8Form, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, ONLY_4W, Kernel, Params
from q8ta_wgpu.ir.layout import ANY_INT8, Layout, Shape, word_count
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Case, Op, Operand, dims
from q8ta_wgpu.kernels.elementwise import chain
from q8ta_wgpu.kernels.move import update

_NAMES = ("x", "cos", "sin")

WORD = 4
"""Elements in a word."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, *angles = (t.shape for t in types)
    if not x or x[-1] % 2:
        raise GraphError(f"rotary rotates pairs of the last dimension, found shape {x}")
    for shape in angles:
        fits = len(shape) <= len(x) and shape[-1:] in ((x[-1],), (x[-1] // 2,))
        lead = shape[:-1] if fits else ()
        if not fits or any(n not in (1, m) for n, m in zip(lead[::-1], x[-2::-1], strict=False)):
            raise GraphError(f"rotary of {x} takes cosines and sines of as many angles, or half as many, found {shape}")
        if len(x) > 4 and shape[:-3] != x[:-3]:
            raise GraphError(f"rotary of {x}: angles of shape {shape} broadcast left of the last three dimensions")
    return x, FLOAT32


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    for angles in types[1:]:
        chain.check_product((types[0], angles))
    return _infer(types, attrs)[0], INT16X4


def _angles(array: Array, width: int, pairs: bool) -> Array:
    """Cosines or sines with one for each element of a row, from those for each pair or for each element."""
    if array.shape[-1] == width:
        return array
    return np.repeat(array, 2, axis=-1) if pairs else np.concatenate([array, array], -1)


def _terms(call: Call, arrays: Sequence[Array]) -> tuple[Array, Array]:
    """x * cos and x' * sin, where x' has the other element of each pair: the second one negated, then the first one."""
    x, pairs = arrays[0], call.attrs["pairs"]
    cos, sin = (_angles(array, x.shape[-1], pairs) for array in arrays[1:])
    split = x.reshape(*x.shape[:-1], *((-1, 2) if pairs else (2, -1)))
    first, second = (split[..., 0], split[..., 1]) if pairs else (split[..., 0, :], split[..., 1, :])
    swapped = np.stack([-second, first], axis=-1 if pairs else -2).reshape(x.shape)
    return x * cos, swapped * sin


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = _terms(call, [array.astype(np.float64) for array in arrays])
    return np.asarray(a + b).astype(np.float32)


def _reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
    steps = [x.astype(np.int64) - zero for x, zero in zip(arrays, call.zeros, strict=True)]
    a, b = (
        arithmetic.scaled_term(product, call.attrs[f"{name}_multiplier"])
        for name, product in zip(_NAMES[1:], _terms(call, steps), strict=True)
    )
    return arithmetic.stored(call, arithmetic.rte(a + b, arithmetic.fraction(call.q.dtype)))


def _rows(call: Call) -> Call:
    """The call of q8ta_rotary that computes the rows which an update writes."""
    return replace(call, inputs=call.inputs[:3], output=replace(call.output, shape=call.inputs[0].shape))


def _infer_update(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    rows, indices = replace(types[0], shape=_infer_int8(types[:3], attrs)[0]), types[3]
    return update.infer_rows((rows, indices), attrs)[0], INT16X4


def _reference_update(call: Call, arrays: Sequence[Array]) -> Array:
    *operands, indices = arrays
    return update.written_rows(call, _reference_int8(_rows(call), operands), indices)


def _lower(call: QuantizedCall) -> Int8Form:
    x, cos, sin = map(call.quantized, range(3))
    out = call.result
    steps = x.scale * 2.0 ** arithmetic.fraction(out.dtype) / out.scale
    factors = [float(np.float32(angles.scale * steps)) for angles in (cos, sin)]
    if not arithmetic.terms_fit(*(x.span * q.span * f for q, f in zip((cos, sin), factors, strict=True))):
        raise NoInt8Form(f"its scales {x.scale:.3g} and {out.scale:.3g} are too far apart for int32")
    attrs = {"cos_multiplier": factors[0], "sin_multiplier": factors[1], "lo": call.lo, "hi": call.hi}
    return Int8Form("q8ta_rotary", (0, 1, 2), {**call.attrs, **attrs})


def _float_params(call: Call) -> Params:
    return {"pairs": np.uint32(call.attrs["pairs"])}


def _params(call: Call) -> Params:
    zeros = {f"{name}_zero": np.int32(zero) for name, zero in zip(_NAMES, call.zeros, strict=True)}
    factors = {name: np.float32(call.attrs[name]) for name in ("cos_multiplier", "sin_multiplier")}
    shift = {"shift": np.uint32(arithmetic.fraction(call.q.dtype))}
    return {**arithmetic.stored_fields(call), **_float_params(call), **zeros, **factors, **shift}


def _by_words(call: Call) -> bool:
    """Whether the partners of a word's elements are a whole word, or the word itself, and its angles are words."""
    widths = [t.shape[-1] for t in call.inputs[:3]]
    if call.attrs["pairs"]:
        return len(set(widths)) == 1 and widths[0] % WORD == 0
    return widths[0] % (2 * WORD) == 0


def _update_source(call: Call) -> tuple[str, ...]:
    by = "words" if _by_words(call) else "elements"
    return *update.OF_WORDS, "rotary", "row_word=rotated_word", f"rotated=rotated_by_{by}"


def _items(call: Call) -> int:
    return word_count(call.inputs[0].shape, Layout.PACKED_INT8_4W)


def _update_params(call: Call) -> Params:
    fields = {**update.index_params(call), "items": np.uint32(_items(call)), "rows_dims": dims(call.inputs[0])}
    return {**_params(_rows(call)), **fields}


_FACTOR = Attr("float", low=0, high=3.4e38)
_SCHEMA = {"pairs": Attr("bool")}
_INT8_SCHEMA = {**_SCHEMA, **WIDE_RANGE, "cos_multiplier": _FACTOR, "sin_multiplier": _FACTOR}
_INT8_OPERANDS = tuple(Operand(name, dtypes=INTEGERS) for name in _NAMES)

OPS = (
    Op(
        name="rotary",
        operands=tuple(map(Operand, _NAMES)),
        infer=_infer,
        reference=_reference,
        schema=_SCHEMA,
        kernels=(Kernel("rotary", ("rotary", "map", "compute=rotary"), (FLOAT,), FLOAT, params=_float_params),),
        int8=Arithmetic(_lower, reads_int16=True, gives_int16=True, fine=(1, 2)),
        cases=(
            Case(((1, 3, 5, 8), (5, 8), (5, 8)), {"pairs": False}),
            Case(((2, 3, 5, 6), (2, 1, 5, 3), (5, 6)), {"pairs": False}),
            Case(((1, 3, 5, 14), (5, 7), (1, 14)), {"pairs": True}),
            Case(((3, 5, 12), (5, 12), (1, 12)), {"pairs": True}),
            Case(((1, 2, 3, 16), (3, 8), (3, 16)), {"pairs": False}),
            Case(((2, 7, 10), (7, 5), (7, 5)), {"pairs": True}, "ties"),
            Case(((2, 3, 2, 5, 4), (2, 3, 1, 5, 4), (2, 3, 2, 1, 2)), {"pairs": False}, "saturate"),
        ),
        tolerance=1e-5,
    ),
    Op(
        name="q8ta_rotary",
        operands=_INT8_OPERANDS,
        infer=_infer_int8,
        results=(INT8X4,),
        reference=_reference_int8,
        schema=_INT8_SCHEMA,
        kernels=(
            Kernel(
                "q8ta_rotary.words",
                ("rotary_words", "rotary"),
                (ONLY_4W,),
                ONLY_4W,
                supports=lambda call, target: _by_words(call),
                params=_params,
            ),
            Kernel("q8ta_rotary", ("rotary", "map", "compute=q8ta_rotated"), (ANY_INT8,), ANY_INT8, params=_params),
        ),
    ),
    Op(
        name="q8ta_rotary_update",
        operands=(*_INT8_OPERANDS, Operand("indices", real=True)),
        infer=_infer_update,
        results=(INT8X4,),
        reference=_reference_update,
        schema={**_INT8_SCHEMA, **update.ROWS_SCHEMA},
        kernels=(
            Kernel(
                "q8ta_rotary_update",
                _update_source,
                (ONLY_4W, ONLY_4W, ONLY_4W, FLOAT),
                ONLY_4W,
                turns=update.row_turns,
                params=_update_params,
                threads=lambda call, layout: (_items(call), 1, 1),
            ),
        ),
        work=lambda call: _items(call) * call.inputs[-1].numel,
    ),
)
