"""batch_norm at inference: a factor and a term for each channel. In int8 it is a chain, in which the operators after it
may be fused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, Normalization, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, reads_same_place
from q8ta_wgpu.kernels.elementwise import chain
from q8ta_wgpu.kernels.norm.norm import AFFINE, EPS


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    if len(shape) < 2 or any(t.shape != (shape[1],) for t in types[1:]):
        found = ", ".join(str(t.shape) for t in types[1:])
        raise GraphError(f"batch_norm of {shape}: dimension 1 holds the channels, found per-channel operands {found}")
    return shape, FLOAT32


def _factor_and_term(parameters: Sequence[Array], attrs: Attrs) -> tuple[Array, Array]:
    """(factor, term) of each channel, float64, with batch_norm(x) = x * factor + term. `parameters` are gamma, beta,
    mean and variance."""
    gamma, beta, mean, variance = (a.astype(np.float64) for a in parameters)
    with np.errstate(all="ignore"):
        factor = gamma / np.sqrt(variance + attrs["eps"])
        return np.asarray(factor), np.asarray(beta - mean * factor)


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    per_channel = (-1,) + (1,) * (arrays[0].ndim - 2)
    x, gamma, beta, mean, variance = (a.astype(np.float64) for a in arrays)
    factor = gamma / np.sqrt(variance + call.attrs["eps"])
    return np.asarray((x - mean.reshape(per_channel)) * factor.reshape(per_channel) + beta.reshape(per_channel)).astype(
        np.float32
    )


def _channel_params(call: Call) -> dict[str, Any]:
    shape = call.output.shape
    return {"channels": np.uint32(shape[1]), "inner": np.uint32(math.prod(shape[2:]))}


def _params(call: Call) -> Params:
    return {**_channel_params(call), "eps": np.float32(call.attrs["eps"])}


def _lower(call: QuantizedCall) -> Int8Form:
    """A chain that begins with x. The factor of a channel is included in its multiplier."""
    x = call.q[0]
    parameters = [a for a in (call.constants.get(i) for i in range(1, 5)) if isinstance(a, np.ndarray)]
    if len(parameters) < 4:
        raise NoInt8Form("its parameters are not float constants")
    affine = _factor_and_term(parameters, call.attrs)
    if x is None:
        return chain.lower_float(replace(call, affine=affine), "q8ta_quantize_channels")
    return chain.lower(replace(call, affine=affine), "q8ta_batch_norm", x.scale, x.scale * x.span, (0,), {})


def _valid_variance(call: Call, arrays: Sequence[Array | None]) -> str:
    assert arrays[4] is not None
    bad = arrays[4][~(arrays[4] >= 0)]
    return f"must not be negative, found {bad[0]}" if bad.size else ""


VARIANCE = Operand("variance", constant=True, valid=_valid_variance)


def _case(shape: Shape, values: str = "random") -> Case:
    return Case((shape, *((shape[1],),) * 4), {"eps": 1e-5}, values)


batch_norm = Op(
    name="batch_norm",
    operands=(Operand("x"), *AFFINE, Operand("mean", constant=True), VARIANCE),
    infer=_infer,
    reference=_reference,
    schema={"eps": EPS},
    kernels=(Kernel("batch_norm", ("batch_norm", "map", "compute=batch_norm"), (FLOAT,), FLOAT, params=_params),),
    int8=Normalization(_lower, _factor_and_term, reads_int16=True, gives_int16=True, reads_float32=True),
    reads=reads_same_place,
    cases=(
        _case((2, 5, 3, 7)),
        _case((3, 8)),
        _case((2, 6, 11), "saturate"),
        _case((2, 3, 2, 3, 5)),
        _case((1, 17, 4, 4), "ties"),
    ),
    tolerance=1e-5,
)
