"""What quantizing does grows with a network, not with its square, and what is alike is done once."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import q8ta_wgpu as q8
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


def work(blocks: int, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often graphs are compiled, by whom, and observers are looked for by name."""
    counts: Counter[str] = Counter()
    recompile, lookup = GraphModule.recompile, nn.Module.__getattr__

    def compiles(self: GraphModule) -> Any:
        counts["compiled"] += 1
        counts["compiled by us"] += "q8ta_wgpu" in sys._getframe(1).f_code.co_filename
        return recompile(self)

    def looks(self: nn.Module, name: str) -> Any:
        counts["looked up"] += name.startswith("activation_post_process_")
        return lookup(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(GraphModule, "recompile", compiles)
        patch.setattr(nn.Module, "__getattr__", looks)
        x = data(2, 6, 6)
        program = q8.quantize(Mixed(blocks).eval(), (x,), [x], progress=False)
    assert sum("quantize_per_tensor" in str(node.target) for node in program.graph.nodes) > 2 * blocks
    return counts


def test_work_grows_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = (work(blocks, monkeypatch) for blocks in (3, 9))
    assert small["compiled"] == large["compiled"]
    assert small["compiled by us"] == 1  # before calibration
    assert large["looked up"] <= 4 * small["looked up"]  # by squares 9
