"""Kernels of two packed values, int8 or int16: by whole words where that is possible, else element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import INT8X4, Call
from q8ta_wgpu.ir.kernel import ONLY_4W, Kernel, Params, eight_words, four_words, no_params
from q8ta_wgpu.ir.layout import ANY_INT8
from q8ta_wgpu.ir.op import INTEGERS, Operand

INT8_PAIR = (Operand("a", dtypes=(INT8X4,)), Operand("b", dtypes=(INT8X4,)))

INTEGER_PAIR = (Operand("a", dtypes=INTEGERS), Operand("b", dtypes=INTEGERS))


def pair_fields(call: Call) -> Params:
    """The uniform fields of the zero points of two operands, and of what the result is stored with."""
    zeros = {f"{name}_zero": np.int32(zero) for name, zero in zip("ab", call.zeros, strict=False)}
    return {**arithmetic.stored_fields(call), **zeros}


def packed_kernels(
    name: str,
    *files: str,
    params: Callable[[Call], Params] = no_params,
    constants: Callable[[Call], Mapping[str, int]] = lambda call: {},
) -> tuple[Kernel, ...]:
    """Kernels of an operator on two packed values: by whole words where all shapes are the same, else by elements."""
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


def _line(call: Call) -> int | None:
    """Which operand is one line that every line of the result takes, as a bias is; None where neither is."""
    shape = call.output.shape
    for at, (line, whole) in enumerate((call.inputs, call.inputs[::-1])):
        if whole.shape == shape and line.shape[-1:] == shape[-1:] == (line.numel,) and line.numel < whole.numel:
            return at
    return None


def line_kernel(name: str, params: Callable[[Call], Params]) -> Kernel:
    """By whole words where an operand is one line."""
    return Kernel(
        f"{name}.line",
        lambda call: (
            "line",
            "binary_packed",
            f"apply={name}",
            "words",
            *(() if _line(call) else ("load=load_line_first",)),
        ),
        (ONLY_4W,),
        ONLY_4W,
        supports=lambda call, target: _line(call) is not None,
        params=lambda call: {**params(call), "line": np.uint32(-(-call.output.shape[-1] // 4))},
        threads=four_words,
    )
