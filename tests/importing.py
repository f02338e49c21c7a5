"""Float functions of torch, imported: what the tests of the importer share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import run_passes

Function = Callable[..., Any]


class Wrapped(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def imported(function: Function, *inputs: Tensor) -> Model:
    """The compiled model of a float function."""
    module = function if isinstance(function, nn.Module) else Wrapped(function)
    program = torch.export.export(module.eval(), inputs)
    graph, structure = import_program(program)
    return Model(run_passes(graph), structure)


def flat(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a module's outputs."""
    found: Sequence[Any] = pytree.tree_flatten(outputs)[0]
    return [np.asarray(v.detach() if isinstance(v, Tensor) else v) for v in found]


def data(*shape: int) -> Tensor:
    """Normal values, the first ones replaced by what overflows careless formulas."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    edges = torch.tensor([0.0, -0.0, 88.0, -88.0, 120.0, -120.0, 1e-6, -1e-6, 0.05, -0.05, 0.1, 3.0, -3.0, 20.5])
    x.view(-1)[: edges.numel()] = edges[: x.numel()]
    return x
