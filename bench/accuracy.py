"""How much of a network's quality int8 keeps: our quantizer beside XNNPACK's and X86Inductor's, all through this
runtime's reference, on data that nobody calibrated on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import q8ta_wgpu as q8
from bench.options import Options
from bench.suite.data import Array
from bench.suite.tasks import TASKS, inputs, trained
from q8ta_wgpu.progress import through

CALIBRATION = 2
"""Batches of the size that the test is run in, of one set to calibrate with."""

SETS = 5
"""Sets to calibrate with, each drawn by itself. The same for every quantizer."""

LARGEST = 300
"""Inputs that are run at once."""

TABLE = Path("docs/accuracy.md")

HEAD = """# Accuracy

What int8 keeps of small networks with real weights (`bench/suite`): trained on scikit-learn's digits, scikit-image's
photographs and the standard library's text, judged on what neither training nor calibration saw (digits also with
noise of a pixel's smallest step, so that no single image decides). The quantizers of
XNNPACK and X86Inductor (torchao) go through the same runtime, so the columns differ in where values are rounded, or
left in float, and in how ranges are found. X86Inductor leaves attention, norms and activations in float32, ours runs
them in int8. SNR is the ratio of signal to noise of the outputs against float in dB: how faithful they are, with no
image on a border between two classes to decide; scores that differ by less than a tenth of a percent are such images,
and a score above float's own is luck with them.

Every number is the mean of five sets of calibration data, the same for each quantizer. By how much ours is above the
better of both is given with its standard error, had the test other inputs and calibration other sets of the same kind:
what is within twice that says nothing. `python -m bench accuracy` writes this page.

| network | unit | float | XNNPACK | X86Inductor | ours | ours above | SNR: XNNPACK | X86Inductor | ours | ours above |
|---|---|---|---|---|---|---|---|---|---|---|
"""

DRAWS = 100
"""Of inputs from the test and of sets to calibrate with, with repetitions, for a standard error."""

TRIED = """
## What the quantizer does for it, and what it does not

Each was measured by the same ratio on these networks, with several sets of calibration data.

* Weights are rounded by the inputs that calibration meets, and the mean of what that changes is taken out of biases
  (`Quantizer(fit_weights=True)`, the default): 0.2 dB (sequence) to 1.7 (super-resolution) more than with the biases
  alone, which are worth up to 4 (depthwise). Layers of more than 512 inputs for an output, and those that too few
  samples reach, are rounded to the nearest, with the biases. Samples are spread over all tokens and pixels: with every
  second row, column and image it was 0.4 dB less on segmentation, up to 0.15 on others. Twice as many bring
  nothing. Not kept: weights that fit the rounded inputs, for which what varies less than rounding does counts less (0.5
  more on super-resolution, 0.3 less on vision, 20 less on text, where calibration lacks characters).
* Batch norms behind a cat go before it, so that its inputs keep their scales up to there: 34.7 to 36.3 dB on
  segmentation. Inputs of the other cats with scales of their own, as if that cost nothing, brought 0.1 dB more: they
  share one.
* A range is clipped where that lowers the squared error by a fifth. By a twentieth it was 0.2 to 0.4 dB more with
  hundreds of inputs to calibrate with, and 2 dB less with six photographs. torchao's histogram and whole ranges
  were 0.4 to 0.8 dB worse on residual, 0.8 to 1.4 better on super-resolution, where sets of calibration data differ
  by more than that.
* Scales of weights by the least squared error, not the largest weight: between -0.3 and +0.5 dB, but for 1.4 on
  super-resolution; with weights rounded by their inputs that is had without.
* Channels are made of like size, by the root of how they differ, and centred where no slope and no padding comes after,
  by what the first 128 inputs lead to (`Quantizer(fit_weights=True)`): segmentation 36.6 to 37.7 dB, text 46.6 to 48.0,
  sequence 38.8 to 39.3, vision 37.1 to 37.6 in the mean of three sets of calibration data. With the ranges that batch
  norms tell it was a loss on segmentation, by 32 inputs one of up to 8 dB on vision. Not kept: by all of how they
  differ (as good on segmentation, 0.3 dB less on transformers), root mean squares for sizes (0.8 to 2.1 less), and
  residual sums as well (0.1 more on segmentation). By the first 500 inputs it was 0.1 to 0.2 more on transformers, and
  as much as sets of calibration data differ by.
