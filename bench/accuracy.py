"""Measures the quality that small trained networks keep in int8, by our quantizer, XNNPACK's and X86Inductor's.

All run on this library's reference, with inputs that were not used for calibration."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from bench.options import Options
from bench.suite.data import Array
from bench.suite.tasks import TASKS, inputs, trained
from bench.yardstick import yardstick
from q8ta_wgpu.progress import through

CALIBRATION = 2
"""Batches in one set of calibration data, each of the size of a test batch."""

LARGEST = 300
"""Limit of inputs in a batch."""

REASON = 8
"""Limit of words of an error that are shown."""

TABLE = Path("docs/accuracy.md")

HEAD = """# Accuracy

Small trained networks keep nearly all of their scores in int8. The first table has each score beside float's and those
of other quantizers, the second one the noise. `python -m bench accuracy` writes this page.

* The networks (`bench/suite`) are trained on scikit-learn's digits, scikit-image's photographs, the standard library's
  text, and sounds made by formulas (voice, keywords). They are judged on inputs that neither training nor calibration
  saw. Of a network with random weights the score is how often its choice is float's.
* XNNPACK and X86Inductor are torchao's quantizers, run by the same runtime. X86Inductor leaves attention, norms and
  activations in float32.
* The yardstick is a simulation in which the inputs and the weights of every convolution, linear and recurrent layer are
  int8, and nothing else is rounded (`bench/yardstick.py`).
* Every number is the mean of five sets of calibration data, the same for each quantizer.
* *ours above* is the difference to the better of XNNPACK and X86Inductor, with its standard error. Within twice that
  error it says nothing. Nor does a score above float's own.
* *voice* loses by int8 layers, as the yardstick does. Ours stores what its LSTM reads in int16; X86Inductor leaves the
  convolution and LSTM in float.

| network | unit | float | XNNPACK | X86Inductor | yardstick | ours | ours above |
|---|---|---|---|---|---|---|---|
"""

NOISE = """
## Signal to noise

SNR is the ratio of signal to noise of int8 outputs against float, in dB. It shows losses that are too small to change a
score. The first networks are the trained ones; the others have random weights and hold what 8 bits are known to hurt.
Here *ours above* is the difference to the yardstick.

| network | XNNPACK | X86Inductor | yardstick | ours | ours above |
|---|---|---|---|---|---|
"""

DRAWS = 100
"""Bootstrap samples of test inputs and calibration sets for a standard error."""

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
    """torchao's quantizer of ExecuTorch's XNNPACK backend, as users configure it."""
    from torchao.testing.pt2e import _xnnpack_quantizer as found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "deprecated", of the copy in torchao
        return found.XNNPACKQuantizer().set_global(found.get_symmetric_quantization_config(is_per_channel=True))


def x86() -> Any:
    """torchao's quantizer for torch.compile on CPUs."""
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as found

    return found.X86InductorQuantizer().set_global(found.get_default_x86_inductor_quantization_config())


Inputs = tuple[Tensor, ...]
Runner = Callable[[nn.Module, Sequence[Inputs]], Callable[..., Any]]
"""(module, calibration batches) → a callable that computes like the module, but quantized."""


def by(quantizer: Callable[[], Any]) -> Runner:
    """Quantizes by a quantizer, and runs the integers on the numpy reference."""

    def run(module: nn.Module, batches: Sequence[Inputs]) -> Callable[..., Any]:
        model = q8.compile(q8.quantize(module, batches[0], batches, quantizer(), progress=False))
        session = q8.Session(model, "reference")
        return lambda *arguments: session(*(x.numpy() for x in arguments))

    return run


QUANTIZERS: Mapping[str, Runner] = {
    "XNNPACK": by(xnnpack),
    "X86Inductor": by(x86),
    "yardstick": yardstick,
    "ours": by(q8.Quantizer),
}


def exact(name: str, count: int) -> Array:
    """Outputs of a network of the suite for test inputs, in float32."""
    with torch.no_grad():
        return _one(trained(name)(*inputs(name, True, count)[0]))


