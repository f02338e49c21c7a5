"""Figures in the pages of documentation are those that were measured, by commands that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import figures
from bench.__main__ import PARTS
from bench.blocks import BLOCKS

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path for glob in ("*.md", "docs/*.md", "kernels/*.md") for path in ROOT.glob(glob)
}
each_page = pytest.mark.parametrize("page", PAGES)


@each_page
def test_figures(page: str) -> None:
    """Blocks of figures are what the JSON files hold: `python -m bench figures` makes them anew."""
    text = PAGES[page].read_text(encoding="utf-8")
    assert figures.filled(text) == text
    assert text.count("<!-- figures: ") == text.count("<!-- end -->") == len(figures.BLOCK.findall(text))


MEASURED = re.compile(
    r"\b[\d.,]+ ?(?:ms|µs|microseconds|milliseconds|seconds|TOPS|GB/s|dB|%|images a second|MiB)(?!\w)"
)
OTHERWISE = {
    "docs/arithmetic.md": "tests/kernels/test_attention_accuracy.py",
    "docs/compare.md": "docs/compare.md",  # its own example, which runs
    "docs/experiments.md": "docs/experiments.csv",
    "docs/precision.md": "q8ta_wgpu/quantization/rules.py",  # limits
    "docs/zoo.md": "docs/zoo.json",
}
"""Pages with figures outside blocks, and what holds them."""


@each_page
def test_figures_stand_in_blocks(page: str) -> None:
    """A measured number comes from a JSON file, by a block of `bench.blocks`."""
    prose = re.sub(r"^```.*?^```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    if page in OTHERWISE:
        assert (ROOT / OTHERWISE[page]).exists()
    elif PAGES[page] in figures.PAGES:
        assert MEASURED.findall(figures.BLOCK.sub("", prose)) == []


def test_documents_are_short() -> None:
    """README, SECURITY, docs and kernels have at most 18,000 words, bars of tables and the list of operators apart."""
    pages = {page: path for page, path in PAGES.items() if "/" in page or page in ("README.md", "SECURITY.md")}
    counts = {page: len(path.read_text(encoding="utf-8").replace("|", " ").split()) for page, path in pages.items()}
    assert sum(counts.values()) - counts["docs/operators.md"] <= 18_000, counts


def test_every_block_is_shown() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in figures.PAGES)
    assert {found[0] for found in figures.BLOCK.findall(text)} == set(BLOCKS)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in sorted(figures.DOCS.glob("*.json"))])
def test_figures_say_how_they_were_measured(path: Path) -> None:
    """The command, which exists, the adapter, versions, the commit and the date."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for each in data if isinstance(data, list) else [data]:
        assert each.keys() >= set(figures.ORIGIN)
        assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?", each["commit"]) and re.fullmatch(
            r"20\d\d-\d\d-\d\d", each["date"]
        )
        command = each["command"].split()
        assert command[:3] == ["python", "-m", "pytest"] or {word for word in command[3:] if word.isalpha()} <= set(
            PARTS
        )


@each_page
def test_parts(page: str) -> None:
    """Each `python -m bench PART` that a page names is one."""
    text = PAGES[page].read_text(encoding="utf-8")
    named = re.findall(r"python -m bench ([a-z][a-z0-9_-]*(?: [a-z][a-z0-9_-]*)*)", text)
    assert [part for words in named for part in words.split()[:1] if part not in PARTS] == []