* Not kept: queries against keys, each the root of what they are to each other, and keys centred, which softmax does not
  see. In the mean of ten sets 0.1 dB more on vision, 0.4 less on text; the two apart, between 0.1 more and 0.2 less.
* Ranges that are wider by a twentieth, for what calibration did not meet: between 0.0 and 0.15 dB less.
* Queries, keys and values of one linear have scales of their own: 1.3 dB more on vision, nothing on text. So has each
  part that a convolution or linear is taken apart into, unless a cat joins one with another value.
"""


def xnnpack() -> Any:
    """As ExecuTorch's users have it."""
    from torchao.testing.pt2e import _xnnpack_quantizer as found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "deprecated", of the copy in torchao
        return found.XNNPACKQuantizer().set_global(found.get_symmetric_quantization_config(is_per_channel=True))


def x86() -> Any:
    """Of torch.compile on a CPU."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as found

    return found.X86InductorQuantizer().set_global(found.get_default_x86_inductor_quantization_config())


QUANTIZERS: dict[str, Callable[[], Any]] = {"XNNPACK": xnnpack, "X86Inductor": x86, "ours": q8.Quantizer}


def exact(name: str, count: int) -> Array:
    """What a network of the suite makes of inputs of the test in float."""
    with torch.no_grad():
        return np.asarray(trained(name)(inputs(name, True, count)[0]).numpy())


def outputs(name: str, quantizer: Any, number: int, count: int) -> Array:
    """What a network of the suite makes of inputs of the test in int8, through the numpy reference, calibrated with the
    set of this number."""
    parts = inputs(name, True, count)[0].chunk(-(-count // LARGEST))
    seeds = range(CALIBRATION * number, CALIBRATION * (number + 1))
    batches = [inputs(name, False, len(parts[0]), seed=seed)[0] for seed in seeds]
    model = q8.compile(q8.quantize(trained(name), parts[:1], batches, quantizer, progress=False))
    session = q8.Session(model, "reference")
    return np.concatenate([session(part.numpy()) for part in parts])


def signal_to_noise(found: Array, exact: Array) -> float:
    """Of outputs against float, in dB."""
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


Measure = Callable[[Array, Array], float]
"""(outputs, truth) → how good they are, more is better."""


def mean_of(measure: Measure, found: Sequence[Array], truth: Array) -> float:
    """Over the outputs for several sets of calibration data."""
    return float(np.mean([measure(each, truth) for each in found]))


def standard_error(measure: Measure, first: Sequence[Array], second: Sequence[Array], truth: Array) -> float:
    """Of the difference of two means of a measure over the same sets of calibration data and the same inputs: the
    bootstrap of both at once (Owen, The Pigeonhole Bootstrap, 2007). Of few sets one less is drawn than there are, by
    which their variance is that of a sample (Rao and Wu, 1988)."""
    rng, differences = np.random.default_rng(0), []
    for _ in range(DRAWS):
        i = rng.integers(len(truth), size=len(truth))
        sets, times = np.unique(rng.integers(len(first), size=max(1, len(first) - 1)), return_counts=True)
        each = [measure(first[s][i], truth[i]) - measure(second[s][i], truth[i]) for s in sets]
        differences.append(np.average(each, weights=times))
    return float(np.std(differences))


def _cells(measure: Measure, found: Sequence[Sequence[Array]], truth: Array, digits: int) -> list[str]:
    """The means of every quantizer, ours last, and by how much ours is above the better of the others."""
    means = [mean_of(measure, each, truth) for each in found]
    better = int(np.argmax(means[:-1]))
    error = standard_error(measure, found[-1], found[better], truth)
    above = f"{means[-1] - means[better]:+.{digits}f} ± {error:.{digits}f}"
    return [*(f"{mean:.{digits}f}" for mean in means), above]


def part_accuracy(options: Options) -> None:
    """Prints the table, and writes it where all networks were asked for."""
    rows = []
    for name in through(options.names or TASKS, "accuracy"):
        task = TASKS[name]
        wanted, (_, truth) = exact(name, task.test), inputs(name, True, task.test)
        found = [[outputs(name, make(), number, task.test) for number in range(SETS)] for make in QUANTIZERS.values()]
        cells = [f"{task.measure(wanted, truth):.2f}", *_cells(task.measure, found, truth, 2)]
        cells += _cells(signal_to_noise, found, wanted, 1)
        rows.append(f"| {name} | {task.unit} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if not options.names:
        TABLE.write_text(HEAD + "\n".join(rows) + "\n" + TRIED, "utf-8")
