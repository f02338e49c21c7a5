"""Modules with thousands of operators in a row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from testbed.sample import EVERYTHING

MOVES = 1200
FUNCTIONS = 3800 if EVERYTHING else 300


class Deep(nn.Module):
    """Token numbers that are viewed again and again, their rows, and functions of these one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, ids: Tensor) -> Tensor:
        for i in range(MOVES):
            ids = ids.reshape(4, 2) if i % 2 else ids.reshape(2, 4)
        x: Tensor = self.table(ids)
        for i in range(FUNCTIONS):
            x = x.relu() if i % 2 else -x
        return x + 1


def test_a_chain_of_thousands_is_imported() -> None:
    """The bounds of token numbers were found by a recursion over their views."""
    ids = torch.arange(8).reshape(4, 2)
    model = q8.compile(torch.export.export(Deep().eval(), (ids,), strict=False))
    (port,) = model.inputs.values()
    assert port.bounds == (0, 8) and len(model.graph.nodes) > MOVES + FUNCTIONS
    assert np.array_equal(q8.Session(model, "reference")(ids), np.ones((4, 2, 4), np.float32))
