"""What AMD's compiler says of the kernels, as docs/amd.json has it."""

from __future__ import annotations

from collections.abc import Mapping

from bench.figures import read
from q8ta_wgpu.kernels.lib.thresholds import PADDED
from q8ta_wgpu.kernels.product.gemm import TILES, padded_elements

ROWS = 1 << 16
"""Rows of a result that fills a GPU."""


def chosen(weights: Mapping[str, float], channels: int) -> str:
    """The large tile for a result of so many channels."""
    return min(weights, key=lambda label: padded_elements(TILES[label], ROWS, channels) * weights[label])


def test_amds_estimate_chooses_the_tiles_that_an_h200_does() -> None:
    """So AMD's families need no speeds of their own, where they have packed dot products."""
    data = read("amd")
    packed, element = (data["columns"].index(column) for column in ("packed dots", "element"))
    met = [row[element] for row in data["rows"] if row[packed] == "yes"]
    assert len(met) > 4
    for weights in met:
        assert [chosen(weights, n) for n in range(1, 1025)] == [chosen(PADDED, n) for n in range(1, 1025)], weights
