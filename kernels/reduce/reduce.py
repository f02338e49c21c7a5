"""mean, sum, amax and amin over any set of dimensions, with the int8 forms of mean and sum."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, INT16X4, INT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Arithmetic, Int8Form, Monotonic, QuantizedCall
from q8ta_wgpu.ir.kernel import ANY, Kernel, Params
from q8ta_wgpu.ir.layout import Layout, Shape, canonical
from q8ta_wgpu.ir.op import INTEGERS, MOVED, NUMBERS, Attr, Case, Op, Operand, dims
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.pool import average

SCHEMA: Mapping[str, Attr] = {"dims": Attr("ints", low=0, high=7), "keepdim": Attr("bool")}


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, reduced = types[0].shape, attrs["dims"]
    if len(set(reduced)) != len(reduced) or any(d >= len(shape) for d in reduced):
        raise GraphError(f"the dimensions to reduce must be different ones of {shape}, found {tuple(reduced)}")
    lead = set(range(len(shape) - 3))
    if len(shape) > 4 and lead & set(reduced) and not lead <= set(reduced):
        raise GraphError(f"dimensions left of the last three of {shape} are reduced together, found {tuple(reduced)}")
    result = _keepdim_shape(shape, attrs)
    return result if attrs["keepdim"] else tuple(d for i, d in enumerate(result) if i not in reduced), types[0].dtype


def _infer_int8(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    shape, _ = _infer(types, attrs)
    if text := average.too_many(_count(types[0].shape, attrs)):
        raise GraphError(text)
    return shape, INT8X4


def _keepdim_shape(shape: Shape, attrs: Attrs) -> Shape:
    return tuple(1 if i in attrs["dims"] else d for i, d in enumerate(shape))


def _count(shape: Shape, attrs: Attrs) -> int:
    return math.prod(shape[d] for d in attrs["dims"])


def _extents(call: Call) -> share.Extents:
    reduced = canonical(_keepdim_shape(call.inputs[0].shape, call.attrs))
    return tuple(extent if n == 1 else 1 for extent, n in zip(dims(call.inputs[0]), reduced, strict=True))


def _work(call: Call) -> int:
    return call.inputs[0].numel


def _sums(call: Call, x: Array) -> Array:
    return np.asarray(x.sum(tuple(call.attrs["dims"]), keepdims=call.attrs["keepdim"]))


def _divisor(name: str, call: Call) -> int:
    return _count(call.inputs[0].shape, call.attrs) if name.endswith("mean") else 1


def _reduces_images(call: Call, target: Target, keepdim: bool) -> bool:
    rank = len(call.inputs[0].shape)
    images = rank in (3, 4) and tuple(sorted(call.attrs["dims"])) == (rank - 2, rank - 1)
    return images and bool(call.attrs["keepdim"]) == keepdim


def _params(name: str) -> Callable[[Call], Params]:
    def params(call: Call) -> Params:
        divisor = _divisor(name, call)
        fields = {
            "keepdim_dims": canonical(_keepdim_shape(call.inputs[0].shape, call.attrs)),
            "divisor": np.uint32(divisor),
            **average.params(call),
        }
        if "ratio" in call.attrs:
            fields["multiplier"] = np.float32(average.multiplier(call.attrs["ratio"], divisor))
        return fields

    return params


def _extreme_params(call: Call) -> Params:
    return {"keepdim_dims": canonical(_keepdim_shape(call.inputs[0].shape, call.attrs)), "divisor": np.uint32(1)}


def _case(shape: Shape, dims: Shape, keepdim: bool = False, values: str = "random") -> Case:
    return Case((shape,), {"dims": dims, "keepdim": keepdim}, values)


CASES = (
    _case((2, 5, 7, 9), (2, 3), True),
    _case((2, 8, 4, 4), (2, 3), values="ties"),
    _case((3, 5, 6, 7), (1,)),
    _case((3, 5, 6, 7), (0, 2), True),
    _case((5, 4, 3), (2,)),
    _case((13, 7), (0,)),
    _case((2, 3, 5, 7), (0, 1, 2, 3)),
    _case((2, 3, 2, 3, 5), (3, 4)),
    _case((2, 3, 4, 3, 5), (0, 1, 3)),
    _case((1, 6, 11, 3), (2,), values="saturate"),
    _case((257,), (0,)),
    _case((2, 16, 5, 3), (2, 3)),
    _case((1, 30, 3, 7), (2, 3), True),
)


def _sum_like(name: str, overload: str) -> tuple[Op, Op]:
    """The operators of mean or sum: in float32, and in int8. `overload` is aten's with dimensions."""
    params = _params(name)

    def lower(call: QuantizedCall) -> Int8Form:
        count = _count(call.inputs[0].shape, call.attrs)
        return average.lower(call, f"q8ta_{name}", call.attrs, count)

    dtypes = NUMBERS if name == "sum" else (FLOAT32,)

    def reference(call: Call, arrays: Sequence[Array]) -> Array:
        if call.output.dtype == INT32:
            return _sums(call, arrays[0].astype(np.int64)).astype(np.int32)
        return np.asarray(_sums(call, arrays[0].astype(np.float64)) / _divisor(name, call)).astype(np.float32)

    def reference_int8(call: Call, arrays: Sequence[Array]) -> Array:
        sums = _sums(call, arrays[0].astype(np.int64) - call.zeros[0])
        return average.requantize(call, sums, average.multiplier(call.attrs["ratio"], _divisor(name, call)))

    images = tuple(
        average.image_kernel(
            f"q8ta_{name}.image_{layout.short}",
            average.params,
            lambda call: average.multiplier(call.attrs["ratio"], _divisor(name, call)),
            functools.partial(_reduces_images, keepdim=keepdim),
            frozenset({layout}),
        )
        for keepdim, layout in ((True, Layout.PACKED_INT8_4C), (False, Layout.PACKED_INT8_4W))
    )
    return (
        Op(
            name=name,
            operands=(Operand("x", dtypes=dtypes),),
            infer=_infer,
            reference=reference,
            schema=SCHEMA,
            kernels=average.kernels(name, "reduce", params, _extents),
            int8=Arithmetic(lower, reads_int16=True, gives_int16=True),
            cases=CASES,
            tolerance=1e-5,
            work=_work,
        ),
        Op(
            name=f"q8ta_{name}",
            operands=(Operand("x", dtypes=INTEGERS),),
            infer=_infer_int8,
            reference=reference_int8,
            results=(INT16X4,),
            schema={**SCHEMA, **average.RATIO},
            kernels=(*images, *average.kernels(f"q8ta_{name}", "reduce", params, _extents)),
            work=_work,
        ),
    )


def _extreme(name: str, truth: str, function: Callable[..., Array], largest: int) -> Op:
    return Op(
        name=name,
        operands=(Operand("x", dtypes=MOVED),),
        infer=_infer,
        reference=lambda call, arrays: np.asarray(
            function(arrays[0], axis=tuple(call.attrs["dims"]), keepdims=call.attrs["keepdim"])
        ),
        schema=SCHEMA,
        kernels=share.kernels(
            Kernel(
                name,
                ("extreme", "windows", "extremes", "reduce", "map"),
                (ANY,),
                ANY,
                params=_extreme_params,
                constants=lambda call: {"LARGEST": largest},
            ),
            _extents,
            share.pays_for_few(_extents),
        ),
        int8=Monotonic(),
        cases=CASES,
        work=_work,
    )


OPS = (
    *_sum_like("mean", "dim"),
    *_sum_like("sum", "dim_IntList"),
    _extreme("amax", "any", np.max, 1),
    _extreme("amin", "all", np.min, 0),
)
