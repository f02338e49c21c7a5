"""softmax and log_softmax over one dimension in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array, Call, QParams
from q8ta_wgpu.ir.int8 import Rowwise
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.op import Attr, Case, Op, Operand, reads_beside_dim
from q8ta_wgpu.kernels.lib import rows
from q8ta_wgpu.kernels.norm import q8ta_softmax


def _params(call: Call, item: int) -> Params:
    return {"inner": np.uint32(rows.along(call).inner)}


def _softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True)).astype(np.float32)


def _log_softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(np.float32)


def _op(name: str, log: bool) -> Op:
    return Op(
        name=name,
        operands=(Operand("x"),),
        infer=rows.infer,
        reference=_log_softmax if log else _softmax,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, ("softmax",), ("x", "y"), rows.along, _params, 3, {"LOG": int(log)}),),
        int8=None
        if log
        else Rowwise(q8ta_softmax.lower, QParams(1 / 256, -128), True, reads_int16=True, gives_int16=True),
        cases=(
            Case(((2, 3, 5, 197),), {"dim": 3}),
            Case(((2, 21, 5, 7),), {"dim": 1}),
            Case(((3, 7, 132),), {"dim": 2}),
            Case(((2, 5, 47, 53),), {"dim": 1}),
            Case(((5, 1100),), {"dim": 1}),
            Case(((3, 1),), {"dim": 1}),
            Case(((130, 4),), {"dim": 0}),
            Case(((2, 2, 3, 2, 9),), {"dim": 2}),
            Case(((11,),), {"dim": 0}),
        ),
        tolerance=1e-5,
        reads=reads_beside_dim,
        work=lambda call: 3 * call.output.numel,
    )


OPS = (_op("softmax", log=False), _op("log_softmax", log=True))
