"""layer_norm, group_norm and rms_norm of int8 or int16 values, with an int8 or int16 result. Normalized numbers are
integers (integers.py), which are rounded like the sums of a convolution."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, INT32, RANGES, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, QuantizedCall, ToInt8
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import INTEGERS, WIDE_RANGE, Attr, Op, Operand, extent
from q8ta_wgpu.kernels.epilogue.stage import StageContext
from q8ta_wgpu.kernels.epilogue.stages import Requantize, RequantizeInt16
from q8ta_wgpu.kernels.lib import rows, valid
from q8ta_wgpu.kernels.lib.thresholds import MOST_HELD
from q8ta_wgpu.kernels.norm import integers

LARGEST = {dtype: high - low for dtype, (low, high) in RANGES.items()}
"""The largest magnitude of a difference from the zero point, by dtype."""


def _length(call_shape: Shape, parameters: int, attrs: Attrs) -> int:
    """The number of elements of a row: those of a group, or the number of parameters."""
    if "groups" in attrs:
        return math.prod(call_shape[1:]) // int(attrs["groups"])
    return parameters


def _variance(shape: Shape, parameters: int, attrs: Attrs, dtype: str) -> integers.Variance | None:
    return integers.variance(_length(shape, parameters, attrs), LARGEST[dtype], attrs["eps"])


def lower(call: QuantizedCall, op: str) -> Int8Form:
    """The int8 form of a norm. Its `eps` is in squared steps of x; multiplier and offset are gamma and beta in
    fractions of the result's step, for normalized numbers of NORMAL bits, since how many they have depends on the size
    of x. Raises NoInt8Form where there is none."""
    x, y, gamma, beta = call.quantized(), call.result, call.constants.get(1), call.constants.get(2)
    if not isinstance(gamma, np.ndarray) or (beta is not None and not isinstance(beta, np.ndarray)):
        raise NoInt8Form("its parameters are not float constants")
    shape, attrs = call.inputs[0].shape, {**call.attrs, "eps": call.attrs["eps"] / x.scale**2}
    if "groups" in attrs and len(shape) == 2:
        if attrs.pop("groups") != 1:
            raise NoInt8Form("its groups divide a single dimension")
        op = "q8ta_layer_norm"
    if not attrs["eps"] < 1e30 or _variance(shape, gamma.size, attrs, x.dtype) is None:
        raise NoInt8Form(f"its rows are too long, or its eps too many steps of its scale {x.scale:.3g}, for two words")
    steps = 2.0 ** arithmetic.fraction(y.dtype) / y.scale  # fractions of a result's step for the real value 1
    with np.errstate(over="ignore"):
        multiplier = np.asarray(gamma.astype(np.float64) * steps / 2.0**integers.NORMAL, np.float32)
        offset = np.rint((0.0 if beta is None else beta.astype(np.float64)) * steps + np.zeros(gamma.shape))
    if not (np.isfinite(multiplier).all() and np.isfinite(offset).all()):
        raise NoInt8Form("the ratio of its parameters to its result's scale is not a finite float32")
    if np.abs(offset).max() > arithmetic.OFFSET_LIMIT:
        raise NoInt8Form(f"its beta and its result's scale {y.scale:.3g} are too far apart for int32")
    return Int8Form(op, (0, multiplier, offset.astype(np.int32)), {**attrs, "lo": call.lo, "hi": call.hi})


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, gamma, beta = (t.shape for t in types)
    if "groups" in attrs:
        fits = len(shape) > 2 and shape[1] % attrs["groups"] == 0 and gamma == (shape[1],)
    else:
        fits = 0 < len(gamma) <= len(shape) and shape[len(shape) - len(gamma) :] == gamma
    if not fits or beta != gamma:
        raise GraphError(
            f"an int8 norm of {shape} takes two parameters of one shape: its last dimensions, or in groups its "
            f"channels, a multiple of the groups; found {gamma} and {beta}, and {dict(attrs)}"
        )
    if _variance(shape, math.prod(gamma), attrs, types[0].dtype) is None:
        raise GraphError(f"an int8 norm of {shape} with eps {attrs['eps']:g}: its variance does not fit two words")
    return shape, INT8X4


def _requantize(call: Call) -> tuple[Requantize | RequantizeInt16, StageContext]:
    """The stage that rounds, as in the epilogue of a weighted sum, with its context."""
    stage = RequantizeInt16 if call.output.dtype == INT16X4 else Requantize
    return stage(call.attrs["lo"], call.attrs["hi"]), StageContext(call.q.zero)


def _form(call: Call) -> integers.Variance:
    found = _variance(call.inputs[0].shape, call.inputs[1].numel, call.attrs, call.inputs[0].dtype)
    assert found is not None  # `_infer` checked it
    return found


def _factor(length: int, call: Call) -> np.float32:
    """What multipliers are multiplied by for rows of this length, a power of two."""
    return np.float32(2.0 ** (integers.NORMAL - integers.normal_bits(length, call.output.dtype)))


def _reference(call: Call, arrays: Sequence[Array], centered: bool) -> Array:
    x, multiplier, offset = arrays
    length = _length(x.shape, multiplier.size, call.attrs)
    differences = x.astype(np.int64).reshape(-1, length) - call.zeros[0]
    bits = integers.normal_bits(length, call.output.dtype)
    normal = integers.normalized(differences, _form(call), centered, bits).reshape(x.shape)
    if "groups" in call.attrs:
        multiplier, offset = (a.reshape(-1, *(1,) * (x.ndim - 2)) for a in (multiplier, offset))
    stage, context = _requantize(call)
    return stage.apply(stage.start(normal, multiplier * _factor(length, call), offset), context)


def _rows(call: Call) -> rows.Rows:
    """The rows, with words as elements. A row consists of lines along the last dimension, each padded to whole
    words."""
    shape = call.output.shape
    length = _length(shape, call.inputs[1].numel, call.attrs)
    return rows.Rows(call.output.numel // length, length // shape[-1] * -(-shape[-1] // 4), inner=1, vectors=1)


def _params(call: Call) -> Params:
    stage, context = _requantize(call)
    shape, form = call.output.shape, _form(call)
    groups, length = call.attrs.get("groups", 1), _length(shape, call.inputs[1].numel, call.attrs)
    return {
        **stage.fields(context),
        "x_zero": np.int32(call.zeros[0]),
        "length": np.uint32(length),
        "fraction": np.uint32(form.fraction),
        "dropped": np.uint32(form.dropped),
        "normal_bits": np.uint32(integers.normal_bits(length, call.output.dtype)),
        "factor": _factor(length, call),
        "epsilon_low": np.uint32(form.epsilon & 0xFFFFFFFF),
        "epsilon_high": np.uint32(form.epsilon >> 32),
        "groups": np.uint32(groups),
        "per_group": np.uint32(shape[1] // groups if len(shape) > 1 else 1),
        "channel_words": np.uint32(math.prod(shape[2:-1]) * -(-shape[-1] // 4)),
    }


def _held(call: Call) -> int:
    """The number of words of a row that each thread computes."""
    found = _rows(call)
    return -(-found.length // rows.lanes(found, 1))


_SQUARES = {INT8X4: "squares_int8", INT16X4: "squares_int16"}


def _op(name: str, of_channels: bool = False, centered: bool = True) -> Op:
    moments = "moments=centered" if centered else "moments=plain"
    groups = {"groups": extent()} if of_channels else {}
    kernel = rows.int8_kernel(f"q8ta_{name}", ("q8ta_norm", moments), _rows, _params, 2)
    stems = kernel.source
    assert isinstance(stems, tuple)

    def whole_words(call: Call) -> bool:
        return not of_channels and call.output.shape[-1] % 4 == 0

    def source(call: Call) -> tuple[str, ...]:
        affine = "of_channel" if of_channels else "of_words" if whole_words(call) else "of_elements"
        row = "held_row" if _held(call) <= MOST_HELD else "streamed_row"
        length = "q8ta_norm_long" if _form(call).dropped else "q8ta_norm_short"
        squares = f"squares={_SQUARES[call.inputs[0].dtype]}"
        return (*stems, length, squares, f"affine_of={affine}", f"take_row={row}")

    def constants(call: Call) -> dict[str, int]:
        held = {"HELD": _held(call)} if _held(call) <= MOST_HELD else {}
        return {**kernel.constants(call), **held, "ROUNDED": arithmetic.fraction(call.output.dtype)}

    def wide(call: Call) -> tuple[str, ...]:
        return ("multiplier", "offset") if whole_words(call) else ()

    return Op(
        name=f"q8ta_{name}",
        operands=(
            Operand("x", dtypes=INTEGERS),
            Operand("multiplier", constant=True, valid=valid.finite(1)),
            Operand("offset", constant=True, dtypes=(INT32,), valid=valid.within(2, arithmetic.OFFSET_LIMIT)),
        ),
        infer=_infer,
        results=(INT16X4,),
        reference=functools.partial(_reference, centered=centered),
        schema={**WIDE_RANGE, "eps": Attr("float", low=0, high=1e30), **groups},
        kernels=(replace(kernel, source=source, wide=wide, constants=constants),),
        work=lambda call: 2 * call.output.numel,
    )


def lowering(name: str) -> ToInt8:
    """`lower` for the float operator `name`."""
    return functools.partial(lower, op=f"q8ta_{name}")


OPS = (_op("layer_norm"), _op("group_norm", of_channels=True), _op("rms_norm", centered=False))
