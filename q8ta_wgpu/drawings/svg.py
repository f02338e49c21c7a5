"""A drawing as SVG: cards in layers, coloured by what they compute in; edges coloured by layout."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from q8ta_wgpu.drawings.arrange import HEIGHT, WIDTH, Point, arrange
from q8ta_wgpu.drawings.cards import Card, Picture

LAYOUTS = {
    "4W": "#0072b2",
    "4C": "#009e73",
    "4C1W": "#56b4e9",
    "4W4C": "#cc79a7",
    "4H4W": "#e69f00",
    "WIDTH_PACKED": "#888888",
    "constant": "#bbbbbb",
}
"""Colours of layouts that people who confuse red and green can distinguish (Okabe and Ito)."""

KINDS = {
    "int8": ("int8", "#ffffff"),
    "float": ("float32", "#fde0dd"),
    "border": ("between float32 and int8", "#e6eefa"),
    "transition": ("transition: a copy into another layout", "#fff2c4"),
    "view": ("free view: another name of the same buffer", "#f2f2f2"),
    "input": ("input, output", "#e4f2e4"),
}
"""For each kind of card its name in the legend and its fill. Outputs are filled like inputs."""

STYLE = """
text { font: 11px ui-monospace, "DejaVu Sans Mono", monospace; fill: #222; }
.title { font-weight: bold; }
.weak { fill: #666; }
.card { cursor: pointer; }
.card > rect.box { stroke: #999; }
.card.transition > rect.box, .card.view > rect.box { stroke-dasharray: 5 3; }
.card.island > rect.box { stroke: #c00; stroke-width: 3; }
.card:hover > rect.box, .card.chosen > rect.box { stroke: #000; stroke-width: 2.5; }
.edge { fill: none; stroke-width: 2; }
.heat { fill: #d62728; }
.why { fill: #a00; }
"""

_LETTERS = 34
"""Letters that fit into a card."""

_MARGIN, _LEGEND = 24.0, 84.0


def svg(picture: Picture) -> str:
    """The whole drawing, which a browser opens by itself.

    Cards have the class of their kind, and their number as `data-card`. Raises UnsupportedError where fast_sugiyama is
    not installed.
    """
    cards, edges = picture.cards, picture.edges
    arranged = arrange(len(cards), edges)
    width, height = max(arranged.width, 4.4 * WIDTH) + 2 * _MARGIN, arranged.height + _LEGEND + 2 * _MARGIN
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" preserveAspectRatio="xMidYMin"><style>{STYLE}</style>',
        f'<g transform="translate({_MARGIN} {_MARGIN})">',
        _legend(picture),
        f'<g transform="translate({(width - arranged.width) / 2 - _MARGIN:.0f} {_LEGEND})">',
    ]
    for edge in edges:
        drawn.append(_edge(cards[edge[0]], cards[edge[1]], arranged.routes[edge]))
    slowest = max((card.microseconds or 0.0 for card in cards), default=0.0)
    for number, (card, place) in enumerate(zip(cards, arranged.places, strict=True)):
        drawn.append(_card(picture, number, card, place, slowest))
    return "\n".join([*drawn, "</g></g></svg>"])


def _legend(picture: Picture) -> str:
    """The title and the meaning of colours: layouts that occur, and every kind of card."""
    used = {card.layout for card in picture.cards}
    parts = [f'<text class="title" x="0" y="10" style="font-size:14px">{escape(picture.title)}</text>']
    x = 0.0
    for name in (name for name in LAYOUTS if name in used):
        parts.append(f'<path class="edge" d="M{x:.0f} 28 h24" stroke="{LAYOUTS[name]}" style="stroke-width:4"/>')
        parts.append(f'<text x="{x + 30:.0f}" y="32">{_layout_name(name)}</text>')
        x += 48 + 7 * len(_layout_name(name))
    x = 0.0
    for meaning, fill in KINDS.values():
        parts.append(f'<rect x="{x:.0f}" y="44" width="14" height="12" fill="{fill}" stroke="#999"/>')
        parts.append(f'<text x="{x + 20:.0f}" y="54">{meaning}</text>')
        x += 36 + 7 * len(meaning)
    return "".join(parts)


def _layout_name(name: str) -> str:
    return "rows" if name == "WIDTH_PACKED" else name


def _edge(writer: Card, reader: Card, route: Sequence[Point]) -> str:
    """A curve that leaves and enters every point vertically, with the value and its layout as tooltip."""
    points = [(route[0][0], route[0][1] + HEIGHT / 2), *route[1:-1], (route[-1][0], route[-1][1] - HEIGHT / 2)]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        path += f" C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"
    (x, y), colour = points[-1], LAYOUTS.get(writer.layout, "#444444")
    tip = f'<path d="M{x - 4:.1f} {y - 7:.1f} L{x:.1f} {y:.1f} L{x + 4:.1f} {y - 7:.1f} z" fill="{colour}"/>'
    about = escape(f"{writer.value}: {writer.type}, {_layout_name(writer.layout)}, read by {reader.title}")
    return f'<g><title>{about}</title><path class="edge" d="{path}" stroke="{colour}"/>{tip}</g>'


def _card(picture: Picture, number: int, card: Card, place: Point, slowest: float) -> str:
    x, y = place[0] - WIDTH / 2, place[1] - HEIGHT / 2
    fill = KINDS["input" if card.kind == "output" else card.kind][1]
    lines = [(card.title, "title"), (card.value, ""), (_shape(card), ""), (_cost(picture, card), "weak")]
    if card.reason:
        lines.append((card.reason, "why"))
    elif card.stages not in ((), ("requantize",)):
        lines.append((" ▸ ".join(card.stages), ""))
    elif card.source:
        lines.append((card.source, "weak"))
    texts = "".join(
        f'<text class="{css}" x="{x + 14:.1f}" y="{y + 16 + 16 * i:.1f}">{escape(_cut(text))}</text>'
        for i, (text, css) in enumerate(lines)
    )
    heat = ""
    if card.microseconds and slowest:
        long = (WIDTH - 8) * card.microseconds / slowest
        heat = f'<rect class="heat" x="{x + 8:.1f}" y="{y + HEIGHT - 4:.1f}" width="{long:.1f}" height="4"/>'
    island = " island" if card.island else ""
    return (
        f'<g class="card {card.kind}{island}" data-card="{number}"><title>{escape(_about(card))}</title>'
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="{fill}"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="8" height="{HEIGHT}" fill="{LAYOUTS.get(card.layout, "#444444")}"/>'
        f"{texts}{heat}</g>"
    )


def _shape(card: Card) -> str:
    """Dtype and shape, without scale and zero point, and the layout."""
    return f"{card.type.partition(']')[0]}] {_layout_name(card.layout)}"


def _cost(picture: Picture, card: Card) -> str:
    """Time where it was measured, its share, and bytes moved."""
    if card.dispatch is None:
        return ""
    moved = f"{picture.program.dispatches[card.dispatch].moved / 2**10:,.0f} KiB"
    if card.microseconds is None:
        return moved
    return f"{card.microseconds:.1f} us {card.microseconds / max(picture.microseconds, 1e-9):.1%} {moved}"


def _about(card: Card) -> str:
    """The full text of a card whose lines are cut."""
    parts = [card.title, " ▸ ".join(card.stages), f"{card.value}: {card.type}", card.source, card.reason]
    return "\n".join(part for part in parts if part)


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
