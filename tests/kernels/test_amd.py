"""Every kernel that an AMD GPU may run, by AMD's compiler: Mesa's RADV on a GPU that is not there (testbed/radv.py)."""

from __future__ import annotations

import platform

import pytest

from q8ta_wgpu.kernels.lib.thresholds import EMULATED
from testbed import radv
from testbed.sample import EVERYTHING

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="RADV is a driver for Linux on x86-64"
)
WAVES = 4
"""Subgroups that a SIMD must have room for, so that one computes while others wait for memory."""


def compiled(family: str, first: int = 0, every: int = 1) -> list[radv.Row]:
    """`radv.compiled`, skipped where Mesa is too new to compile for a GPU that is not there."""
    try:
        return radv.compiled(family, first, every)
    except radv.NoNullDevice as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("first", "family", "packed"), [(0, "navi23", True), (1, "vega10", False)])
def test_amds_compiler_takes_every_kernel(first: int, family: str, packed: bool) -> None:
    """RDNA 2, which has packed dot products, and GCN, which has none: nothing fails, spills registers, or needs scratch
    memory. The tiles that are chosen on GCN leave room for WAVES subgroups. Outside of `make test-all` a kernel meets
    one of the two."""
    rows = compiled(family) if EVERYTHING else compiled(family, first, 2)
    assert len(rows) > 200
    assert {row["packed_dot"] for row in rows} == {packed}
    assert [row for row in rows if "error" in row] == []
    assert [row for row in rows if row["spilled"] or row["spilled_sgprs"] or row["scratch"]] == []
    tiles = [row for row in rows if row["kernel"].split()[0].endswith(tuple(f"_{tile}" for tile in EMULATED))]
    products = [row for row in tiles if not row["kernel"].startswith("q8ta_conv2d_image")]
    assert len(products) > (10 if EVERYTHING else 4)
    assert packed or [row for row in products if row["waves"] < WAVES] == []


def test_what_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that RADV does not know, and a machine without drivers: a failure, which says what to install."""
    with pytest.raises(RuntimeError, match=r"RADV could not compile for navi99: .*Unknown family"):
        compiled("navi99")
    monkeypatch.setenv("VK_DRIVER_FILES", "/nowhere.json")
    with pytest.raises(RuntimeError, match=r"for navi23: vulkan.*Driver\. It takes .* mesa-vulkan-drivers"):
        radv.compiled("navi23")
