"""What `mkdocs build` needs beside mkdocs.yml: pages from elsewhere in the repository, and the order of all pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

ELSEWHERE = {
    "README.md": "index.md",
    "kernels/README.md": "shaders.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
}
"""Pages outside docs/, and what they are called in the site."""

SECTIONS = {
    "Use": {
        "index.md": "q8ta_wgpu",
        "quickstart.md": "Quick start",
        "quantizing.md": "Quantizing your network",
        "precision.md": "Precision and masks",
        "compare.md": "When accuracy drops",
        "decoders.md": "Decoders and their caches",
        "onnx.md": "ONNX networks",
        "web.md": "In a web page",
        "engines.md": "Engines, adapters, matrix units",
    },
    "Look up": {
        "operators.md": "Operators",
        "reference.md": "API reference",
        "commands.md": "Commands and errors",
        "arithmetic.md": "The arithmetic contract",
        "layouts.md": "Layouts and layout sync",
        "security.md": "Security",
    },
    "Understand": {
        "architecture.md": "Architecture",
        "shaders.md": "Kernels",
        "executorch.md": "Coming from ExecuTorch Vulkan",
        "contributing.md": "Writing an operator, a kernel, a pass",
    },
    "Judge": {
        "performance.md": "Performance",
        "accuracy.md": "Accuracy",
        "zoo.md": "Networks that were tried",
        "portability.md": "Portability",
        "experiments.md": "What did not help",
        "changelog.md": "Changes",
        "conduct.md": "Code of conduct",
    },
}
"""Pages in order; those that a checkout lacks are left out, those that are not here come last."""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from elsewhere, and orders all."""
    for source, name in ELSEWHERE.items():
        assert files.get_file_from_path(name) is None, f"docs/{name} would be hidden by {source}"
        if (ROOT / source).exists():
            content = _links((ROOT / source).read_text(encoding="utf-8"), posixpath.dirname(source))
            files.append(File.generated(config, name, content=content))
    there = {file.src_uri for file in files.documentation_pages()}
    known = {name for pages in SECTIONS.values() for name in pages}
    nav = [
        {section: [{title: name} for name, title in pages.items() if name in there]}
        for section, pages in SECTIONS.items()
    ]
    config.nav = [*nav, *sorted(there - known)]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of a page in docs/ to pages from elsewhere."""
    generated = page.file.src_uri in ELSEWHERE.values()
    return markdown if generated else _links(markdown, "docs")


def _links(text: str, folder: str) -> str:
    """Links and pictures that leave their folder, as the site has them; what it has not becomes plain text."""

    def moved(found: re.Match[str]) -> str:
        mark, words, target, anchor = found.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in ELSEWHERE:
            return f"{mark}[{words}]({ELSEWHERE[path]}{anchor or ''})"
        if path.startswith("docs/"):
            return f"{mark}[{words}]({path.removeprefix('docs/')}{anchor or ''})"
        return words

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)", moved, text)
