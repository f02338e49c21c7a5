"""Records attempts to break the library: rows in docs/faults.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.figures import origin, write

FIGURES = Path(__file__).parents[1] / "docs" / "faults.json"


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
    return [Tried(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] if path.exists() else []


def record(found: Sequence[Tried]) -> None:
    """Prints rows, and replaces older rows of the same attempts."""
    for row in found:
        print(f"{row.what}, {row.count:,} times, {row.where}: {row.happened}", flush=True)
    rows = {(row.what, row.where): row for row in [*read(), *found]}
    adapters = sorted({row.where for row in rows.values()})
    data = origin("python -m bench soak fuzz --count 100000", adapters)
    write(FIGURES, {**data, "rows": [asdict(row) for row in rows.values()]}, "rows")
