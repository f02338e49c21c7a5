"""A drawing as one HTML page: pan, zoom, search, and a click for a card's facts and WGSL. It loads nothing."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from q8ta_wgpu.drawings.cards import Card, Picture
from q8ta_wgpu.drawings.svg import svg


def page(picture: Picture) -> str:
    """The page's text. Raises UnsupportedError where fast_sugiyama is not installed."""
    data = {"cards": [_described(picture, card) for card in picture.cards], "shaders": picture.program.shaders}
    # Names come from files: inside a script they must not look like a tag.
    parts = {"title": escape(picture.title), "svg": svg(picture), "data": json.dumps(data).replace("<", "\\u003c")}
    head, *rest = files("q8ta_wgpu.drawings").joinpath("html_page.html").read_text(encoding="utf-8").split("<!--")
    filled = [head]
    for part in rest:
        name, _, text = part.partition("-->")
        filled += [parts[name], text]
    return "".join(filled)


def _described(picture: Picture, card: Card) -> dict[str, Any]:
    """The page's data of a card: a title, facts by name, and the index of its shader."""
    facts = {"value": card.value, "type": card.type, "layout": card.layout, "from": card.source}
    facts |= {"stages": " ▸ ".join(card.stages), "why float32": card.reason}
    if card.island:
        facts["island"] = "lies between int8 values"
    if card.dispatch is None:
        return {"title": card.title, "facts": {k: v for k, v in facts.items() if v}, "shader": None}
    dispatch = picture.program.dispatches[card.dispatch]
    facts |= {
        "reads": ", ".join(card.reads),
        "layouts": f"{' '.join(dispatch.layouts[:-1])} -> {dispatch.layouts[-1]}",
        "workgroups": " x ".join(map(str, dispatch.grid)),
        "bytes": f"{dispatch.moved:,} read and written",
        "work": f"{dispatch.macs:,} multiply-accumulates" if dispatch.macs else "",
    }
    if card.microseconds is not None:
        facts["time"] = f"{card.microseconds:.1f} us of {picture.microseconds:.1f}"
    return {"title": card.title, "facts": {k: v for k, v in facts.items() if v}, "shader": dispatch.shader}
