"""q8ta.js, the one file that a page loads: the modules of js/, joined."""

from __future__ import annotations

import importlib.resources
import re

ENTRY = "q8ta"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
_COMMENT = re.compile(r"^ *(//.*|/\*\*(.|\n)*?\*/)\n", re.MULTILINE)  # alone on its lines
_EXPORT = re.compile(r"^export (?=async function|function|class|const)", re.MULTILINE)


def types() -> str:
    """The text of q8ta.d.ts."""
    return _text("q8ta.d.ts")


def script() -> str:
    """The text of q8ta.js: the entry's comment, then every module behind those it imports, without comments.

    The modules share one scope there, so no two of them may define one name, and no import renames.
    """
    modules: dict[str, str] = {}

    def add(name: str) -> None:
        text = _text(f"{name}.js")
        for imported in _IMPORT.findall(text):
            if imported not in modules:
                add(imported)
        modules[name] = _IMPORT.sub("", text)

    add(ENTRY)
    comment, _, entry = modules.pop(ENTRY).partition("\n\n")
    parts = (comment, *(_EXPORT.sub("", _COMMENT.sub("", text)) for text in modules.values()), entry)
    return "\n\n".join(re.sub(r"\n{3,}", "\n\n", part).strip() for part in parts) + "\n"


def _text(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("js", name).read_text(encoding="utf-8")
