"""MatMulNBits, of com.microsoft: a linear whose weight has 4 bits and a scale, and a zero point, for each block of
inputs of each output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir.arithmetic import GROUPS
from q8ta_wgpu.ir.bits import largest_factor
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.onnx_import.onnx_builder import OnnxBuilder

_INT8 = 4
"""accuracy_level of a file whose activations may be rounded to int8."""


def matmul(b: OnnxBuilder, args: Mapping[str, Any]) -> str:
    """Imports MatMulNBits: with accuracy_level 4 and blocks of at least 32 as a linear of int8 rows with weights of 4
    bits, else as a float32 linear."""
    x, *names = (*args["inputs"], None, None, None, None)[:6]
    weight, scales, zeros, indices, bias = (None if name is None else b.array(name) for name in names)
    if (
        weight is None
        or scales is None
        or any(a is None for a, n in zip((zeros, bias), (names[2], names[4]), strict=True) if n)
    ):
        raise b.refuse("its weight, scales, zero points and bias must be constants")
    if indices is not None or names[3]:
        raise b.refuse("its g_idx is not supported: quantize without the order of activations (act_order)")
    bits, depth, outputs, block = (int(args.get(name, 4)) for name in ("bits", "K", "N", "block_size"))
    if bits != 4 or block < 16 or block & (block - 1):
        raise b.refuse(
            f"weights of 4 bits in blocks of 16, 32, 64 ... are supported, found {bits} in blocks of {block}"
        )
    blocks = -(-depth // block)
    if weight.size != outputs * blocks * block // 2 or scales.size != outputs * blocks or weight.dtype != np.uint8:
        raise b.refuse(f"its weight {weight.shape} and scales {scales.shape} are not those of {outputs} x {depth}")
    steps = _nibbles(weight.reshape(outputs, -1))[:, :depth] - 8
    scale = scales.reshape(outputs, blocks).astype(np.float32)
    less = _zeros(b, zeros, outputs, blocks) - 8
    term = b.constant(np.zeros(outputs, np.float32) if bias is None else bias.astype(np.float32), "bias")
    if int(args.get("accuracy_level", 0)) != _INT8 or block < GROUPS[0]:
        whole = (steps - np.repeat(less, block, 1)[:, :depth]) * np.repeat(scale, block, 1)[:, :depth]
        return b.emit("linear", (x, b.constant(whole.astype(np.float32), "weight"), term))
    rows = b.rounded_rows(x)
    y = b.emit("linear", (rows, _weight(b, steps, scale, block), term))
    if not less.any():
        return y
    return b.emit("add", (y, _of_zeros(b, rows, -less * scale, block)), {"alpha": 1.0})


def _nibbles(packed: Array) -> Array:
    """Unpacks numbers of 4 bits, the first from the low bits of a byte."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.int32)


def _zeros(b: OnnxBuilder, zeros: Array | None, outputs: int, blocks: int) -> Array:
    """The zero point of each block, 0 to 15."""
    if zeros is None:
        return np.full((outputs, blocks), 8)
    packed = zeros.dtype == np.uint8
    if zeros.size != outputs * (-(-blocks // 2) if packed else blocks):
        raise b.refuse(f"its zero points {zeros.shape} are not those of {outputs} outputs and {blocks} blocks")
    return _nibbles(zeros.reshape(outputs, -1))[:, :blocks] if packed else zeros.reshape(outputs, blocks)


def _weight(b: OnnxBuilder, steps: Array, scale: Array, block: int) -> str:
    """A weight as int16 with one scale per output: the steps times an integer factor for each block, which stands for
    the block's scale."""
    most = largest_factor(steps.shape[1])
    output_scale = np.maximum(np.abs(scale).max(1) / most, np.float32(2.0**-126)).astype(np.float32)
    factors = np.rint(scale / output_scale[:, None])
    factors = np.where(factors == 0, 1, factors).astype(np.int32)
    values = steps * np.repeat(factors, block, 1)[:, : steps.shape[1]]
    return b.weight(values.astype(np.int16), output_scale, np.zeros(len(output_scale)))


def _of_zeros(b: OnnxBuilder, x: str, terms: Array, block: int) -> str:
    """The contribution of zero points other than 8: for each block the sum of its inputs, times a term per output."""
    shape, missing = b.type(x).shape, -b.type(x).shape[-1] % block
    if missing:
        x = b.aten("aten.constant_pad_nd.default", {"self": x, "pad": [0, missing], "value": 0.0})
    split = b.emit("view", (x,), {"shape": (*shape[:-1], terms.shape[1], block)})
    sums = b.aten("aten.sum.dim_IntList", {"self": split, "dim": [-1], "keepdim": False, "dtype": None})
    none = b.constant(np.zeros(len(terms), np.float32), "bias")
    return b.emit("linear", (sums, b.constant(terms.astype(np.float32), "terms"), none))
