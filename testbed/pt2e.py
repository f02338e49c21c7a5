"""Programs that torchao's own functions quantize, by any PT2E quantizer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram


def by_torchao(module: nn.Module, batches: Sequence[tuple[Tensor, ...]], quantizer: Any) -> ExportedProgram:
    """A module in evaluation mode, quantized by `quantizer` over the ranges of these inputs."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        prepared = prepare_pt2e(torch.export.export(module, batches[0]).module(), quantizer)
        for batch in batches:
            prepared(*batch)
        return torch.export.export(convert_pt2e(prepared), batches[0])
