"""Prints why values are stored as they are."""

from __future__ import annotations

import argparse

from q8ta_wgpu.commands.arguments import opened


def explain(options: argparse.Namespace) -> None:
    """`explain FILE [VALUE]`: the decisions about a value, or about all of them."""
    print(opened(options.file).explain(options.value))
