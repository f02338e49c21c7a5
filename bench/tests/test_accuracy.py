"""Int8 keeps what a trained network is good for: a sample of `python -m bench accuracy`, and what it is judged by."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import accuracy as bench_accuracy
from bench.accuracy import QUANTIZERS, exact, outputs, signal_to_noise, standard_error
from bench.options import Options
from bench.suite.tasks import TASKS, accuracy, inputs
from testbed.yardstick import affine, symmetric, yardstick


def test_superresolution_with_tanh() -> None:
    name, count = "superresolution", 6
    task, (_, truth) = TASKS[name], inputs(name, True, count)
    wanted = exact(name, count)
    ours, theirs = (outputs(name, QUANTIZERS[each], 0, count) for each in ("ours", "XNNPACK"))
    assert task.measure is not None
    assert task.measure(ours, truth) >= task.measure(wanted, truth) - task.slack
    assert signal_to_noise(ours, wanted) >= signal_to_noise(theirs, wanted)


@pytest.mark.parametrize(("name", "least"), [("voice", 95), ("keywords", 90), ("characters", 65)])
def test_networks_of_sounds_and_text_have_learnt(name: str, least: float) -> None:
    task, (_, truth) = TASKS[name], inputs(name, True, 100)
    assert task.measure is not None
    assert task.measure(exact(name, 100), truth) > least


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


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(6, 8, 3, groups=2), (3, 6, 20)),
    "conv2d": (lambda: nn.Conv2d(6, 8, 3, padding="same"), (2, 6, 9, 9)),
    "conv3d": (lambda: nn.Conv3d(2, 8, 3), (2, 2, 5, 6, 7)),
    "linear": (lambda: nn.Linear(16, 8), (2, 5, 16)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 8, 3, 2, groups=2, output_padding=1), (2, 6, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_yardstick_rounds_inputs_by_one_scale_and_weights_by_channel(name: str) -> None:
    torch.manual_seed(0)
    build, shape = LAYERS[name]
    layer, x = build().eval(), torch.randn(shape)
    simulated = yardstick(layer, [x / 2, x / 3])(x)
    low, high = (x / 2).aminmax()
    with torch.no_grad():
        weight = layer.weight
        assert isinstance(weight, Tensor)
        if name == "transposed":  # (inputs, outputs of a group, ...)
            weight.copy_(torch.cat([symmetric(part, (0, 2, 3)) for part in weight.chunk(2)]))
        else:
            weight.copy_(symmetric(weight, range(1, weight.dim())))
        torch.testing.assert_close(simulated, layer(affine(x, low, high)))


def test_the_yardstick_rounds_nothing_else() -> None:
    """Products of two computed values, norms in any memory format, functions, the network's inputs and outputs."""

    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, F.gelu(x), F.layer_norm(x, [8])) + (x @ x.mT) @ x

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            rows = x.flatten(2).mT
            return F.group_norm(
                (rows.sigmoid() @ rows.mT @ rows).mT.reshape(x.shape), 4, torch.arange(8.0), x[0, :, 0, 0]
            )

    for module, x in ((Attention(), torch.randn(2, 5, 8)), (Turned(), torch.randn(1, 8, 4, 4))):
        torch.testing.assert_close(yardstick(module, [x])(x), module(x))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_the_yardstick_rounds_recurrent_projections(layer: Callable[..., nn.Module]) -> None:
    """Those of the input and, behind the first step, whose state is zeros, those of the states."""
    torch.manual_seed(0)
    module, x = layer(8, 8, batch_first=True).eval(), torch.randn(2, 4, 8)
    simulation = yardstick(module, [x])
    assert len(simulation.operands) == 1 + 3  # type: ignore[attr-defined]
    with torch.no_grad():
        assert 25 < signal_to_noise(simulation(x)[0].numpy(), module(x)[0].numpy()) < 60


def test_the_figures_have_scores_and_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with random weights has no score but one that chooses; what cannot be quantized says why."""

    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.logcumsumexp(-1)

    small = replace(TASKS["index"], build=lambda: nn.Linear(8, 4), test=5)
    tasks = {"small": small, "unknown": replace(small, build=Unknown), "masked_argmax": TASKS["masked_argmax"]}
    for holder in ("bench.accuracy", "bench.suite.tasks"):
        monkeypatch.setattr(f"{holder}.TASKS", tasks)
    monkeypatch.setattr(bench_accuracy, "FIGURES", tmp_path / "accuracy.json")
    bench_accuracy.part_accuracy(Options(sets=1))
    found = json.loads(bench_accuracy.FIGURES.read_text("utf-8"))
    (chosen,) = found["scores"]
    assert (chosen["network"], chosen["unit"], chosen["float"]) == ("masked_argmax", "% as float", 100.0)
    small_row, unknown = found["noise"]
    assert small_row["network"] == "small" and len(small_row["above"]) == 2
    assert str(unknown).count("UnsupportedError: ") == 3 and unknown["above"] is None
