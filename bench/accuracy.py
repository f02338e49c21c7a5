"""How much of a network's quality int8 keeps: our quantizer beside XNNPACK's and X86Inductor's, all through this
runtime's reference, on data that nobody calibrated on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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
"""Batches of the size that the test is run in."""

LARGEST = 300
"""Inputs that are run at once."""

TABLE = Path("docs/accuracy.md")

HEAD = """# Accuracy

What int8 keeps of small networks with real weights (`bench/suite`): trained on scikit-learn's digits, scikit-image's
photographs and the standard library's text, judged on what neither training nor calibration saw (digits also with
noise of a pixel's smallest step, so that no single image decides). The quantizers of
XNNPACK and X86Inductor (torchao) go through the same runtime, so the columns differ in where values are rounded, or
left in float, and in how ranges are found. The last three columns are the ratio of signal to noise of the outputs
against float in dB: how faithful they are, with no image on a border between two classes to decide; scores that differ
by less than a tenth of a percent are such images. By how much ours is above the better of both is given with its
standard error, had the test other inputs of the same kind: what is within twice that says nothing. X86Inductor leaves
attention, norms and activations in float32, ours runs them in int8. `python -m bench accuracy` writes this page.

| network | measure | float | XNNPACK | X86Inductor | ours | ours above | SNR XNNPACK | SNR X86Inductor | SNR ours |
|---|---|---|---|---|---|---|---|---|---|
"""

DRAWS = 100
"""Sets of inputs drawn from the test, with repetitions, for a standard error."""

TRIED = """
## What the quantizer does for it, and what it does not

Each was measured by the same ratio on these networks, with several sets of calibration data.

* Weights are rounded by the inputs that calibration meets, and the mean of what that changes is taken out of biases
  (`Quantizer(fit_weights=True)`, the default): 0.2 dB (sequence) to 1.7 (super-resolution) more than with the biases
  alone, which are worth up to 4 (depthwise). Layers of more than 512 inputs for an output, and those that too few
  samples reach, are rounded to the nearest, with the biases.
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
  residual sums as well (0.1 more on segmentation). Not built: queries against keys, with keys centred, which softmax
  does not see: about 0.3 more on vision, nothing on text.
* Ranges of attention's scores by what they change behind softmax: less noise of one layer, more of another.
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


def outputs(name: str, quantizer: Any, count: int = 0) -> Array:
    """What a network of the suite makes of the test in int8, through the numpy reference; with None, in float. Of
    `count` inputs, or all."""
    module = trained(name)
    x, _ = inputs(name, True, count or TASKS[name].test)
    if quantizer is None:
        with torch.no_grad():
            return np.asarray(module(x).numpy())
    parts = x.chunk(-(-len(x) // LARGEST))
    batches = [inputs(name, False, len(parts[0]), seed=seed)[0] for seed in range(CALIBRATION)]
    model = q8.compile(q8.quantize(module, parts[:1], batches, quantizer, progress=False))
    session = q8.Session(model, "reference")
    return np.concatenate([session(part.numpy()) for part in parts])


def signal_to_noise(exact: Array, found: Array) -> float:
    """Of outputs against float, in dB."""
    return float(10 * np.log10((exact**2).sum() / ((exact - found) ** 2).sum()))


def standard_error(measure: Callable[[Array, Array], float], first: Array, second: Array, truth: Array) -> float:
    """Of the difference of two measures on the same inputs (Efron's bootstrap)."""
    rng = np.random.default_rng(0)
    drawn = (rng.integers(len(truth), size=len(truth)) for _ in range(DRAWS))
    return float(np.std([measure(first[i], truth[i]) - measure(second[i], truth[i]) for i in drawn]))


def part_accuracy(options: Options) -> None:
    """Prints the table, and writes it where all networks were asked for."""
    rows = []
    for name in through(options.names or TASKS, "accuracy"):
        task, exact = TASKS[name], outputs(name, None)
        _, truth = inputs(name, True, task.test)
        *others, ours = found = [outputs(name, make()) for make in QUANTIZERS.values()]
        better = max(others, key=lambda other: task.measure(other, truth))
        above = task.measure(ours, truth) - task.measure(better, truth)
        cells = [f"{task.measure(each, truth):.2f}" for each in (exact, *found)]
        cells.append(f"{above:+.2f} ± {standard_error(task.measure, ours, better, truth):.2f}")
        cells += [f"{signal_to_noise(exact, each):.1f}" for each in found]
        rows.append(f"| {name} | {task.unit} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if not options.names:
        TABLE.write_text(HEAD + "\n".join(rows) + "\n" + TRIED, "utf-8")
