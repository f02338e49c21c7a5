"""Products read matrices that several heads share once, without a copy, and give the same bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from tests.quantizing import data

WIDTH = 8


def shared_keys(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.repeat_interleave(3, 1).mT


def shared_values(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT.repeat_interleave(3, 1)


def shared_by_all(q: Tensor, k: Tensor) -> Tensor:
    return q @ k[:, :1].expand(-1, 6, -1, -1).mT


def repeated_in_turns(q: Tensor, k: Tensor) -> Tensor:
    """Heads 0, 1, 0, 1 ...: those that share a matrix are no neighbours."""
    return q @ k.repeat(1, 3, 1, 1).mT


def repeated_rows(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.repeat_interleave(3, 2).mT[:, :1]) + k.sum()


class Products(nn.Module):
    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.product = product

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.product(q, k)


@functools.cache
def compiled(product: Callable[[Tensor, Tensor], Tensor], precision: str) -> Model:
    module, inputs = Products(product).eval(), (data(2, 6, 5, WIDTH), data(2, 2, 7, WIDTH, seed=1))
    if precision == "float32":
        return q8.compile(torch.export.export(module, inputs))
    return q8.compile(q8.quantize(module, inputs, [inputs], q8.Quantizer(precision=precision), progress=False))


@pytest.mark.parametrize("precision", ["int8", "int16", "float32"])
@pytest.mark.parametrize("product", [shared_keys, shared_values, shared_by_all], ids=lambda f: f.__name__)
def test_heads_that_share_a_matrix_are_rows_of_one_product(
    product: Callable[[Tensor, Tensor], Tensor], precision: str, vulkan: Device
) -> None:
    graph = compiled(product, precision).graph
    lowered = lower(graph, BASELINE)
    assert "expand" in [node.op for node in graph.nodes]
    assert "expand" not in [node.op for node in lowered.nodes]
    inputs = {name: data(*graph.types[name].shape, seed=3).numpy() for name in graph.inputs}
    (expected,) = reference.run(graph, inputs).values()
    (found,) = harness.run_poisoned(lowered, inputs, None, vulkan)
    np.testing.assert_allclose(found, expected, atol=1e-5 if precision == "float32" else 0, rtol=0)


def test_a_matrix_that_is_read_elsewhere_is_copied_for_that_alone() -> None:
    def product(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        repeated = k.repeat_interleave(3, 1)
        return q @ repeated.mT, repeated

    graph = lower(compiled(product, "int8").graph, BASELINE)
    (found,) = [node for node in graph.nodes if node.op == "q8ta_matmul"]
    assert graph.types[found.inputs[1]].shape == (2, 2, 7, WIDTH)
    assert "expand" in [node.op for node in graph.nodes]


@pytest.mark.parametrize("product", [repeated_in_turns, repeated_rows], ids=lambda f: f.__name__)
def test_other_repeats_stay(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    graph = compiled(product, "int8").graph
    before, after = ([node.op for node in g.nodes] for g in (graph, lower(graph, BASELINE)))
    assert before == after


def test_other_sizes_are_shared_as_well() -> None:
    graph = lower(compiled(shared_keys, "int16").reshape((2, 6, 9, WIDTH), (2, 2, 4, WIDTH)).graph, BASELINE)
    assert "expand" not in [node.op for node in graph.nodes]
    assert next(graph.types[n.output].shape for n in graph.nodes if n.op == "q16ta_matmul") == (2, 2, 27, 4)
