"""argmax and argmin over one dimension: int32 indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from q8ta_wgpu.ir.graph import INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.kernel import FLOAT, Kernel, Params
from q8ta_wgpu.ir.layout import Shape, canonical
from q8ta_wgpu.ir.op import NUMBERS, Attr, Builder, Case, Import, Op, Operand
from q8ta_wgpu.kernels.lib import onnx_calls, share
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


def _import(op: str) -> Import:
    """The importer. Without a dimension, the result is the index among all elements."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, dim = args["self"], args["dim"]
        shape = b.type(x).shape
        if dim is None or not shape:
            flat = b.emit("view", (x,), {"shape": (-1,)})
            index = b.emit(op, (flat,), {"dim": 0, "keepdim": False})
            return b.emit("view", (index,), {"shape": (1,) * len(shape)}) if args["keepdim"] and shape else index
        dim %= len(shape)
        if len(shape) > 4 and dim < len(shape) - 3:  # for the kernel the leading dimensions are one
            x = b.emit("permute", (x,), {"dims": (*(d for d in range(len(shape)) if d != dim), dim)})
            y = b.emit(op, (x,), {"dim": len(shape) - 1, "keepdim": False})
            return b.aten("aten.unsqueeze.default", {"self": y, "dim": dim}) if args["keepdim"] else y
        return b.emit(op, (x,), {"dim": dim, "keepdim": bool(args["keepdim"])})

    return rule


def _onnx(op: str) -> Import:
    """The importer of ONNX's ArgMax or ArgMin. For the last of equal elements, x is flipped."""

    def rule(b: Builder, args: Mapping[str, Any]) -> str:
        x, shape = str(args["inputs"][0]), b.type(args["inputs"][0]).shape
        dim, last = onnx_calls.axis(b, args, len(shape)), bool(args.get("select_last_index"))
        if last:
            x = b.aten("aten.flip.default", {"self": x, "dims": [dim]})
        y = str(_import(op)(b, {"self": x, "dim": dim, "keepdim": bool(args["keepdims"])}))
        return b.emit("affine", (y,), {"factor": -1.0, "term": float(shape[dim] - 1)}) if last else y

    return rule


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
        aten={f"aten.{name}.default": _import(name)},
        onnx={f"Arg{name[3:].title()}": _onnx(name)},
        cases=(
            Case(((2, 11, 3, 7),), {"dim": 1, "keepdim": False}),
            Case(((3, 5, 13),), {"dim": 2, "keepdim": True}),
            Case(((257,),), {"dim": 0, "keepdim": False}, "ties"),
            Case(((2, 3, 2, 3, 5),), {"dim": 3, "keepdim": False}),
        ),
        work=lambda call: call.inputs[0].numel,
    )


OPS = (_op("argmax", np.argmax, 1), _op("argmin", np.argmin, 0))
