"""Records attempts to break the library: rows in docs/faults.json, and the table in docs/faults.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FIGURES = Path(__file__).parents[1] / "docs" / "faults.json"
PAGE = FIGURES.with_suffix(".md")


@dataclass(frozen=True)
class Tried:
    """One row.

    Attributes:
        what: what was tried.
        where: the adapter or engine, or 'host'.
        count: number of attempts.
        happened: the outcome.
    """

    what: str
    where: str
    count: int
    happened: str


def read(path: Path = FIGURES) -> list[Tried]:
    """The rows of a file; an empty list if there is no file."""
    return [Tried(**row) for row in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def table(rows: Iterable[Tried]) -> str:
    """A Markdown table: a line for each kind and number of attempts, a column for each adapter or engine."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row in rows:
        found.setdefault((row.what, row.count), {})[row.where] = row.happened
    columns = list(dict.fromkeys(where for cells in found.values() for where in cells))
    lines = [f"| tried | times | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    for (what, count), cells in found.items():
        lines.append(f"| {what} | {count:,} | {' | '.join(cells.get(column, '') for column in columns)} |")
    return "\n".join(lines)


def record(found: Sequence[Tried]) -> None:
    """Prints rows, replaces older rows of the same attempts, and writes both files."""
    print(table(found), flush=True)
    rows: Mapping[tuple[str, str], Tried] = {(r.what, r.where): r for r in [*read(), *found]}
    FIGURES.write_text(json.dumps([asdict(r) for r in rows.values()], indent=1) + "\n")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(re.sub(r"\| tried \|.*(\n\|.*)*", lambda _: table(rows.values()), page), encoding="utf-8")
