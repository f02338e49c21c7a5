"""Draws docs/images/layouts.svg, `python docs/draw_layouts.py`: which word of its buffer holds each element."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from q8ta_wgpu.ir.layout import INT8_LAYOUTS, Layout, unpack, word_count

TARGET = Path(__file__).parent / "images" / "layouts.svg"
SHAPE = (1, 8, 4, 8)
_CELL, _GAP, _TITLE = 15, 12, 40
_COLOURS = ("#cfe3f3", "#d3ecdc", "#fbe3bd", "#f3d6e6", "#dcd6ef", "#e6e6c8", "#f7d4cd", "#d5e9ea")


def words_of(layout: Layout) -> np.ndarray:
    """The word that holds each element of SHAPE, (8, 4, 8)."""
    count = word_count(SHAPE, layout)
    assert count <= 256  # a word's number is the value of its four elements
    numbers = np.repeat(np.arange(count, dtype=np.uint8), 4).view(np.uint32)
    found: np.ndarray = unpack(numbers, SHAPE, layout)[0].view(np.uint8)
    return found


def drawing() -> str:
    """The picture: a row for each layout, a grid of h x w for each channel, every cell with the number of its word."""
    _, channels, height, width = SHAPE
    across, down = width * _CELL + _GAP, height * _CELL + _TITLE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {channels * across} {len(INT8_LAYOUTS) * down}">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        "<style>text { font: 8px monospace; fill: #222; text-anchor: middle; } .t { font-size: 13px; "
        "text-anchor: start; }</style>",
    ]
    for row, layout in enumerate(INT8_LAYOUTS):
        top, words = row * down + _TITLE - 12, words_of(layout)
        title = f"{layout.short}: number of the word that holds an element (c, h, w); channels 0 to 7 side by side"
        parts.append(f'<text class="t" x="0" y="{top - 10}">{title}</text>')
        for (c, h, w), word in np.ndenumerate(words):
            x, y = c * across + w * _CELL, top + h * _CELL
            fill = _COLOURS[word % len(_COLOURS)]
            parts.append(f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="{fill}" stroke="#999"/>')
            parts.append(f'<text x="{x + _CELL / 2}" y="{y + 11}">{word}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(drawing(), encoding="utf-8")
