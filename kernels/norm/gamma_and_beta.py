"""What norms have in common: epsilon, and the factor and the term of each channel or element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from q8ta_wgpu.ir.layout import Shape
from q8ta_wgpu.ir.op import Attr, Builder, Operand

EPS = Attr("float", low=0, high=1e6)
AFFINE = (Operand("gamma", constant=True), Operand("beta", constant=True))


def gamma_and_beta(b: Builder, args: Mapping[str, Any], shape: Shape) -> tuple[str, str]:
    """The constants of a call; ones and zeros where the module has none."""
    gamma = args["weight"] or b.constant(np.ones(shape, np.float32), "gamma")
    return gamma, args["bias"] or b.constant(np.zeros(shape, np.float32), "beta")
