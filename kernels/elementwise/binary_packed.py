"""Kernels of two int8 or int16 values: by whole words where that is possible, else element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.kernel import Kernel, Params, eight_words, no_params
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import INTEGERS, Operand

INT8_PAIR = (Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,)))

INTEGER_PAIR = (Operand("a", dtypes=INTEGERS), Operand("b", dtypes=INTEGERS))


def pair_fields(call: Call) -> Params:
    """Uniform fields: the zero points of two operands, and the result's zero point and range."""
    zeros = {f"{name}_zero": np.int32(zero) for name, zero in zip("ab", call.zeros, strict=False)}
    return {**arithmetic.stored_fields(call), **zeros}


def packed_kernels(
    name: str,
    *files: str,
    params: Callable[[Call], Params] = no_params,
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
) -> tuple[Kernel, ...]:
    """The kernels of an operator on two packed values: by whole words where all shapes are equal, and by elements.

    Args:
        name: of the operator, and of the WGSL function of two elements.
        files: WGSL that defines this function.
        params: uniform fields.
        constants: WGSL constants.
    """
    files = ("binary_packed", *files, f"apply={name}")
    return (
        Kernel(
            name,
            (*files, "words"),
            (ANY_INT8,),
            ANY_INT8,
            synced=True,
            threads=eight_words,
            supports=lambda call, target: call.inputs[0].shape == call.inputs[1].shape == call.output.shape,
            params=params,
            constants=constants,
        ),
        Kernel(f"{name}.broadcast", (*files, "map"), (ANY_INT8,), ANY_INT8, params=params, constants=constants),
    )
