"""Attributes and operands that all norms have: epsilon, and gamma and beta."""

from __future__ import annotations

from q8ta_wgpu.ir.op import Attr, Operand

EPS = Attr("float", low=0, high=1e6)
AFFINE = (Operand("gamma", constant=True), Operand("beta", constant=True))
