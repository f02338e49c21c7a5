"""What one commit takes: run by `python -m bench compare` in a tree of that commit, so it uses the public face alone.

Prints JSON: by network the processor seconds of quantizing, compiling, opening a session and a call, all threads
together, milliseconds of a call on the GPU where it has timestamps, and the hash of the result.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8

SECONDS = 1.0
"""Processor seconds of the calls of each network."""


class Residual(nn.Module):
    """Convolutions with residuals, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Conv2d(32, 32, 3, padding=1) for _ in range(3))
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(1, 3, 64, 64) to (1, 10)."""
        x = self.first(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        result: Tensor = self.last(x.mean((2, 3)))
        return result


class Depthwise(nn.Module):
    """An inverted residual with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = nn.Conv2d(3, 48, 1), nn.Conv2d(48, 48, 5, padding=2, groups=48)
        self.gate, self.project = nn.Conv2d(48, 48, 1), nn.Conv2d(48, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(1, 3, 64, 64) to (1, 16, 64, 64)."""
        x = nn.functional.hardswish(self.depthwise(nn.functional.hardswish(self.expand(x))))
        result: Tensor = self.project(x * self.gate(x.mean((2, 3), keepdim=True)).sigmoid())
        return result


NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (1, 3, 64, 64)),
    "depthwise": (Depthwise, (1, 3, 64, 64)),
    "transformer": (lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (1, 49, 64)),
}


def measured(name: str, adapter: str | None) -> dict[str, float | str]:
    """The row of one network."""
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    module = build().eval()
    inputs = [torch.randn(shape) for _ in range(4)]
    row: dict[str, float | str] = {}
    before = time.process_time()

    def lap(step: str) -> None:
        nonlocal before
        now = time.process_time()
        row[step], before = now - before, now

    program = q8.quantize(module, (inputs[0],), calibration=inputs, progress=False)
    lap("quantize")
    model = q8.compile(program)
    lap("compile")
    with q8.Session(model, adapter) as session:
        y = np.asarray(session(inputs[0]))
        lap("open")
        calls = 0
        while time.process_time() - before < SECONDS:
            session(inputs[0])
            calls += 1
        lap("call")
        row["call"] = float(row["call"]) / calls
        if session.device is not None and session.device.timestamps:
            row["gpu"] = session.time(inputs[0]).run_ms / 1e3
    return {**row, "result": hashlib.sha256(np.ascontiguousarray(y).tobytes()).hexdigest()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    _, *names = sys.argv
    print(json.dumps({name: measured(name, names[0] or None) for name in names[1:]}))
