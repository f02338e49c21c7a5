"""argmax and argmin over one dimension: int32 indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import NUMBERS, Attr, Case, Op, Operand
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.reduce.rank import check_dim, ordered


def _keepdim_shape(shape: Shape, attrs: Attrs) -> Shape:
    return tuple(1 if i == attrs["dim"] else d for i, d in enumerate(shape))


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, dim = types[0].shape, attrs["dim"]
    check_dim(shape, dim)
    reduced = _keepdim_shape(shape, attrs)
    return reduced if attrs["keepdim"] else (*shape[:dim], *shape[dim + 1 :]), INT32


def _params(call: Call) -> Params:
    shape = call.inputs[0].shape
    return {
        "keepdim_dims": canonical(_keepdim_shape(shape, call.attrs)),
        "divisor": np.uint32(1),
        "axis": np.uint32(call.attrs["dim"] + 4 - len(shape)),
    }


def _op(name: str, function: Callable[..., Array], largest: int) -> Op:
    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        return np.asarray(function(arrays[0], axis=call.attrs["dim"], keepdims=call.attrs["keepdim"]), np.int32)

    return Op(
        name=name,
        operands=(Operand("x", dtypes=NUMBERS),),
        infer=_infer,
        reference=reference,
        schema={"dim": Attr("int", low=0, high=63), "keepdim": Attr("bool")},
        kernels=share.kernels(
            Kernel(
                name,
                ordered("argmax", "reduce", "map"),
                (FLOAT,),
                FLOAT,
                params=_params,
                constants=lambda call: {"LARGEST": largest},
            ),
            lambda call: (call.inputs[0].shape[call.attrs["dim"]],),
        ),
        cases=(
            Case(((2, 11, 3, 7),), {"dim": 1, "keepdim": False}),
            Case(((3, 5, 13),), {"dim": 2, "keepdim": True}),
            Case(((257,),), {"dim": 0, "keepdim": False}, "ties"),
            Case(((2, 3, 2, 3, 5),), {"dim": 3, "keepdim": False}),
        ),
        work=lambda call: call.inputs[0].numel,
    )


OPS = (_op("argmax", np.argmax, 1), _op("argmin", np.argmin, 0))
