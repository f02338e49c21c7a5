"""prelu. With one slope it is imported as leaky_relu, a table in int8. With a slope for each channel it is a stage of a
chain or of a weighted sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Int8Form, NoInt8Form, PRelu, QuantizedCall
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, reads_same_place
from q8ta_wgpu.kernels.elementwise import chain


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    x, slope = types[0].shape, types[1].shape
    if len(x) < 2 or slope != (x[1],):
        raise GraphError(f"prelu needs one slope for each index of dimension 1 of {x}, found slopes of shape {slope}")
    return x, FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    x, slope = arrays
    per_channel = slope.reshape(-1, *(1 for _ in x.shape[2:]))
    return np.where(x >= 0, x, x * per_channel).astype(np.float32)


def _lower(call: QuantizedCall) -> Int8Form:
    """A chain of one value and the stage `slopes`."""
    x, slopes = call.quantized(), call.constants.get(1)
    if not isinstance(slopes, np.ndarray):
        raise NoInt8Form("its slopes are no float constants")
    fused = replace(call, slopes=slopes)
    return chain.lower(fused, "q8ta_batch_norm", x.scale, x.scale * x.span, (0,), {})


def _params(call: Call) -> Params:
    shape = call.output.shape
    return {"inner": np.uint32(np.prod(shape[2:], dtype=np.int64)), "channels": np.uint32(shape[1])}


OPS = (
    Op(
        name="prelu",
        operands=(Operand("x"), Operand("slope", constant=True)),
        infer=_infer,
        reference=_reference,
        kernels=(Kernel("prelu", ("prelu", "map"), (FLOAT,), FLOAT, params=_params),),
        reads=reads_same_place,
        int8=PRelu(_lower, reads_int16=True, gives_int16=True),
        cases=(
            Case(((2, 5, 3, 7), (5,))),
            Case(((3, 13), (13,))),
            Case(((2, 3, 2, 3, 5), (3,))),
        ),
        tolerance=1e-6,
    ),
)
