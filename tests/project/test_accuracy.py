"""Int8 keeps what a trained network is good for: a sample of `python -m bench accuracy`."""

from __future__ import annotations

import numpy as np

import q8ta_wgpu as q8
from bench.accuracy import exact, outputs, signal_to_noise, standard_error, xnnpack
from bench.suite.tasks import TASKS, accuracy, inputs


def test_superresolution_with_tanh() -> None:
    name, count = "superresolution", 6
    task, (_, truth) = TASKS[name], inputs(name, True, count)
    wanted = exact(name, count)
    ours, theirs = (outputs(name, quantizer, 0, count) for quantizer in (q8.Quantizer(), xnnpack()))
    assert task.measure(ours, truth) >= task.measure(wanted, truth) - task.slack
    assert signal_to_noise(ours, wanted) >= signal_to_noise(theirs, wanted)


def test_the_standard_error_of_a_difference() -> None:
    """Of the share of right answers: that of the mean of what the two have right beside each other."""
    truth, first, second = np.random.default_rng(1).integers(3, size=(3, 500))
    scores = [[np.eye(3, dtype=np.float32)[found]] for found in (first, second)]
    each = 100.0 * (first == truth) - 100.0 * (second == truth)
    found = standard_error(accuracy, scores[0], scores[1], truth.astype(np.float32))
    assert 0.8 < found / (each.std() / 500**0.5) < 1.2
    assert standard_error(accuracy, scores[0], scores[0], truth.astype(np.float32)) == 0


def test_sets_to_calibrate_with_are_a_sample_too() -> None:
    """Where inputs are alike, the standard error is that of the mean of as many sets as there are."""
    truth = np.ones((50, 1), np.float32)
    of_sets = np.random.default_rng(2).normal(size=8).astype(np.float32)
    first, second = [truth * of_set for of_set in of_sets], [truth * 0] * 8
    found = standard_error(lambda outputs, _: float(outputs.mean()), first, second, truth)
    assert 0.8 < found / (of_sets.std(ddof=1) / 8**0.5) < 1.2
