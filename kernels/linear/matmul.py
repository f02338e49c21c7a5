"""matmul of two activations, and the import of scaled_dot_product_attention as several operators.

A product with a constant matrix is imported as `linear` (kernels/linear/linear.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from q8ta_wgpu.ir.graph import FLOAT32, Array, Attrs, Call, TensorType
from q8ta_wgpu.ir.int8 import Product
from q8ta_wgpu.ir.kernel import FLOAT, Kernel
from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Case, Op, Operand, dims
from q8ta_wgpu.kernels.lib import share
from q8ta_wgpu.kernels.linear import q8ta_matmul
from q8ta_wgpu.kernels.product import sgemm


def _infer(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[Shape, str]:
    return q8ta_matmul.product_shape(types[0].shape, types[1].shape, transposed=False), FLOAT32


def _reference(call: Call, arrays: Sequence[Array]) -> Array:
    a, b = (x.astype(np.float64) for x in arrays)
    return np.asarray(a @ b).astype(np.float32)


def _sizes(call: Call) -> sgemm.Sizes:
    n, c, rows, columns = dims(call.output)
    return sgemm.Sizes(n * c, rows, columns, call.inputs[0].shape[-1])


OPS = (
    Op(
        name="matmul",
        operands=(Operand("a"), Operand("b")),
        infer=_infer,
        reference=_reference,
        macs=q8ta_matmul.macs,
        kernels=(
            *sgemm.kernels(sgemm.Product("matmul", "matmul", ("a", "b", "y"), _sizes)),
            *share.kernels(
                Kernel("matmul", ("matmul", "map"), (FLOAT,), FLOAT), lambda call: call.inputs[0].shape[-1:]
            ),
        ),
        int8=Product(q8ta_matmul.lower, reads_int16=True, gives_int16=True),
        cases=(
            Case(((5, 7), (7, 3))),
            Case(((2, 3, 17, 48), (2, 3, 48, 17))),
            Case(((3, 4, 5), (5, 6))),
            Case(((2, 1, 5, 4), (3, 4, 7))),
            Case(((1, 6), (2, 3, 6, 2))),
            Case(((2, 2, 3, 4, 5), (2, 2, 1, 5, 3))),
            Case(((11, 300), (300, 2))),
            Case(((2, 1, 69, 36), (3, 36, 132))),
            Case(((2, 66, 131), (131, 65))),
            Case(((1, 1), (1, 1))),
        ),
        tolerance=1e-5,
        work=q8ta_matmul.macs,
    ),
)
