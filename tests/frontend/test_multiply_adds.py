"""Multiply-adds of what a hybrid leaves to PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from q8ta_wgpu.frontend.hybrid.partition import multiply_adds
from tests.quantizing import Plain, data

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # name: module, shape of its input, multiply-adds
    "conv": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (2, 4, 9, 7), 2 * 6 * 4 * 3 * 2 * 9),
    "linear": (lambda: nn.Linear(8, 5), (3, 4, 8), 3 * 4 * 8 * 5),
    "pooling": (lambda: nn.MaxPool2d(2), (1, 4, 8, 8), 0),
    "what the table lacks": (lambda: Plain(lambda _, x: torch.baddbmm(x[..., :4], x, x.mT)), (2, 4, 8), 2 * 4 * 4 * 8),
}


@pytest.mark.parametrize("name", MODULES)
def test_torch_counts_them(name: str) -> None:
    make, shape, expected = MODULES[name]
    nodes = torch.export.export(make().eval(), (data(*shape),)).graph.nodes
    assert sum(multiply_adds(node) for node in nodes if node.op == "call_function") == expected
