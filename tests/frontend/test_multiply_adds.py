"""Multiply-adds by shapes are those that torch counts by running a module."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode

from q8ta_wgpu.frontend.multiply_adds import multiply_adds, multiply_adds_of_any
from tests.quantizing import Plain, data


def calls(module: nn.Module, shape: tuple[int, ...]) -> list[Node]:
    """What the exported module calls."""
    nodes = torch.export.export(module.eval(), (data(*shape),)).graph.nodes
    return [node for node in nodes if node.op == "call_function"]


def attention(_: nn.Module, x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x[..., :3, :], x[..., :3, :])


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name: module, shape of its input, multiply-adds
    "conv": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 7), 2 * 6 * 4 * 3 * 2 * 9),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (2, 4, 9), 2 * 6 * 7 * 4 * 3),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 7), 2 * 4 * 5 * 7 * 6 * 9),
    "linear": (lambda: nn.Linear(8, 5), (3, 4, 8), 3 * 4 * 8 * 5),
    "product": (lambda: Plain(lambda _, x: x @ x.transpose(-1, -2)), (2, 4, 8), 2 * 4 * 4 * 8),
    "attention": (lambda: Plain(attention), (2, 4, 5, 8), 2 * 2 * 4 * 5 * 3 * 8),
    "pooling": (lambda: nn.MaxPool2d(2), (1, 4, 8, 8), 0),
}


@pytest.mark.parametrize("name", MODULES)
def test_shapes_say_how_many(name: str) -> None:
    make, shape, expected = MODULES[name]
    called = calls(make(), shape)
    assert sum(map(multiply_adds, called)) == expected
    assert sum(map(multiply_adds_of_any, called)) == expected
    if name != "attention":  # which torch does not count on CPUs
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            make().eval()(data(*shape))
        assert counter.get_total_flops() == 2 * expected


def test_operators_that_the_table_lacks_are_counted_by_torch() -> None:
    """Of baddbmm, and of what torch computes it by."""
    called = calls(Plain(lambda _, x: torch.baddbmm(x[..., :4], x, x.mT)), (2, 4, 8))
    assert sum(map(multiply_adds, called)) == 0
    assert sum(map(multiply_adds_of_any, called)) == 2 * 4 * 4 * 8


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch.export, of its own LSTM
@pytest.mark.parametrize("both", [False, True])
def test_a_recurrent_layer_multiplies_its_input_and_its_hidden_states(both: bool) -> None:
    module = nn.LSTM(8, 16, num_layers=2, bidirectional=both)
    (call,) = [node for node in calls(module, (5, 3, 8)) if str(node.target) == "aten.lstm.input"]
    directions = 1 + both
    first, second = 4 * 16 * 8, 4 * 16 * 16 * directions
    hidden = 4 * 16 * 16
    assert multiply_adds(call) == 15 * directions * (first + second + 2 * hidden)
