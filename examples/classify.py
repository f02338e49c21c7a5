"""Classifies a photograph with a network of torchvision in int8.

python -m examples.classify [--image photo.jpg] [--network resnet18] [--weights none]

torchvision downloads the weights it was trained to; with `--weights none` they are random, which shows the way through
and nothing about the picture.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from urllib.error import URLError

import numpy as np

from examples import needs

needs("torch", "torchvision", "PIL", "skimage")
import torch
from PIL import Image

import q8ta_wgpu as q8
from examples import photos
from examples.vision import declare_operators


def network(name: str, weights: str) -> tuple[torch.nn.Module, list[str]]:
    """A network in evaluation mode, and the names of its classes."""
    declare_operators()
    from torchvision import models

    chosen = models.get_model_weights(name).DEFAULT
    torch.manual_seed(0)
    try:
        module = models.get_model(name, weights=chosen if weights == "default" else None)
    except URLError as error:
        sys.exit(f"the weights of {name} cannot be downloaded ({error.reason}): try --weights none")
    return module.eval(), chosen.meta["categories"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.classify", description=__doc__)
    parser.add_argument("--image", help="a picture of yours; by default scikit-image's cat")
    parser.add_argument("--network", default="resnet18", help="a classifier of torchvision.models")
    parser.add_argument("--weights", default="default", choices=("default", "none"))
    parser.add_argument("--size", type=int, default=224, help="side of the picture the network sees")
    parser.add_argument("--device", help="as Session takes it")
    options = parser.parse_args(arguments)

    module, names = network(options.network, options.weights)
    image = Image.open(options.image) if options.image else photos.photo("chelsea")
    x = photos.normalized(image, options.size)

    batches = [torch.from_numpy(view) for view in photos.views(options.size)]
    model = q8.compile(q8.quantize(module, (batches[0],), calibration=batches))
    print(model.report())
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()[0]
    with q8.Session(model, options.device) as session:
        found = session(x)[0]
        print(f"\non {session.name}" + (", with random weights" if options.weights == "none" else ""))
    for title, scores in (("float32", expected), ("int8", found)):
        chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        best = chances.argsort()[::-1][:3]
        print(f"{title:>8}: " + ", ".join(f"{names[i]} {chances[i]:.1%}" for i in best))
    print(f"signal to noise of int8 against float32: {decibels(expected, found):.1f} dB")


def decibels(expected: photos.Array, found: photos.Array) -> float:
    """Power of what was expected over that of the error."""
    error = float(((expected - found) ** 2).sum())
    return 10 * float(np.log10(float((expected**2).sum()) / max(error, 1e-30)))


if __name__ == "__main__":
    main()
