"""`python -m q8ta_wgpu check`: what it says of right and of wrong adapters, and that its samples reach the kernels."""

from __future__ import annotations

import functools
import gzip
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from q8ta_wgpu.__main__ import main
from q8ta_wgpu.commands import check, devices, example, export_web
from q8ta_wgpu.ir.graph import RANGES
from q8ta_wgpu.ir.target import BASELINE, MatrixUnit, Target
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.web import web_folder
from testbed import insides
from testbed.small import small_model

Captured = pytest.CaptureFixture[str]


@functools.cache
def every_sample(target: Target) -> tuple[example.Sample, ...]:
    """The samples of a target, made once."""
    return tuple(example.samples(target))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """A dozen kernels stand for all, which compile for ten seconds. Of those in this set a wrong byte is expected."""
    wrong = set[str]()

    def samples(target: Target) -> Iterator[example.Sample]:
        for sample in itertools.islice(example.samples(target), 12):
            sample.expected.reshape(-1)[0] ^= sample.kernel in wrong
            yield sample

    monkeypatch.setattr(check, "samples", samples)
    return wrong


def test_the_page_of_checks_holds_every_kernel_and_is_small(tmp_path: Path) -> None:
    """But those of matrix units, which no browser has, and which have trials of their own, and those whose loops the
    library writes out, as it does for lavapipe alone."""
    export_web.write_check({}, tmp_path, "1.0", every_sample)
    whole = gzip.decompress((tmp_path / "cases.bin").read_bytes())
    kernels = json.loads(whole[4 : 4 + int.from_bytes(whole[:4], "little")])["kernels"]
    reached = {kernel.split(" with ")[0] for kernel in kernels}
    names = {kernel.name for op in OPS.values() if op.name.startswith(("q8ta_", "q16ta_")) for kernel in op.kernels}
    assert {name for name in names - reached if "units" not in name and "dw_4x4" not in name} == set()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1e6
    assert main(["export-web", str(tmp_path)]) == 2, "without --check it takes a model"


def test_samples_are_no_trivial_ones() -> None:
    """Results of sums take many values, and few of them are at the ends. Those that pages compare vary, too."""
    for sample in every_sample(BASELINE):
        stored = {name: sample.graph.stored(name, array) for name, array in web_folder.sample(sample.graph).items()}
        made_up = reference.run(sample.graph, stored)[sample.graph.outputs[0]]
        assert np.unique(made_up).size > min(3, np.unique(sample.expected).size) - 1, sample.kernel
        low, high = RANGES[sample.graph.types[sample.graph.outputs[0]].dtype]
        if sample.kernel.startswith(("q8ta_conv", "q8ta_linear")) and sample.expected.size > 40:
            assert np.unique(sample.expected).size > 20, sample.kernel
            assert ((sample.expected <= low + 1) | (sample.expected >= high)).mean() < 0.6, sample.kernel


@pytest.mark.usefixtures("few")
def test_a_right_adapter_and_a_model(vulkan: Device, tmp_path: Path, capsys: Captured) -> None:
    small_model().save(tmp_path / "net.q8ta")
    assert main(["check", str(tmp_path / "net.q8ta"), "--device", "wgpu-native:vulkan"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"0: {vulkan.name}" in lines
    assert "wgpu " in lines[0] and "numpy " in lines[0]
    info = vulkan.wgpu.adapter.info
    assert any(
        line.startswith(f"  {info['adapter_type']}, ids ") and line.endswith(info["description"]) for line in lines
    )
    said = [line for line in lines if line.endswith(" ...")]
    assert len(said) == 4 and "every kernel" in said[1] and "reference" in said[3]
    assert any(line.startswith("  kernels: 12 compiled and run in ") and ", 0 of " in line for line in lines)
    assert any(line.startswith("  model: 0 of 4032 bytes differ") for line in lines)
    assert lines[-1] == f"verdict: right bytes from {vulkan.name}"


def test_families_that_nobody_measured(vulkan: Device, capsys: Captured) -> None:
    """Numbers of tiles are asked for where a rule would read them."""
    for units, asked in ((), False), ((MatrixUnit(16, 16, 32, 32),), True):
        target = replace(vulkan.target, name="a new GPU", shares_memory=True, matrix_units=units)
        assert list(check.checked(insides.like(vulkan, target=target), None, ())) == []
        said = capsys.readouterr().out
        assert devices.UNKNOWN in said and (devices.FAMILY in said) == asked


def test_a_wrong_adapter(vulkan: Device, capsys: Captured, few: set[str]) -> None:
    """One byte of one kernel is enough: the kernel is named, and the command fails with the verdict."""
    first = next(example.samples(vulkan.target)).kernel
    few.add(first)
    assert main(["check", "--device", "wgpu-native:vulkan"]) == 2
    out, err = capsys.readouterr()
    assert f"  WRONG: {first}: 1 bytes differ" in out
    assert f"verdict: do not use {vulkan.name}; right: none" in err
