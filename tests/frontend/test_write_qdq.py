"""What a quantized graph rounds is written into torch's graph: the same values, each rounding once."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter
from torch.utils._pytree import tree_leaves

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.read_float import float_program
from q8ta_wgpu.frontend.run import TorchRunner
from q8ta_wgpu.frontend.write_qdq import write_qdq
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.model.reference import run
from q8ta_wgpu.quantization.calibration import Calibration
from tests.quantizing import Plain, conv, data

STREAM = Plain(
    lambda s, x: s.norm(x + s.up(F.gelu(s.down(s.norm(x))))),
    norm=nn.LayerNorm(8),
    down=nn.Linear(8, 16),
    up=nn.Linear(16, 8, bias=False),
)
"""Its sum is stored in 16 bits, and in 8 for what reads that."""

MODULES: dict[str, tuple[nn.Module, Tensor]] = {
    "residual": (Plain(lambda s, x: s.b(F.relu(s.a(x) + x)), a=conv(3, 3), b=conv(3, 4)), data(2, 3, 6, 6)),
    "stream": (STREAM, data(2, 5, 8)),
    "transposed": (nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), nn.ReLU(), conv(6, 3)), data(1, 4, 5, 5)),
    "matrix": (Plain(lambda s, x: torch.tanh(x @ s.m) @ s.n), data(3, 8)),
    "constant": (Plain(lambda s, x: s.a(x * s.c), a=conv(3, 4)), data(1, 3, 6, 6)),
    "moved": (Plain(lambda s, x: s.a(x).transpose(2, 3).flip(2), a=conv(3, 4)), data(1, 3, 5, 6)),
}
MODULES["matrix"][0].m, MODULES["matrix"][0].n = nn.Parameter(data(8, 6)), nn.Parameter(data(6, 4))
MODULES["constant"][0].c = nn.Parameter(data(3, 1, 1))


def written(module: nn.Module, x: Tensor) -> tuple[GraphModule, Graph, list[str]]:
    """The torch graph with what its quantized graph rounds, that graph, and torch's names of calls before."""
    module.eval()
    source, program = Traceable.exported(module, (x,), [])
    graph = source.folded(program)
    q8.Quantizer().transform_for_annotation(graph)
    names = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    found = float_program(graph)
    runner, calibration = TorchRunner(found, graph), Calibration(found, True, True)
    for index, item in enumerate((x, x / 2)):
        calibration.meet(runner.inputs((item,)), index, runner.values((item,), list(calibration.wanted)))
    quantized = calibration.quantized()
    write_qdq(graph, found, quantized)
    return graph, quantized, names


@pytest.mark.parametrize("name", MODULES)
def test_torch_computes_what_the_quantized_graph_says(name: str) -> None:
    """Up to the last bits of floats, which may move a value by a step where it lies between two."""
    module, x = MODULES[name]
    graph, quantized, names = written(module, x)
    with torch.no_grad():
        (ours,) = map(np.asarray, tree_leaves(Interpreter(graph).run(x)))
    (expected,) = (run(quantized, {quantized.inputs[0]: x.numpy()})[end] for end in quantized.outputs)
    assert np.abs(ours - expected).max() <= 0.02 * np.abs(expected).max()
    assert np.median(np.abs(ours - expected)) <= 1e-6 * np.abs(expected).max()
    kept = [node.name for node in graph.graph.nodes if node.op == "call_function" and node.name in names]
    assert kept == names


@pytest.mark.parametrize("name", MODULES)
def test_every_rounding_is_written_once(name: str) -> None:
    graph, quantized, _ = written(*MODULES[name])
    ops = Counter(node.op for node in quantized.nodes)
    calls = Counter(str(node.target).partition(".")[2] for node in graph.graph.nodes if node.op == "call_function")
    values = ops["quantize"] - sum(
        node.inputs[0] in quantized.constants for node in quantized.nodes if node.op == "quantize"
    )
    assert calls["quantize_per_tensor.default"] == values
    assert calls["dequantize_per_tensor.default"] >= ops["quantize"]  # one for each reader
    assert calls["dequantize_per_channel.default"] == ops["dequantize_weight"] > 0


def test_weights_are_integers_in_torchs_shape() -> None:
    """With a scale for each index of the axis of outputs: of a transposed convolution in groups, those of a group."""
    module, x = MODULES["transposed"]
    graph, _, _ = written(module, x)
    (call,) = (n for n in graph.graph.nodes if str(n.target).startswith("aten.conv_transpose"))
    weight, scale, zero, axis = (call.args[1].args[i] for i in range(4))
    stored, scales = (getattr(graph, str(n.target)) for n in (weight, scale))
    assert (stored.dtype, stored.shape, scales.shape, axis) == (torch.int8, (4, 3, 3, 3), (3,), 1)
    assert not getattr(graph, str(zero.target)).any()


def test_a_stream_is_rounded_to_16_bits_and_then_to_8() -> None:
    graph, _, _ = written(*MODULES["stream"])
    rounded = [n for n in graph.graph.nodes if ".quantize_per_tensor" in str(n.target)]
    assert {n.args[5] for n in rounded} == {torch.int16, torch.int8}


def test_a_saved_program_is_compiled_in_a_process_that_quantized_nothing(tmp_path: Path) -> None:
    """torch knew neither its own operators that quantize nor ours that rounds rows."""
    module, x = MODULES["stream"]
    program = q8.quantize(module.eval(), (x,), [x], q8.Quantizer(activations="dynamic"), progress=False)
    assert any("round_rows" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, tmp_path / "net.pt2")
    code = "import sys, q8ta_wgpu as q8, torch; print(q8.compile(torch.export.load(sys.argv[1])).report())"
    run = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "net.pt2")]
    found = subprocess.run(run, capture_output=True, text=True, check=False, timeout=300)
    assert found.stdout.strip() == str(q8.compile(program).report()), found.stderr


def test_a_program_is_saved_and_read_again() -> None:
    module, x = MODULES["stream"]
    program = q8.quantize(module.eval(), (x,), [x], progress=False)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file)
    assert torch.equal(again.module()(x), program.module()(x))
    both = [q8.Session(q8.compile(each), "reference")(x.numpy()) for each in (program, again)]
    np.testing.assert_array_equal(*both)
