"""Frames as a camera delivers them, through one session: call by call, and with `run_many`, which overlaps upload,
computation and read-back.

python -m examples.stream [--frames 60]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import numpy as np

from examples import needs

needs("torch", "PIL", "skimage")
import torch

import q8ta_wgpu as q8
from demo.network import trained
from examples import photos


def camera(frames: int, height: int, width: int) -> Iterator[photos.Array]:
    """A view that wanders over a photograph, float32 luma (1, 1, height, width). Yours comes from a camera."""
    picture = np.asarray(photos.photo("astronaut").convert("L"), np.float32) / 255
    for i in range(frames):
        top, left = ((1 + np.sin(i / speed)) / 2 for speed in (9.0, 13.0))
        y, x = int(top * (picture.shape[0] - height)), int(left * (picture.shape[1] - width))
        yield np.ascontiguousarray(picture[None, None, y : y + height, x : x + width])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.stream", description=__doc__)
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--size", type=int, nargs=2, default=(180, 320), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--device", help="as Session takes it")
    options = parser.parse_args(arguments)

    shape = (1, 1, *options.size)
    batches = [torch.from_numpy(frame) for frame in camera(8, *options.size)]
    model = q8.compile(q8.quantize(trained(), (torch.zeros(shape),), calibration=batches))
    frames = list(camera(options.frames, *options.size))
    with q8.Session(model, options.device) as session:
        session(frames[0])  # the first call also waits for what was uploaded
        rates, results = [], []
        for run in (lambda: [session(frame) for frame in frames], lambda: list(session.run_many(iter(frames)))):
            started = time.perf_counter()
            results.append(run())
            rates.append(len(frames) / (time.perf_counter() - started))
        print(f"{shape[3]}x{shape[2]} to {3 * shape[3]}x{3 * shape[2]} on {session.name}")
    print(f"call by call {rates[0]:.1f} frames a second, run_many {rates[1]:.1f}")
    same = all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
    print(f"the same frames: {'yes' if same else 'no'}")


if __name__ == "__main__":
    main()
