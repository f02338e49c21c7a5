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

Int8 hardly changes the scores of these small trained networks. SNR is the ratio of signal to noise of int8 outputs
against float, in dB. It shows losses that are too small to change a score. `python -m bench accuracy` writes this page.

* The networks (`bench/suite`) are trained on scikit-learn's digits, scikit-image's photographs and the standard
  library's text. They are judged on inputs that neither training nor calibration saw.
* XNNPACK and X86Inductor are torchao's quantizers, run by the same runtime. X86Inductor leaves attention, norms and
  activations in float32.
* Every number is the mean of five sets of calibration data, the same for each quantizer.
* *ours above* is the difference to the better of the other two, with its standard error. Within twice that error it
  says nothing. Nor does a score above float's own.

| network | unit | float | XNNPACK | X86Inductor | ours | ours above | SNR: XNNPACK | X86Inductor | ours | ours above |
|---|---|---|---|---|---|---|---|---|---|---|
"""

DRAWS = 100
"""Of inputs from the test and of sets to calibrate with, with repetitions, for a standard error."""

TRIED = """
## What the quantizer gains by

Each row was measured by SNR on these networks, with several sets of calibration data. [What did not
help](experiments.md#accuracy) has the others.

| step | gain |
|---|---|
| biases corrected by the mean error of rounded weights | up to 4 dB (depthwise) |
| weights rounded by the calibration inputs, on top of that | 0.2 dB (sequence) to 1.7 (super-resolution) |
| samples spread over all tokens and pixels, not every second one | 0.4 dB segmentation, up to 0.15 on others |
| channels equalized and centred by 128 inputs | segmentation 36.6 to 37.7 dB, text 46.6 to 48.0, vision 37.1 to 37.6 |
| batch norms moved before a cat, whose inputs then keep their scales | segmentation 34.7 to 36.3 dB |
| scales of their own for slices of one linear, such as queries, keys and values | 1.3 dB vision, 0 text |
| a range clipped where that lowers the squared error by a fifth | more robust with few inputs than by a twentieth |

`Quantizer(fit_weights=True)`, the default, does the first four. The fourth takes sequence from 38.8 to 39.3 dB. Layers
with more than 512 inputs for an output, or with too few samples, round weights to the nearest and correct biases.
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
