"""softmax and log_softmax over one dimension, in float32."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Case, Import, Op, Operand, reads_same_place
from q8ta_wgpu.kernels.lib import rows


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    if attrs["dim"] >= len(shape):
        raise GraphError(f"softmax over dimension {attrs['dim']} of {shape}")
    return shape, FLOAT32


def _rows(call: Call) -> rows.Rows:
    shape, dim = call.output.shape, call.attrs["dim"]
    inner = math.prod(shape[dim + 1 :])
    return rows.Rows(call.output.numel // shape[dim], shape[dim], inner, vectors=shape[dim] if inner == 1 else 1)


def _params(call: Call, item: int) -> Params:
    return {"inner": np.uint32(_rows(call).inner)}


def _reads(call: Call, axis: int, first: int, last: int) -> tuple[int, int] | None:
    return None if call.attrs["dim"] == axis else reads_same_place(call, axis, first, last)


def _softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True)).astype(np.float32)


def _log_softmax(call: Call, arrays: Sequence[Array]) -> Array:
    x, axis = arrays[0].astype(np.float64), call.attrs["dim"]
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))).astype(np.float32)


def _import(op: str) -> Import:
    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        if str(args.get("dtype") or "torch.float32") != "torch.float32" or args.get("half_to_float"):
            raise b.refuse("its result must be float32")
        shape = b.type(args["self"]).shape
        if not shape:
            raise b.refuse("it takes a tensor of at least one dimension, found a scalar")
        return b.emit(op, (args["self"],), {"dim": args["dim"] % len(shape)})

    return rule


def _op(name: str, log: bool) -> Op:
    return Op(
        name=name,
        operands=(Operand("x"),),
        infer=_infer,
        reference=_log_softmax if log else _softmax,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel(name, ("softmax",), ("x", "y"), _rows, _params, 3, {"LOG": int(log)}),),
        aten={f"aten.{name}.int": _import(name), f"aten._{name}.default": _import(name)},
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
        reads=_reads,
        work=lambda call: 3 * call.output.numel,
    )


OPS = (_op("softmax", log=False), _op("log_softmax", log=True))
