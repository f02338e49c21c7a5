"""A float graph as a quantizer wants it, before it is annotated or read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from q8ta_wgpu.frontend.calibrate.masked_rows import give_zeros
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer

if TYPE_CHECKING:
    from q8ta_wgpu.frontend.pt2e.torchao import Quantizer as TorchaoQuantizer


def edited(model: GraphModule, quantizer: Quantizer | TorchaoQuantizer) -> GraphModule:
    """A model as a quantizer transforms it before annotation. Rows that are masked as a whole give zeros."""
    found: GraphModule = quantizer.transform_for_annotation(Unrun(model, model.graph))
    give_zeros(found)
    return found


class Unrun(GraphModule):
    """A graph that is edited, and that torchao inserts observers into, before it becomes a module.

    It never runs, so it is not compiled. Modules are plain attributes: for the name of each observer torchao looks up
    those of all before it, which takes nn.Module ten times as long.
    """

    def recompile(self) -> Any:
        """Does nothing."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, torch.nn.Module):
            self.__dict__[name] = value
