"""`python -m bench family`: numbers that explain times, and the file that the library reads them from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import family
from bench.options import Options
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.kernels.product import speeds
from q8ta_wgpu.kernels.product.gemm import TILES, bytes_along
from testbed.op_graphs import rng


@pytest.mark.parametrize("name", ["units_160x128", "units_32x32_deep", "64x64", "16x16"])
def test_the_fit_explains_times_of_a_known_speed(name: str) -> None:
    """Within the noise of 2 % that is put in; a factor of 1 means no difference."""
    true, tile, noise = speeds.SPEEDS[name], TILES[name], rng("family", name)
    measured = []
    for rows, channels, depth in family.sizes():
        for joined in (False, True):
            groups, work = tile.groups(rows, channels), 2e-6 * tile.m * tile.n * bytes_along(tile, -(-depth // 16))
            us = true.microseconds(groups, work, joined) * float(np.exp(0.02 * noise.standard_normal()))
            measured.append((groups, work, joined, us))
    found, factor = family.fitted(measured)
    assert factor < 1.06, found
    ratios = [found.microseconds(g, w, False) / true.microseconds(g, w, False) for g, w, *_ in measured]
    assert np.exp(np.abs(np.log(ratios)).mean()) < 1.05, found


def test_adapters_whose_rules_read_no_speeds_are_refused() -> None:
    with pytest.raises(InputError, match="has no int8 matrix units"):
        family.part_family(Options(adapter="wgpu-native:vulkan"))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    family.write("Some GPU 7", speeds.SPEEDS, tmp_path / "new" / "some.json")
    assert speeds._read(tmp_path / "new" / "some.json") == ("Some GPU 7", speeds.SPEEDS)
