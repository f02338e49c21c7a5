"""Writes a model for web pages."""

from __future__ import annotations

import argparse

from q8ta_wgpu.model.model import load
from q8ta_wgpu.web import export


def export_web(options: argparse.Namespace) -> None:
    """`export-web FILE FOLDER`: writes the folder and prints its size."""
    folder = export.export_web(load(options.file), options.folder)
    sizes = (f"{path.name} {path.stat().st_size / 1e3:.1f} kB" for path in sorted(folder.iterdir()))
    print(f"{folder}: {', '.join(sizes)}")
