"""Attributes and operands that all norms have: epsilon, and gamma and beta."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Operand

EPS = Attr("float", low=0, high=1e6)
AFFINE = (Operand("gamma", constant=True), Operand("beta", constant=True))


def gamma_and_beta(b: Builder, args: Mapping[str, Any], shape: Shape) -> tuple[str, str]:
    """The names of gamma and beta of an aten call. Where the module has none, they are ones and zeros of `shape`."""
    gamma = args["weight"] or b.constant(np.ones(shape, np.float32), "gamma")
    return gamma, args["bias"] or b.constant(np.zeros(shape, np.float32), "beta")
