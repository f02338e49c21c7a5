"""cumsum: running sums along a dimension, in float32, by teams of threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import Params
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Case, Op, Operand, reads_beside_dim
from q8ta_wgpu.kernels.lib import rows

TURNS = 12
"""Turns of a thread for each of its items, at most: a step for each doubling of 256 threads, and some."""


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape = types[0].shape
    if attrs["dim"] >= len(shape):
        raise GraphError(f"running sums along dimension {attrs['dim']} of {shape}")
    return shape, FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    return np.cumsum(arrays[0], call.attrs["dim"], np.float64).astype(np.float32)


def _rows(call: Call) -> rows.Rows:
    shape, dim = call.output.shape, call.attrs["dim"]
    return rows.Rows(call.output.numel // shape[dim], shape[dim], math.prod(shape[dim + 1 :]), vectors=1)


def _params(call: Call, item: int) -> Params:
    return {"inner": np.uint32(_rows(call).inner)}


def _import(b: Builder, args: Mapping[str, Any]) -> str:
    if str(args["dtype"] or "torch.float32").removeprefix("torch.") not in ("float32", "int64", "int32"):
        raise b.refuse(f"its result must be float32 or integers, found {args['dtype']}")
    rank = len(b.type(args["self"]).shape)
    return b.emit("cumsum", (args["self"],), {"dim": args["dim"] % rank}) if rank else str(args["self"])


OPS = (
    Op(
        name="cumsum",
        operands=(Operand("x"),),
        infer=_infer,
        reference=_reference,
        schema={"dim": Attr("int", low=0, high=7)},
        kernels=(rows.kernel("cumsum", ("cumsum",), (), _rows, _params, TURNS),),
        aten={"aten.cumsum.default": _import},
        cases=(
            Case(((3, 1100),), {"dim": 1}),
            Case(((2, 21, 5, 7),), {"dim": 1}),
            Case(((2, 2, 3, 2, 9),), {"dim": 2}),
            Case(((13,),), {"dim": 0}),
        ),
        tolerance=1e-5,
        reads=reads_beside_dim,
        work=lambda call: TURNS * call.output.numel,
    ),
)
