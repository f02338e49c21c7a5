"""The demo's network: a small sub-pixel super-resolution CNN on luma."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

FACTOR = 3
WEIGHTS = Path(__file__).with_name("weights.safetensors")


class Block(nn.Module):
    """Two 3x3 convolutions beside the identity (He et al. 2016; no normalization, as in Lim et al. 2017)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Float32 (n, width, h, w) → the same."""
        return F.relu(x + self.second(F.relu(self.first(x))))


class SuperResolution(nn.Module):
    """Sub-pixel CNN (Shi et al. 2016): all work at low resolution, one pixel_shuffle at the end.

    The convolutions predict only the detail that is missing from the nearest-neighbour picture: nine copies
    of the input, stacked by cat, become exactly that picture under pixel_shuffle. So the int8 error of the
    convolutions is small beside the picture, and the input's own 8-bit values pass through.

    Input: float32 (n, 1, h, w), luma in [0, 1]. Output: float32 (n, 1, FACTOR * h, FACTOR * w), not clamped.
    Any h and w; an output pixel depends on input pixels at most `halo` away.
    """

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, width, 5, padding=2)
        self.body = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.tail = nn.Conv2d(width, FACTOR**2, 3, padding=1)
        self.halo = 2 + 2 * blocks + 1

    def forward(self, x: Tensor) -> Tensor:
        """Float32 (n, 1, h, w) → float32 (n, 1, FACTOR * h, FACTOR * w)."""
        detail = self.tail(self.body(F.relu(self.head(x))))
        nearest = torch.cat([x] * FACTOR**2, dim=1)
        return F.pixel_shuffle(detail + nearest, FACTOR)


def trained(weights: Path = WEIGHTS) -> SuperResolution:
    """The network with the repository's weights, in evaluation mode.

    Raises FileNotFoundError when the weights are missing; `python -m demo.train` writes them.
    """
    network = SuperResolution()
    network.load_state_dict(load_file(weights))
    return network.eval()
