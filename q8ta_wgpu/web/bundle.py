"""The scripts that pages load, each in one file: q8ta.js, and check.js with it. They are modules of js/, joined."""

from __future__ import annotations

import importlib.resources
import re

ENTRY = "q8ta"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"^ *(//.*|/\*\*(.|\n)*?\*/)\n", re.MULTILINE)  # alone on its lines
_EXPORT = re.compile(r"^export (?=async function|function|class|const)", re.MULTILINE)


def files() -> dict[str, bytes]:
    """q8ta.js and its types, by names of files."""
    return {"q8ta.js": script().encode(), "q8ta.d.ts": _text("q8ta.d.ts").encode()}


def script(start: str = ENTRY) -> str:
    """The text of a script: the comment of the module it starts from, then every module behind those it imports,
    without comments.

    The modules share one scope there, so no two of them may define one name, and no import renames.
    """
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        text = _text(f"{name}.js")
        for imported in _IMPORT.findall(text):
            if imported not in modules:
                add(imported)
        modules[name] = _IMPORT.sub("", text)

    add(start)
    comment, _, entry = modules.pop(start).partition("\n\n")
    parts = (comment, *(_EXPORT.sub("", _COMMENT.sub("", text)) for text in modules.values()), entry)
    return "\n\n".join(re.sub(r"\n{3,}", "\n\n", part).strip() for part in parts) + "\n"


def page() -> dict[str, bytes]:
    """The files of the page that checks a browser, by name, but for the cases it runs."""
    folder = importlib.resources.files(__package__).joinpath("page")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {**files, "check.js": script("check").encode()}


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("js", name).read_text(encoding="utf-8")
