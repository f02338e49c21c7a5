"""The demo's picture: captioned photographs in a row, and below each the detail in which the first two differ most."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

GAP, MARGIN = 10, 10
ROWS = 360
"""Height of a photograph on the sheet at most; larger ones are shrunk, their detail is not."""

COLUMN = 120
"""Width at least, which captions need, of a photograph's column: a narrower photograph stands in its middle."""

DETAIL = 64
"""Side, in pixels of the photograph, of the detail that is enlarged."""

FRAME = (255, 200, 0)


def detail_box(first: Image.Image, second: Image.Image) -> tuple[int, int, int, int]:
    """The square of DETAIL pixels (or the whole of smaller pictures) in which two pictures of one size differ most."""
    width, height = first.size
    side = min(DETAIL, width, height)
    a, b = (np.asarray(picture.convert("L"), np.float64) for picture in (first, second))
    sums = np.pad((a - b) ** 2, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    squares = sums[side:, side:] - sums[:-side, side:] - sums[side:, :-side] + sums[:-side, :-side]
    top, left = np.unravel_index(int(squares.argmax()), squares.shape)
    return int(left), int(top), int(left) + side, int(top) + side


def _shown(picture: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    """A picture as large as it stands on the sheet, with a frame around the detail."""
    scale = min(ROWS / picture.height, max(COLUMN / picture.width, 1.0))
    size = (max(round(picture.width * scale), 1), max(round(picture.height * scale), 1))
    small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    left, top, right, bottom = (round(edge * scale) for edge in box)
    ImageDraw.Draw(small).rectangle((left, top, max(right - 1, left), max(bottom - 1, top)), outline=FRAME, width=2)
    return small


def sheet(pictures: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Captioned pictures of one size in a row, each above its detail, enlarged without smoothing."""
    first = pictures[0][1]
    box = detail_box(first, pictures[1][1])
    shown = [_shown(picture, box) for _, picture in pictures]
    width = max(shown[0].width, COLUMN)
    font = ImageFont.load_default(size=15)
    caption = 24
    whole = len(pictures) * (width + GAP) - GAP + 2 * MARGIN
    page = Image.new("RGB", (whole, 2 * MARGIN + caption + shown[0].height + GAP + width), "white")
    draw = ImageDraw.Draw(page)
    for i, ((text, picture), small) in enumerate(zip(pictures, shown, strict=True)):
        left, top = MARGIN + i * (width + GAP), MARGIN + caption
        draw.text((left, MARGIN), text, fill="black", font=font)
        page.paste(small, (left + (width - small.width) // 2, top))
        detail = picture.convert("RGB").crop(box).resize((width, width), Image.Resampling.NEAREST)
        page.paste(detail, (left, top + small.height + GAP))
    return page
