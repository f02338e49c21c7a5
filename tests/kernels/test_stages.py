"""Stages of epilogues: which may follow each other, and which an operator's kernels give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import FLOAT32, INT8X4, QParams, TensorType
from q8ta_wgpu.ir.op import Operand
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.epilogue.epilogue import Epilogue
from q8ta_wgpu.kernels.epilogue.stage import Phase, Stage
from q8ta_wgpu.kernels.epilogue.stages import Dequantize, PixelShuffle, Requantize, RequantizeInt16, Scale, Table
from q8ta_wgpu.kernels.epilogue.stages_before_rounding import Curve, Residual, Rows, ScaledResidual, Slopes
from q8ta_wgpu.program.wgsl_definitions import scan
from testbed.graphs import conv, linear, product

ROUND, WIDE = Requantize(-128, 127), RequantizeInt16(-32768, 32767)
REAL = Dequantize(5, 0.5)

IMPOSSIBLE: tuple[tuple[tuple[Stage, ...], str], ...] = (
    ((), "and a rounding"),
    ((Residual(1),), "and a rounding"),
    ((ROUND, Residual(1)), "in this order"),
    ((ROUND, WIDE), "at most one"),
    ((Curve(False), Slopes(), ROUND), "at most one"),
    ((Residual(1), Scale()), "scale before any that changes the sum"),
    ((Scale(), REAL), "a rounding to int8 with dequantize"),
    ((Residual(1), WIDE), "a rounding to int8 with residual"),
    ((WIDE, Table(0)), "a rounding to int8 with table"),
    ((ROUND, PixelShuffle(2)), "a float32 result"),
    ((Rows(), Residual(1), Curve(False), ROUND), "eight buffers"),
)


@pytest.mark.parametrize(
    ("stages", "said"), IMPOSSIBLE, ids=lambda value: None if isinstance(value, str) else len(value)
)
def test_an_impossible_order_is_told(stages: tuple[Stage, ...], said: str) -> None:
    with pytest.raises(GraphError, match=f"an epilogue's stages are .*{said}"):
        Epilogue(stages)


def checked(graph: Any, op: str, stages: tuple[Stage, ...], *others: TensorType) -> None:
    call = graph.call(graph.nodes[0])
    OPS[op].check((*call.inputs, *others), {**call.attrs, "epilogue": Epilogue(stages)})


def test_an_operator_refuses_stages_that_its_kernels_do_not_give() -> None:
    """Each of these linked, and computed something else than the reference, or was naga's error."""
    image, rows = conv((1, 8, 4, 4), 16, 1), linear(3, 16, 16)
    scales = TensorType((1, 16, 4, 1), FLOAT32)
    with pytest.raises(GraphError, match=r"takes stages of addend, .*found rows"):
        checked(image, "q8ta_conv2d", (Rows(), ROUND), scales)
    with pytest.raises(GraphError, match=r"takes stages of rows, .*found requantize.*pixel_shuffle"):
        checked(rows, "q8ta_linear", (ROUND, PixelShuffle(2), REAL))
    with pytest.raises(GraphError, match="takes stages of rounding, int8, real, found slopes"):
        checked(product((1, 8, 16), (1, 8, 16)), "q8ta_matmul", (Slopes(), ROUND), TensorType((8,), FLOAT32))
    x, numbers = TensorType((1, 8, 4, 4), INT8X4, QParams(0.5, 0)), TensorType((8,), FLOAT32)
    types = (x, numbers, TensorType((8,), "int32"))
    for stages in ((Scale(),), (ROUND, PixelShuffle(2), REAL), (ROUND, REAL)):
        with pytest.raises(GraphError):
            OPS["q8ta_batch_norm"].check(types, {"epilogue": Epilogue(stages)})
    OPS["q8ta_batch_norm"].check(types, {"epilogue": Epilogue((ROUND,))})
    checked(image, "q8ta_conv2d", (ScaledResidual(1.0), ROUND), TensorType((1, 16, 4, 4), INT8X4, QParams(0.5, 0)))


class Gains(Stage):
    """A second stage with numbers by channel."""

    name = "gains"
    phase = Phase.INT8
    by_channel = True
    operand = Operand("gains", constant=True)


def test_two_stages_have_numbers_by_channel() -> None:
    struct, made, shuffled = (next(scan(t)) for t in Epilogue((Slopes(), ROUND, Gains())).declarations)
    assert struct.text == "struct Channel { numbers: Numbers, slopes: vec4<f32>, gains: vec4<f32> }"
    assert {"slopes", "gains"} <= set(made.names)
    assert shuffled.text.count("subgroupShuffle") == 2
    assert np.array_equal([s.phase for s in (Slopes(), ROUND, Gains())], sorted((2, 3, 4)))
