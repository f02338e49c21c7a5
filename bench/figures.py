"""Figures of README and docs: JSON files that commands write, and the blocks of pages that are made of them.

A block stands between `<!-- figures: NAME -->` and `<!-- end -->`. `python -m bench figures` makes all of them anew.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.options import Options

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"(?<=<!-- figures: )([\w ]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
ORIGIN = ("command", "adapter", "versions", "commit", "date")
"""What every file says of how its figures were measured."""

Data = dict[str, Any]


def origin(command: str, adapter: str | Sequence[str], packages: Sequence[str] = ()) -> Data:
    """How figures are measured now: the command, where it runs, versions of packages, the commit and the date."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    installed = {found.name: found.version for found in metadata.distributions()}
    versions = {name: installed[name] for name in packages if name in installed}
    found = (command, adapter, versions, done.stdout.strip() or "unknown", date.today().isoformat())
    return dict(zip(ORIGIN, found, strict=True))


def write(path: Path, data: Mapping[str, Any], *listed: str) -> None:
    """Writes figures as JSON; `listed` are keys of lists that have a line for each element."""
    short = {key: value for key, value in data.items() if key not in listed}
    text = json.dumps(short, indent=1, ensure_ascii=False).removesuffix("\n}")
    for key in listed:
        rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in data[key])
        text += f',\n "{key}": [\n{rows}\n ]'
    path.write_text(f"{text}\n}}\n", encoding="utf-8")


def read(name: str) -> Any:
    """The figures of docs/NAME.json."""
    return json.loads((DOCS / f"{name}.json").read_text(encoding="utf-8"))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    lines = [f"|{'|'.join(map(str, line))}|" for line in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]])


def source(data: Mapping[str, Any], name: str, folder: str = "") -> str:
    """The line below a block: the command, where and when it ran."""
    adapter = data["adapter"] if isinstance(data["adapter"], str) else "; ".join(data["adapter"])
    return f"`{data['command']}`, {adapter}, {data['date']} ([all figures]({folder}{name}.json))."


def filled(text: str) -> str:
    """A page with its blocks as the figures are now. Raises KeyError for a block that does not exist."""
    from bench.blocks import BLOCKS

    return BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{BLOCKS[found[1]]()}\n\n", text)


def part_figures(options: Options) -> None:
    """Makes the blocks of all pages anew."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (made := filled(text)) != text:
            page.write_text(made, encoding="utf-8")
            print(page.relative_to(ROOT))
