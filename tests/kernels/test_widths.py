"""What `reads_int16` and `gives_int16` of each operator's kind promise, on all its cases: no device takes part."""

from __future__ import annotations

import pytest

from q8ta_wgpu.ir.graph import FLOAT32
from q8ta_wgpu.ir.int8 import Elementwise
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.passes import run_passes
from testbed import int16_graphs
from tests import oracle
from tests.kernels import test_oracle

NEAR = {"upsample_bilinear": 0.5}
"""Where results are only within a step of exact arithmetic: weights of 18 bits, of differences of up to 2^16 steps."""


@pytest.mark.parametrize("op", int16_graphs.PROMISED, ids=lambda op: op.name)
def test_a_promised_width_has_an_integer_form(op: Op) -> None:
    """No operator is left in float32, and each is exact arithmetic rounded, but for what is near a tie."""
    for name, setting, graph, inputs in int16_graphs.promised(op):
        fused = run_passes(graph)
        assert not fused.notes, (name, fused.notes)
        assert all(fused.types[node.output].dtype != FLOAT32 for node in fused.nodes), (name, fused)
        # remainders are those of float32 numbers, as torch's; results at an asymptote, and whole ones, may all be ties
        tie = 2 * oracle.WIDE if isinstance(op.int8, Elementwise) else NEAR.get(op.name, oracle.WIDE)
        test_oracle.compare(graph, inputs, setting, tie, least=0.3 if tie < 0.5 else -1.0)
