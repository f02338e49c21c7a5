"""Int8 keeps what a trained network is good for: a sample of `python -m bench accuracy`."""

from __future__ import annotations

import q8ta_wgpu as q8
from bench.accuracy import measured, xnnpack
from bench.suite.tasks import TASKS


def test_superresolution_with_tanh() -> None:
    name, count = "superresolution", 6
    in_float, _ = measured(name, None, count)
    ours, snr = measured(name, q8.Quantizer(), count)
    assert ours >= in_float - TASKS[name].slack
    assert snr >= measured(name, xnnpack(), count)[1]