def outputs(name: str, runner: Runner, number: int, count: int) -> Array:
    """Outputs of a network of the suite for test inputs, calibrated with set `number`."""
    arguments = inputs(name, True, count)[0]
    chunks = list(zip(*(x.chunk(-(-count // LARGEST)) for x in arguments), strict=True))
    seeds = range(CALIBRATION * number, CALIBRATION * (number + 1))
    batches = [inputs(name, False, len(chunks[0][0]), seed=seed)[0] for seed in seeds]
    run = runner(trained(name), batches)
    return np.concatenate([_one(run(*chunk)) for chunk in chunks])


def _one(found: Any) -> Array:
    """One array of all outputs; several are flattened and concatenated."""
    arrays = [np.asarray(each) for each in pytree.tree_leaves(found)]
    return arrays[0] if len(arrays) == 1 else np.concatenate([x.reshape(len(x), -1) for x in arrays], -1)


def signal_to_noise(found: Array, exact: Array) -> float:
    """Signal-to-noise ratio of outputs against the exact ones, in dB."""
    noise, signal = (float((x.astype(np.float64) ** 2).sum()) for x in (exact - found, exact))
    return 10 * float(np.log10(signal / max(noise, EQUAL * signal)))


EQUAL = 1e-10
"""Lower bound of the noise, relative to the signal's power: at most 100 dB."""

Measure = Callable[[Array, Array], float]
"""(outputs, truth) → score, larger is better."""


def mean_of(measure: Measure, found: Sequence[Array], truth: Array) -> float:
    """The mean score over several sets of calibration data."""
    return float(np.mean([measure(each, truth) for each in found]))


def standard_error(measure: Measure, first: Sequence[Array], second: Sequence[Array], truth: Array) -> float:
    """Standard error of the difference of two mean scores over the same calibration sets and inputs.

    Both sets and inputs are resampled (Owen, The Pigeonhole Bootstrap, 2007). Of the few sets, one less is drawn than
    there are, which makes the variance unbiased (Rao and Wu, 1988).
    """
    rng, differences = np.random.default_rng(0), []
    for _ in range(DRAWS):
        i = rng.integers(len(truth), size=len(truth))
        sets, times = np.unique(rng.integers(len(first), size=max(1, len(first) - 1)), return_counts=True)
        each = [measure(first[s][i], truth[i]) - measure(second[s][i], truth[i]) for s in sets]
        differences.append(np.average(each, weights=times))
    return float(np.std(differences))


Found = Sequence[Array] | str
"""Outputs for each set of calibration data, or an error message."""


def _found(name: str, quantizer: str, sets: int) -> Found:
    try:
        return [outputs(name, QUANTIZERS[quantizer], number, TASKS[name].test) for number in range(sets)]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split()[:REASON])}".replace("|", "/")


def _cells(measure: Measure, found: Mapping[str, Found], others: Sequence[str], truth: Array, digits: int) -> list[str]:
    """The mean score of each quantizer, and the difference of ours to the best of the others."""
    means = {name: mean_of(measure, each, truth) for name, each in found.items() if not isinstance(each, str)}
    cells = [f"{means[name]:.{digits}f}" if name in means else str(each) for name, each in found.items()]
    best = max((name for name in others if name in means), key=means.__getitem__, default="")
    if not best or "ours" not in means:
        return [*cells, ""]
    error = standard_error(measure, found["ours"], found[best], truth)  # type: ignore[arg-type]
    return [*cells, f"{means['ours'] - means[best]:+.{digits}f} ± {error:.{digits}f}"]


def _all_found(names: Sequence[str], options: Options) -> Iterator[Mapping[str, Found]]:
    """Outputs of the networks by every quantizer, `options.jobs` processes side by side."""
    if options.jobs <= 1:
        yield from ({each: _found(name, each, options.sets) for each in QUANTIZERS} for name in names)
        return
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(options.jobs, spawned, torch.set_num_threads, (threads,))
    try:
        started = [{each: pool.submit(_found, name, each, options.sets) for each in QUANTIZERS} for name in names]
        while started:
            yield {each: future.result() for each, future in started.pop(0).items()}
    finally:
        pool.shutdown(cancel_futures=True)


def part_accuracy(options: Options) -> None:
    """Prints the rows, and writes the page if all networks were requested."""
    scores, noise, names = [], [], [*(options.names or TASKS)]
    for name, found in zip(through(names, "accuracy"), _all_found(names, options), strict=True):
        task = TASKS[name]
        wanted, (_, truth) = exact(name, task.test), inputs(name, True, task.test)
        if task.measure:
            truth = truth if task.loss else wanted
            cells = _cells(task.measure, found, ("XNNPACK", "X86Inductor"), truth, 2)
            scores.append(f"| {name} | {task.unit} | {task.measure(wanted, truth):.2f} | {' | '.join(cells)} |")
            print(scores[-1], flush=True)
        if np.issubdtype(wanted.dtype, np.floating):
            cells = _cells(signal_to_noise, found, ("yardstick",), wanted, 1)
            noise.append(f"| {name} | {' | '.join(cells)} |")
            print(noise[-1], flush=True)
    if not options.names:
        TABLE.write_text(HEAD + "\n".join(scores) + "\n" + NOISE + "\n".join(noise) + "\n" + TRIED, "utf-8")
