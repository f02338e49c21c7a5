"""What quantizing does grows with a network, not with its square, and what is alike is done once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import q8ta_wgpu as q8
from q8ta_wgpu.quantization.weights import RoundedWeights
from testbed.standins import noted
from tests.quantizing import data


class Mixed(nn.Module):
    """Linears and products that torch makes of several operators."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(6, 6) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = x + torch.einsum("bij,bkj->bik", linear(x), x).tanh()
        return x


def work(blocks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often graphs are compiled."""
    counts: Counter[str] = Counter()
    recompile = GraphModule.recompile

    def compiles(self: GraphModule) -> Any:
        counts["compiled"] += 1
        return recompile(self)

    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "recompile", compiles)
        x = data(2, 6, 6)
        program = q8.quantize(Mixed(blocks).eval(), (x,), [x], progress=False)
    assert sum("quantize_per_tensor" in str(node.target) for node in program.graph.nodes) > 2 * blocks
    return counts["compiled"]


def test_graphs_are_not_compiled_more_often_in_larger_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert work(3, monkeypatch) == work(9, monkeypatch)


def threads_while_calibrating(module: nn.Module, *shape: int) -> list[int]:
    """Threads that torch takes in the calls of a module."""
    found: list[int] = []

    def items() -> Iterator[Tensor]:
        for _ in range(2):
            found.append(torch.get_num_threads())
            yield data(*shape)

    q8.quantize(module.eval(), (data(*shape),), items(), progress=False)
    return found


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ x.mT


def test_a_small_network_is_calibrated_by_one_thread() -> None:
    """Among threads its operators would wait for each other; a large one's gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert threads_while_calibrating(nn.Conv2d(8, 8, 3), 1, 8, 8, 8) == [1, 1]
        assert threads_while_calibrating(nn.Conv2d(8, 8, 3), 1, 8, 400, 400) == [2, 2]
        assert threads_while_calibrating(nn.ConvTranspose2d(8, 8, 3), 1, 8, 400, 400) == [2, 2]
        assert threads_while_calibrating(nn.LSTM(8, 8), 4, 1, 8) == [1, 1]
        assert threads_while_calibrating(nn.LSTM(512, 512), 40, 1, 512) == [2, 2]
        assert threads_while_calibrating(Product(), 600, 200) == [2, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_weight_is_rounded_once_for_all_simulated_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the nearest for the yardstick, and as it fits the inputs."""
    found = noted(monkeypatch, RoundedWeights, "_rounded")
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 4)).eval()
    items = [300 + data(1, 8, seed=seed) for seed in range(8)]
    q8.quantize(module, (items[0],), items, progress=False)
    assert set(Counter(name for _, name, *_ in found).values()) == {2}


class Repeated(nn.Module):
    """A layer that is called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.layer(x).relu()
        return x


def test_a_layer_that_is_called_again_has_one_weight() -> None:
    """It had one for each call, fitted to what that call reads."""
    items = [data(64, 32, seed=seed) for seed in range(8)]
    model = q8.compile(q8.quantize(Repeated().eval(), (items[0],), items, progress=False))
    weights = [array for array in model.graph.constants.values() if array.dtype == np.int8 and array.size == 32 * 32]
    assert len(weights) == 1
    assert len({node.inputs[1] for node in model.graph.nodes if "linear" in node.op}) == 1
