"""The linear algebra of torch, with which weights are rounded and biases corrected."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from q8ta_wgpu.ir.graph import Array, Call
from q8ta_wgpu.quantization.weight_rounding import Algebra, by_reference


def _product(a: Array, b: Array) -> Array:
    return np.asarray(torch.matmul(torch.from_numpy(a), torch.from_numpy(b)).numpy())


def _cholesky(matrices: Array) -> Array:
    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrices)).numpy())


def _sums(call: Call, x: Array, weight: Array) -> Array:
    given, w = torch.from_numpy(x), torch.from_numpy(weight)
    if call.op == "linear":
        return np.asarray(F.linear(given, w).numpy())
    if call.op != "conv2d":
        return by_reference(call, x, weight)
    top, left, bottom, right = call.attrs["padding"]
    around = (top, left)
    if around != (bottom, right):
        given, around = F.pad(given, (left, right, top, bottom)), (0, 0)
    found = F.conv2d(given, w, None, call.attrs["stride"], around, call.attrs["dilation"], call.attrs["groups"])
    return np.asarray(found.numpy())


def _norm(x: Array) -> float:
    return float(torch.linalg.vector_norm(torch.from_numpy(x if x.flags.writeable else x.copy())))


ALGEBRA = Algebra(_product, _cholesky, _sums, _norm)
"""torch's. numpy's threads keep a core busy between products, and on busy cores they make one ten times as slow."""
