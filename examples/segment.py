"""Trains a small U-Net to find the coins in half of a photograph, quantizes it, and finds those in the other half.

python -m examples.segment [--out out/segmented.png]

The way of a network of your own, in one file: train in float, quantize, compare, run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from examples import needs

needs("torch", "PIL", "scipy", "skimage")
import torch
from PIL import Image
from scipy.ndimage import binary_fill_holes
from skimage import data, filters, morphology
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8

SIDE, SPLIT = 64, 192
"""Of a square that is trained on, and the column between training and test half."""


class UNet(nn.Module):
    """Two steps down and up again (Ronneberger et al. 2015): float32 (n, 1, h, w) to a logit a pixel, h and w
    multiples of 4."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(self._pair(i, o) for i, o in zip((1, *widths), widths, strict=False))
        self.up = nn.ModuleList(self._pair(i + o, o) for i, o in zip(widths[:0:-1], widths[1::-1], strict=True))
        self.head = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Sequential:
        def one(inputs: int) -> list[nn.Module]:
            return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

        return nn.Sequential(*one(inputs), *one(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Float32 (n, 1, h, w) → the same shape."""
        kept: list[Tensor] = []
        for block in self.down:
            x = block(x if not kept else F.max_pool2d(x, 2))
            kept.append(x)
        for block, skip in zip(self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        return self.head(x)  # type: ignore[no-any-return]


def coins() -> tuple[Tensor, Tensor]:
    """scikit-image's coins, and where they are by its own tools: edges, filled. Both (1, 1, 300, 384)."""
    image = data.coins()[:300]
    edges = filters.sobel(image) > 0.08
    filled = binary_fill_holes(morphology.closing(edges, morphology.disk(3)))
    mask = morphology.remove_small_objects(morphology.opening(filled, morphology.disk(5)), max_size=400)
    return tuple(torch.from_numpy(a.astype(np.float32))[None, None] for a in (image / 255, mask))  # type: ignore[return-value]


def squares(x: Tensor, mask: Tensor, count: int, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Random squares of the training half, turned and mirrored."""
    pairs = []
    for _ in range(count):
        top, left = generator.integers(0, x.shape[2] - SIDE), generator.integers(0, SPLIT - SIDE)
        pair = torch.cat([part[:, :, top : top + SIDE, left : left + SIDE] for part in (x, mask)], 1)
        pair = torch.rot90(pair, int(generator.integers(4)), (2, 3))
        pairs.append(pair.flip(3) if generator.integers(2) else pair)
    both = torch.cat(pairs)
    return both[:, :1], both[:, 1:]


def trained(steps: int) -> UNet:
    """A network trained on the left half of the photograph, in evaluation mode."""
    torch.manual_seed(0)
    network, generator, (x, mask) = UNet(), np.random.default_rng(0), coins()
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        given, wanted = squares(x, mask, 8, generator)
        loss = F.binary_cross_entropy_with_logits(network(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 9:
            print(f"training: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    return network.eval()


def overlap(found: np.ndarray, wanted: np.ndarray) -> float:
    """Intersection over union of two masks."""
    return float((found & wanted).sum() / max((found | wanted).sum(), 1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.segment", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/segmented.png"), help="the picture that is written")
    parser.add_argument("--steps", type=int, default=60, help="of training")
    parser.add_argument("--device", help="as Session takes it")
    options = parser.parse_args(arguments)

    network = trained(options.steps)
    x, mask = coins()
    batches = [squares(x, mask, 1, np.random.default_rng(seed))[0] for seed in range(8)]
    model = q8.compile(q8.quantize(network, (batches[0],), calibration=batches))
    print(model.report())

    half, wanted = x[:, :, :, SPLIT:].contiguous(), mask[0, 0, :, SPLIT:].numpy() > 0.5
    with torch.no_grad():
        in_float = network(half).numpy()[0, 0] > 0
    with q8.Session(model.reshape(tuple(half.shape)), options.device) as session:  # fully convolutional: any size
        in_int8 = session(half)[0, 0] > 0
        print(f"\non {session.name}: {session.program.activation_bytes / 2**20:.1f} MiB of activations")
    print(f"overlap with the coins of the other half: float32 {overlap(in_float, wanted):.3f}, ", end="")
    print(f"int8 {overlap(in_int8, wanted):.3f}; of int8 with float32 {overlap(in_int8, in_float):.3f}")

    grey = np.repeat(np.rint(half[0, 0].numpy() * 255).astype(np.uint8)[..., None], 3, axis=2)
    marked = grey.copy()
    marked[in_int8] = marked[in_int8] // 2 + np.array([0, 100, 40], np.uint8)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate([grey, marked], axis=1)).save(options.out)
    print(f"picture: {options.out} (photograph, coins found in int8)")


if __name__ == "__main__":
    main()
