"""Example inputs fix shapes and dtypes alone: memory that they share with each other, or with more, changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from tests.quantizing import Plain

ROWS = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
ZERO = torch.zeros(4, 3)
EXAMPLES: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "one tensor twice": lambda: (ROWS[:4], ZERO, ZERO),
    "a tensor and a view of it": lambda: (ROWS[:4], ROWS[:4].T.T, ZERO),
    "views that overlap": lambda: (ROWS[0:4], ROWS[1:5], ROWS[2:6]),
    "an expanded row": lambda: (ROWS[:4], ROWS[:1].expand(4, 3), ZERO),
}


@pytest.mark.parametrize("dynamic_batch", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_that_share_memory_stay_inputs_of_their_own(name: str, dynamic_batch: bool) -> None:
    module = Plain(lambda _, x, h, c: x * 2 + h - 3 * c).eval()
    batches = [tuple(torch.rand(3, 4, 3, generator=torch.Generator().manual_seed(seed))) for seed in range(8)]
    program = q8.quantize(module, EXAMPLES[name](), batches, progress=False, dynamic_batch=dynamic_batch)
    found = q8.Session(q8.compile(program), "reference")(*batches[0])
    np.testing.assert_allclose(found, module(*batches[0]), atol=0.1)
    assert min(layer.snr for layer in q8.compare(module, program, EXAMPLES[name]()).layers) > 15


def test_a_view_of_a_larger_tensor_is_no_dynamic_batch() -> None:
    """torch.export takes a size that it wrote down for the whole tensor for one that may vary."""
    cell = Plain(lambda s, x, h, c: s.cell(x, (h, c)), cell=nn.LSTMCell(3, 3)).eval()
    example = ROWS[3:4], ROWS[1:2], ROWS[2:3]
    program = q8.quantize(cell, example, [example], progress=False)
    assert not program.range_constraints
    assert not q8.compile(program).graph.dynamic
    assert q8.compare(cell, program, example).layers
