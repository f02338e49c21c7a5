"""Generates WGSL functions between indices and coordinates from the table of layouts (`ir.layout.PACKINGS`).

p and d are (n, c, h, w): an element's coordinates and the tensor's extents. `index_4C(p, d)` is the index of the word
that holds the element. `coord_4C(word, d)` is the coordinates of lane 0 of a word; for padding words they lie outside
the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator

from q8ta_wgpu.ir.layout import PACKINGS, ROW_MAJOR, ROWS, Packing

_AXIS = dict(zip("NCHW", "xyzw", strict=True))


def layout_functions() -> Iterator[str]:
    """The functions of every layout, including row-major floats."""
    for layout, packing in {ROW_MAJOR: ROWS, **PACKINGS}.items():
        yield _index(layout.short, packing)
        yield _coord(layout.short, packing)


def _extent(letter: str, packing: Packing) -> str:
    """Number of values that a letter of `Packing.order` takes."""
    if letter.islower():
        return "4u"
    extent = f"d.{_AXIS[letter]}"
    return extent if packing.block("NCHW".index(letter)) == 1 else f"quads({extent})"


def _digit(letter: str, packing: Packing) -> str:
    axis = f"p.{_AXIS[letter.upper()]}"
    if letter.islower():
        return f"{axis} % 4u"
    return axis if packing.block("NCHW".index(letter)) == 1 else f"{axis} / 4u"


def _index(name: str, packing: Packing) -> str:
    first, rest = packing.order[0], packing.order[1:]
    word = _digit(first, packing)
    for letter in rest:
        word = f"{f'({word})' if ' ' in word else word} * {_extent(letter, packing)} + {_digit(letter, packing)}"
    return f"fn index_{name}(p: vec4<u32>, d: vec4<u32>) -> u32 {{ return {word}; }}"


def _coord(name: str, packing: Packing) -> str:
    first, rest = packing.order[0], packing.order[1:]
    lines, terms = ["let r0 = word;"], dict[str, list[str]]()
    for turn, letter in enumerate(reversed(rest)):
        extent = _extent(letter, packing)
        lines.append(f"let r{turn + 1} = r{turn} / {extent};")
        blocks = letter.isupper() and packing.block("NCHW".index(letter)) > 1
        terms.setdefault(letter.upper(), []).append(f"r{turn} % {extent}{' * 4u' if blocks else ''}")
    terms[first] = [f"r{len(rest)}"]
    position = ", ".join(" + ".join(terms[axis]) for axis in "NCHW")
    body = "\n  ".join((*lines, f"return vec4<u32>({position});"))
    return f"fn coord_{name}(word: u32, d: vec4<u32>) -> vec4<u32> {{\n  {body}\n}}"
