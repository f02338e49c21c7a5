"""A runner by torch gives the values and outputs that the numpy reference gives, for the graph that was read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode

from q8ta_wgpu.frontend.export.norms import fold_norms
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.kept import Kept
from q8ta_wgpu.frontend.read_float import float_program
from q8ta_wgpu.frontend.roundings import Roundings
from q8ta_wgpu.frontend.run import TorchRunner
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.float_program import FloatProgram
from q8ta_wgpu.quantization.runner import ReferenceRunner
from q8ta_wgpu.quantization.stored import Choice


class Convolutions(nn.Module):
    """Convolutions of images and sequences, also transposed and in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.up = nn.ConvTranspose2d(8, 12, 2, stride=2, groups=4)
        self.last = nn.Conv1d(12, 5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        x = self.up(x + self.depthwise(x))
        found: torch.Tensor = self.last(x.flatten(2))
        return found


class Products(nn.Module):
    """Products with constant matrices on either side, and an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(6, 8)
        self.right, self.left = nn.Parameter(torch.randn(8, 24)), nn.Parameter(torch.randn(4, 10))
        self.bias = nn.Parameter(torch.randn(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.into(x)
        q, k, v = torch.addmm(self.bias, rows[0], self.right).chunk(3, -1)
        attended = torch.softmax(q @ k.T / 3, -1) @ v
        return self.left @ torch.nn.functional.gelu(attended @ rows[0].T @ rows[0])


NETWORKS: dict[str, tuple[type[nn.Module], tuple[int, ...]]] = {
    "convolutions": (Convolutions, (2, 3, 8, 8)),
    "products": (Products, (1, 10, 6)),
}

Read = tuple[FloatProgram, GraphModule, list[tuple[torch.Tensor, ...]]]


@pytest.fixture(params=NETWORKS)
def read(request: pytest.FixtureRequest) -> Read:
    """A program, the module that it was read from, and items."""
    make, shape = NETWORKS[request.param]
    torch.manual_seed(1)
    module: nn.Module = make().eval()
    items: list[tuple[torch.Tensor, ...]] = [(torch.randn(shape),) for _ in range(2)]
    source, exported = Traceable.exported(module, items[0], ())
    graph = source.folded(exported)
    fold_norms(graph)
    graph.recompile()
    return float_program(graph), graph, items


def test_values_are_those_of_the_reference(read: Read) -> None:
    program, module, items = read
    runner = TorchRunner(program, module)
    exact = ReferenceRunner(program.graph, [runner.inputs(items[0])])
    names = [*program.graph.outputs]
    found = runner.values(items[0], names)
    for name, want in zip(names, exact.exact[0], strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-3, atol=1e-4)


def test_values_that_no_result_reads_are_computed(read: Read) -> None:
    """As in a ControlNet, whose last block computes more than it returns."""
    program, module, items = read
    last = module.graph.output_node().all_input_nodes[0]
    with module.graph.inserting_after(last):
        unread = module.graph.call_function(torch.ops.aten.relu.default, (last,))
    unread.meta = {**last.meta}
    more = replace(program, names={**program.names, "unread": unread.name})
    runner = TorchRunner(more, module)
    exact = runner.values(items[0], ()).results()[-1]
    np.testing.assert_array_equal(runner.values(items[0], ["unread"])["unread"], np.maximum(exact, 0))


def test_outputs_with_roundings_are_those_of_the_reference(read: Read) -> None:
    program, module, items = read
    calibration = Calibration(program, streams=True, fit_weights=True)
    runner = TorchRunner(program, module, items)
    inputs = [runner.inputs(item) for item in items]
    for index, item in enumerate(items):
        calibration.meet(inputs[index], index, runner.values(item, sorted(calibration.wanted)))
    reference = ReferenceRunner(program.graph, inputs)
    for graph in (calibration.quantized(), program.graph, calibration.quantized(sums={})):
        for ours, theirs, exact in zip(runner.outputs(graph), reference.outputs(graph), runner.exact, strict=True):
            # Values halfway between two steps may be rounded either way: of few steps the difference is one.
            signal = np.square(exact[0]).mean()
            assert np.square(ours[0] - theirs[0]).mean() < 1e-4 * signal
            if graph is not program.graph:
                assert np.square(ours[0] - exact[0]).mean() > 1e-7 * signal


def test_runs_share_the_weights_that_were_rounded_once() -> None:
    """Each run held another copy of weights that were fitted or are transposed, and computed all calls behind them."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.ConvTranspose1d(8, 6, 3), nn.Flatten(), nn.Linear(60, 4)).eval()
    items = [(torch.randn(64, 8, 8),) for _ in range(4)]
    source, exported = Traceable.exported(module, items[0], ())
    graph = source.folded(exported)
    graph.recompile()
    program = float_program(graph)
    calibration, runner = Calibration(program, streams=True, fit_weights=True), TorchRunner(program, graph)
    for index, item in enumerate(items):
        calibration.meet(runner.inputs(item), index, runner.values(item, sorted(calibration.wanted)))
    first, second = (Roundings(program, calibration.quantized()).weights for _ in range(2))
    assert len(first) == 2
    for edge, weight in first.items():
        assert runner.weight(weight) is runner.weight(second[edge])


def test_steps_of_a_transposed_convolution_are_in_the_shape_of_its_weight() -> None:
    torch.manual_seed(1)
    module, x = nn.ConvTranspose2d(4, 6, 3, groups=2).eval(), torch.randn(1, 4, 5, 5)
    source, exported = Traceable.exported(module, (x,), ())
    graph = source.folded(exported)
    graph.recompile()
    program = float_program(graph)
    (name,) = (node.inputs[1] for node in program.graph.nodes if node.op == "conv_transpose2d")
    moved, weight = program.moved[name], program.graph.constants[name]
    np.testing.assert_array_equal(moved.back(weight), module.weight.detach().numpy())
    assert moved.axis(weight.shape) == 1
    assert moved.shared(weight.shape).tolist() == [0, 1, 2] * 2  # outputs of both groups share torch's axis


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts products of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.products += func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return func(*args, **(kwargs or {}))


def layers(width: int = 8, depth: int = 4) -> tuple[Calibration, GraphModule, tuple[torch.Tensor, ...]]:
    """A calibrated network of some layers with activations, and its item."""
    torch.manual_seed(1)
    module = nn.Sequential(*(each for _ in range(depth) for each in (nn.Linear(width, width), nn.GELU()))).eval()
    item = (torch.randn(16, width),)
    source, exported = Traceable.exported(module, item, ())
    graph = source.folded(exported)
    graph.recompile()
    calibration, runner = Calibration(float_program(graph), True, False), TorchRunner(float_program(graph), graph)
    calibration.meet(runner.inputs(item), 0, runner.values(item, sorted(calibration.wanted)))
    return calibration, graph, item


def test_a_run_computes_what_no_run_before_it_did() -> None:
    """A choice that differs in the last layer, then the first one again, then one that differs in the first layer."""
    calibration, graph, item = layers()
    program, stored = calibration.program, calibration.values.stored
    runner, fresh = (TorchRunner(program, graph, [item]) for _ in range(2))
    read = [each for each in stored if each.edges("sums")]
    choices: list[Choice] = [{}, {(read[-1], "sums"): "float32"}, {}, {(read[0], "sums"): "float32"}]
    made = []
    for choice in choices:
        with Counted() as counted:
            found = runner.outputs(calibration.quantized(choice))
        made.append(counted.products)
        np.testing.assert_array_equal(found, TorchRunner(program, graph, [item]).outputs(calibration.quantized(choice)))
    assert made == [4, 1, 0, 4]
    assert not np.array_equal(fresh.outputs(calibration.quantized(choices[0])), found)


@pytest.mark.parametrize(("most", "kept"), [(65536, 10), (65535, 0), (10**6, 16)])
def test_runs_keep_as_many_bytes_as_they_may(most: int, kept: int) -> None:
    """Of each run as many of sixteen values of 2 KB as fit three times, none that takes more than a 32nd of it."""
    calibration, graph, _ = layers(32, 8)
    program = calibration.program
    memory = Kept(graph, {name: value for value, name in program.names.items()}, 1, most)
    last = [each for each in calibration.values.stored if each.edges("sums")][-1]
    choices: list[Choice] = [{}, {(last, "sums"): "float32"}]
    for choice in choices:
        keys = memory.keys(Roundings(program, calibration.quantized(choice)))
        for node in graph.graph.nodes:
            memory.keep(0, keys, node, torch.zeros(16, 32))
    assert len(memory.known(0, keys)) == kept
