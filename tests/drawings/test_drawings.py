"""Pictures of a scheduled model: every node and edge once, nothing on top of another, names that cannot break out;
times as JSON."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from q8ta_wgpu import Session
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.commands.time import figures
from q8ta_wgpu.drawings.arrange import HEIGHT, WIDTH, arrange
from q8ta_wgpu.drawings.cards import Picture, picture
from q8ta_wgpu.drawings.html_page import page
from q8ta_wgpu.drawings.svg import svg
from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.timing import Timing
from testbed.layout_graphs import random_graph
from testbed.small import MIDDLE, small_input, small_model

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '</script><script>alert("x")</script>&'


def picture_of(model: Model, times: bool = False, policy: str = "optimal") -> Picture:
    graph = lower(model.graph, BASELINE)
    plan = sync_layouts(graph, BASELINE, policy)
    program = build(graph, BASELINE, plan)
    measured = [float(i + 1) for i in range(len(program.dispatches))] if times else None
    return picture("a model", graph, plan, program, model.report(), measured)


@st.composite
def acyclic(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """A number of cards, and edges from lower to higher ones."""
    count = draw(st.integers(1, 14))
    pairs = list(combinations(range(count), 2))
    return count, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []


@given(acyclic())
def test_cards_lie_apart_and_below_what_they_read(drawn: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = drawn
    arranged = arrange(count, edges)
    assert len(arranged.places) == count
    for (x, y), (u, v) in combinations(arranged.places, 2):
        assert abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT
    for x, y in arranged.places:
        assert WIDTH / 2 <= x <= arranged.width - WIDTH / 2 + 1e-6 and HEIGHT / 2 <= y <= arranged.height - HEIGHT / 2
    assert set(arranged.routes) == set(edges)
    for (start, end), route in arranged.routes.items():
        assert (route[0], route[-1]) == (arranged.places[start], arranged.places[end])
        assert [y for _, y in route] == sorted({y for _, y in route})
        for x, y in route[1:-1]:  # an edge passes no card
            assert all(abs(x - u) > WIDTH / 2 or abs(y - v) > HEIGHT / 2 for u, v in arranged.places)


def test_every_dispatch_is_a_card_with_what_it_reads() -> None:
    drawn = picture_of(small_model(), times=True)
    kinds = [card.kind for card in drawn.cards]
    assert kinds.count("input") == 1 and kinds.count("output") == 2
    numbers = [card.dispatch for card in drawn.cards if card.dispatch is not None]
    assert numbers == list(range(len(drawn.program.dispatches)))
    by_value = {card.value: card for card in drawn.cards if card.kind not in ("input", "output")}
    assert by_value["sum.q"].stages == () or "add" in by_value["sum.q"].stages
    assert by_value["y"].kind == "border"
    assert drawn.microseconds == sum(range(1, 1 + len(numbers)))
    readers = {drawn.cards[reader].value for writer, reader in drawn.edges if drawn.cards[writer].value == "first.q"}
    assert len(readers) == 2  # the second convolution, and the second output


def test_transitions_views_and_islands_are_marked() -> None:
    kinds = {card.kind for seed in range(4) for card in picture_of(Model(random_graph(seed, 12), Structure(0))).cards}
    assert {"transition", "view"} <= kinds
    graph = Graph(["x"], ["y"])
    shape = TensorType((1, 4, 4, 4), "int8x4", MIDDLE)
    graph.types = {"x": shape, "real": TensorType(shape.shape), "soft": TensorType(shape.shape), "y": shape}
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("softmax", ("real",), "soft", {"dim": 1}),
        Node("quantize", ("soft",), "y", {"lo": -128, "hi": 127}),
    ]
    island = next(card for card in picture_of(Model(graph, Structure(0))).cards if card.value == "soft")
    assert (island.kind, island.island) == ("float", True)
    assert island.reason == "softmax stays in float32: its scales have no int8 form in common"
    graph.notes = ["soft: softmax stays in float32: too wide (net.py:3)"]
    island = next(card for card in picture_of(Model(graph, Structure(0))).cards if card.value == "soft")
    assert island.reason == "softmax stays in float32: too wide (net.py:3)"


def test_the_drawing_is_xml_with_every_card_and_edge() -> None:
    drawn = picture_of(small_model(), times=True)
    hostile = replace(drawn, cards=(replace(drawn.cards[0], source=HOSTILE, title=HOSTILE), *drawn.cards[1:]))
    root = ElementTree.fromstring(svg(hostile))
    found = [group.get("data-card") for group in root.iter(f"{SVG}g") if group.get("data-card")]
    assert found == [str(i) for i in range(len(drawn.cards))]
    edges = [path for path in root.iter(f"{SVG}path") if path.get("class") == "edge" and path.get("d", "").count("C")]
    assert len(edges) == len(drawn.edges)
    assert sum(rect.get("class") == "heat" for rect in root.iter(f"{SVG}rect")) == len(drawn.program.dispatches)


def test_the_page_holds_the_shaders_and_loads_nothing() -> None:
    drawn = picture_of(small_model())
    hostile = replace(drawn, title=HOSTILE, cards=(replace(drawn.cards[0], value=HOSTILE), *drawn.cards[1:]))
    text = page(hostile)
    assert text.count("</script>") == 2 and text.count("<script") == 2
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}
    embedded = re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL)
    assert embedded
    data = json.loads(embedded.group(1))
    assert tuple(data["shaders"]) == drawn.program.shaders
    assert data["cards"][0]["facts"]["value"] == HOSTILE
    assert [card["shader"] for card in data["cards"] if card["shader"] is not None] == [
        d.shader for d in drawn.program.dispatches
    ]


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fast_sugiyama", None)
    with pytest.raises(UnsupportedError, match=r"q8ta-wgpu\[show\]"):
        svg(picture_of(small_model()))


def test_times_as_json() -> None:
    program = picture_of(small_model()).program
    samples = np.random.default_rng(0).uniform(1, 9, (3, len(program.dispatches)))
    timing = Timing("gpu", program, samples, samples.sum(axis=1), 400.0, 40.0)
    found = json.loads(json.dumps(figures(timing)))
    assert found["device"] == "gpu" and found["repeats"] == 3
    assert [d["us"] for d in found["dispatches"]] == pytest.approx(np.median(samples, axis=0).tolist())
    assert [d["kernel"] for d in found["dispatches"]] == [d.kernel for d in program.dispatches]


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], vulkan: Device
) -> None:
    monkeypatch.chdir(tmp_path)
    small_model().save("net.q8ta")
    assert main(["show", "net.q8ta", "--draw", "net.html"]) == 0
    assert main(["show", "net.q8ta", "--draw", "net.svg", "--time", "--device", "vulkan"]) == 0
    assert "net.svg: net.q8ta on " in capsys.readouterr().out
    with Session(small_model(), vulkan) as session:
        count = len(session.program.dispatches)
        session(small_input())
    assert Path("net.svg").read_text().count('class="heat"') == count
    assert main(["time", "net.q8ta", "--repeats", "2", "--device", "vulkan", "--json", "t.json"]) == 0
    assert len(json.loads(Path("t.json").read_text())["dispatches"]) == count
    assert "\nt.json: " in capsys.readouterr().out
    for wrong, told in (
        (["show", "net.q8ta", "--time"], "--draw"),
        (["show", "net.q8ta", "--draw", "net.txt"], ".html or .svg"),
        (["show", "net.q8ta", "--draw", "none/net.svg"], "no folder none"),
        (["time", "net.q8ta", "--json", "t.txt"], ".json"),
        (["show", "net.q8ta", "--draw", "net.svg", "--time", "--device", "reference"], "timestamp"),
    ):
        assert main(wrong) == 2
        assert told in capsys.readouterr().err
