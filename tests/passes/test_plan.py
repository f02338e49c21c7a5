"""The plan: regions of float graphs are those that fusion finds; operators that programs write as several are one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.frontend.quantize import float_graph, float_program
from q8ta_wgpu.passes.plan.patterns import combine
from q8ta_wgpu.runtime.device import Device
from tests.harness import stages_of
from tests.quantizing import Plain, check, conv, data


def test_softsign_is_one_operator(device: Device) -> None:
    """torch exports it as abs, add and div. Behind a convolution it joins the sum, alone it is a table."""
    module = Plain(lambda s, x: s.b(F.softsign(s.a(F.softsign(x)))), a=conv(3, 4), b=conv(4, 3))
    model = check(module, [data(1, 3, 5, 5)], device)
    found = [f"{node.op} {stages_of(node)}".strip() for node in model.graph.nodes if node.op != "quantize"]
    assert found == ["q8ta_table", "q8ta_conv2d curve requantize", "q8ta_conv2d scale"]


def ops(function: Any) -> list[str]:
    module = Plain(lambda _, x: function(x)).eval()
    graph = import_float(float_graph(float_program(module, (data(2, 5),)))).graph
    combine(graph)
    return [node.op for node in graph.nodes]


def test_a_pattern_is_read_by_nothing_else() -> None:
    """Nor is it another one: what is captured twice is one value, and numbers are those of the row."""
    assert ops(F.softsign) == ["softsign"]
    assert "softsign" not in ops(lambda x: (x / (y := 1 + x.abs())) + y)
    assert "softsign" not in ops(lambda x: (x + 1) / (1 + x.abs()))
    assert "softsign" not in ops(lambda x: x / (2 + x.abs()))


def test_an_operator_that_is_skipped_stays_as_it_is_written() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Softsign(), nn.Conv2d(4, 3, 1)).eval()
    x = data(1, 3, 5, 5)
    program = q8.quantize(module, (x,), [x], quantizer=q8.Quantizer(skip=["1"]), progress=False)
    assert {"abs", "div"} <= {node.op for node in q8.compile(program).graph.nodes}
