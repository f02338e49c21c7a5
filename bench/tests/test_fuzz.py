"""A short fuzz of the model file and of the tuning cache; `python -m bench fuzz --count 100000` is a long one."""

from __future__ import annotations

from bench import fuzz
from q8ta_wgpu.runtime.device import Device


def test_model_files(vulkan: Device) -> None:
    outcomes = fuzz.files_fuzzed(range(2000), vulkan, runs=12)
    assert outcomes["refused"] > 1000
    assert outcomes["run by the reference"] > 50
    assert outcomes["run, the same on the device"] > 0


def test_tuning_caches() -> None:
    assert fuzz.caches_fuzzed(range(2000))["not used, with a note"] > 500
