"""`make demo`: a photograph, shrunk by three and brought back by an int8 network on whatever GPU is there."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

import q8ta_wgpu as q8
from demo import photos
from demo.network import FACTOR, SuperResolution, trained
from demo.sheet import sheet

OUT = Path("out")
MODEL = OUT / "super_resolution.q8ta"
CHECKED = 512
"""Side of the largest low-resolution picture compared with the numpy reference whole; of bigger ones the middle is."""

FIVE_LINES = f"""\
    import numpy as np, q8ta_wgpu as q8
    model = q8.load("{MODEL}")                       # no torch needed from here on
    x = np.random.rand(1, 1, 120, 160).astype("float32")  # luma in [0, 1]
    session = q8.Session(model.reshape(x.shape))
    print(session.name, session(x).shape)"""


@dataclass(frozen=True)
class Pictures:
    """A photo (None if it is too small to shrink), its small version, and both as luma."""

    photo: Image.Image | None
    small: Image.Image

    @property
    def x(self) -> NDArray[np.float32]:
        """The network's input: (1, 1, h, w) luma in [0, 1]."""
        return photos.to_input(photos.luma(self.small))


def read(path: str | None) -> Pictures:
    """The demo's photo, or the user's: grey, RGB, RGBA (on white), any size. Exits with a sentence if unreadable."""
    try:
        image = photos.load(photos.HELD_OUT[0]) if path is None else Image.open(path)
        image.load()
    except UnidentifiedImageError:
        sys.exit(f"cannot read the picture {path}: it is in no format that Pillow knows, such as JPEG or PNG")
    except OSError as error:
        sys.exit(f"cannot read the picture {path}: {error.strerror or error}")
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    image = image.convert("L" if image.mode in ("L", "1", "I;16", "I", "F") else "RGB")
    if min(image.size) < 2 * FACTOR:
        print(f"the picture is {image.size[0]}x{image.size[1]}: too small to shrink, it is enlarged as it is")
        return Pictures(None, image)
    photo = photos.crop_to_multiple(image, FACTOR)
    return Pictures(photo, photos.shrink(photo, FACTOR))


def build(network: SuperResolution) -> q8.Model:
    """Quantizes with the calibration photos, compiles, saves, and loads the file again."""
    example = (torch.zeros(1, 1, 64, 64),)
    batches = []
    for name in photos.CALIBRATION:
        x = photos.to_input(photos.shrink(photos.crop_to_multiple(photos.luma(photos.load(name)), FACTOR), FACTOR))
        middle = [(side - 64) // 2 for side in x.shape[2:]]
        batches.append(torch.from_numpy(x[:, :, middle[0] : middle[0] + 64, middle[1] : middle[1] + 64].copy()))
    model = q8.compile(q8.quantize(network, example, calibration=batches))
    OUT.mkdir(exist_ok=True)
    model.save(MODEL)
    return q8.load(MODEL)


def mismatches(model: q8.Model, x: NDArray[np.float32]) -> tuple[int, int]:
    """Values of the device's result that differ from the reference's in any bit, and how many were compared."""
    h, w = (min(side, CHECKED) for side in x.shape[2:])
    top, left = (x.shape[2] - h) // 2, (x.shape[3] - w) // 2
    part = np.ascontiguousarray(x[:, :, top : top + h, left : left + w])
    found, expected = (upscaler(model, part.shape, device)(part) for device in (None, "reference"))
    return int((found.view(np.uint32) != expected.view(np.uint32)).sum()), expected.size


def upscaler(model: q8.Model, shape: tuple[int, ...], device: str | None = None) -> q8.TiledSession:
    """A session for a picture of any size."""
    return q8.TiledSession(model, shape, device)


def median_ms(session: q8.TiledSession, x: NDArray[np.float32]) -> float:
    """Milliseconds of a whole run, numpy to numpy: median of five."""
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        session(x)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e3


def coloured(y: Image.Image, small: Image.Image) -> Image.Image:
    """A luma picture with the small picture's own colours, enlarged bicubically."""
    if small.mode == "L":
        return y
    _, cb, cr = small.convert("YCbCr").resize(y.size, Image.Resampling.BICUBIC).split()
    return Image.merge("YCbCr", (y, cb, cr)).convert("RGB")


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the demo and prints what it found. Arguments are those of the command line, unless others are given."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--image", help="a picture of yours; by default a photograph of scikit-image's")
    pictures = read(parser.parse_args(arguments).image)
    torch.set_num_threads(1)
    network = trained()
    model = build(network)
    print(model.report())
    x = pictures.x
    session = upscaler(model, x.shape)
    result = session(x)
    with torch.no_grad():
        in_float = network(torch.from_numpy(x)).numpy()
    y = photos.to_image(result)
    bicubic = photos.enlarge(pictures.small, FACTOR)
    differing, compared = mismatches(model, x)

    print(f"\nadapter: {session.session.name}")
    print(f"picture: {pictures.small.size[0]}x{pictures.small.size[1]} -> {y.size[0]}x{y.size[1]}")
    captioned = [("bicubic", bicubic), ("int8 network", coloured(y, pictures.small))]
    if pictures.photo is not None:
        truth = photos.luma(pictures.photo)
        low = photos.enlarge(photos.luma(pictures.small), FACTOR)
        values = [photos.psnr(candidate, truth) for candidate in (low, photos.to_image(in_float), y)]
        print("PSNR against the photo: bicubic {:.2f} dB, float {:.2f} dB, int8 {:.2f} dB".format(*values))
        captioned[0] = (f"bicubic, {values[0]:.1f} dB", bicubic)
        captioned[1] = (f"int8 network, {values[2]:.1f} dB", captioned[1][1])
        captioned.append(("photo", pictures.photo))
    print(f"mismatches vs reference: {differing} (of {compared} values)")
    print(f"time: {median_ms(session, x):.1f} ms, numpy to numpy (median of 5)")
    before = sum(p.numel() * p.element_size() for p in network.parameters())
    print(f"model: {before / 1e3:.1f} kB of float32 weights -> {MODEL.stat().st_size / 1e3:.1f} kB ({MODEL})")
    sheet(captioned).save(OUT / "demo.png")
    print(f"picture: {OUT / 'demo.png'} ({', '.join(text.partition(',')[0] for text, _ in captioned)})")
    print(f"\nthe same from Python:\n{FIVE_LINES}")
    if differing:
        sys.exit("the device's result differs from the reference")


if __name__ == "__main__":
    main()
