"""Int8 keeps what a trained network is good for: a sample of `python -m bench accuracy`."""

from __future__ import annotations

import numpy as np

import q8ta_wgpu as q8
from bench.accuracy import outputs, signal_to_noise, standard_error, xnnpack
from bench.suite.tasks import TASKS, accuracy, inputs


def test_superresolution_with_tanh() -> None:
    name, count = "superresolution", 6
    task, (_, truth) = TASKS[name], inputs(name, True, count)
    exact, ours, theirs = (outputs(name, quantizer, count) for quantizer in (None, q8.Quantizer(), xnnpack()))
    assert task.measure(ours, truth) >= task.measure(exact, truth) - task.slack
    assert signal_to_noise(exact, ours) >= signal_to_noise(exact, theirs)


def test_the_standard_error_of_a_difference() -> None:
    """Of the share of right answers: that of the mean of what the two have right beside each other."""
    truth, first, second = np.random.default_rng(1).integers(3, size=(3, 500))
    scores = [np.eye(3, dtype=np.float32)[found] for found in (first, second)]
    each = 100.0 * (first == truth) - 100.0 * (second == truth)
    found = standard_error(accuracy, scores[0], scores[1], truth.astype(np.float32))
    assert 0.8 < found / (each.std() / 500**0.5) < 1.2
    assert standard_error(accuracy, scores[0], scores[0], truth.astype(np.float32)) == 0
