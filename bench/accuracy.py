"""Measures the quality that small trained networks keep in int8, by our quantizer, XNNPACK's and X86Inductor's.

All run on this library's reference, with inputs that were not used for calibration."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.options import Options
from bench.suite.data import Array
from bench.suite.tasks import TASKS, inputs, trained
from q8ta_wgpu.quantization.rules import left_out
from testbed.noise import worst_noise
from testbed.pt2e import by_torchao
from testbed.yardstick import yardstick

CALIBRATION = 2
"""Batches in one set of calibration data, each of the size of a test batch."""

LARGEST = 300
"""Limit of inputs in a batch."""

REASON = 8
"""Limit of words of an error that are shown."""

FIGURES = Path("docs/accuracy.json")

DRAWS = 100
"""Bootstrap samples of test inputs and calibration sets for a standard error."""

Result = TypeVar("Result")
Row = dict[str, Any]
"""A row of the figures: a score or a ratio by quantizer."""


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


def by(quantized: Callable[[nn.Module, Sequence[Inputs]], torch.export.ExportedProgram]) -> Runner:
    """Runs the integers of a quantized program on the numpy reference."""

    def run(module: nn.Module, batches: Sequence[Inputs]) -> Callable[..., Any]:
        session = q8.Session(q8.compile(quantized(module, batches)), "reference")
        return lambda *arguments: session(*(x.numpy() for x in arguments))

    return run


QUANTIZERS: Mapping[str, Runner] = {
    "XNNPACK": by(lambda module, batches: by_torchao(module, batches, xnnpack())),
    "X86Inductor": by(lambda module, batches: by_torchao(module, batches, x86())),
    "yardstick": yardstick,
    "ours": by(lambda module, batches: q8.quantize(module, batches[0], batches, progress=False)),
}


def exact(name: str, count: int) -> Array:
    """Outputs of a network of the suite for test inputs, in float32."""
    with torch.no_grad():
        return one_array(trained(name)(*inputs(name, True, count)[0]))


def outputs(name: str, runner: Runner, number: int, count: int) -> Array:
    """Outputs of a network of the suite for test inputs, calibrated with set `number`."""
    arguments = inputs(name, True, count)[0]
    chunks = list(zip(*(x.chunk(-(-count // LARGEST)) for x in arguments), strict=True))
    seeds = range(CALIBRATION * number, CALIBRATION * (number + 1))
    batches = [inputs(name, False, len(chunks[0][0]), seed=seed)[0] for seed in seeds]
    run = runner(trained(name), batches)
    return np.concatenate([one_array(run(*chunk)) for chunk in chunks])


def one_array(found: Any) -> Array:
    """One array of all outputs; several are flattened and concatenated."""
    arrays = [np.asarray(each) for each in pytree.tree_leaves(found)]
    return arrays[0] if len(arrays) == 1 else np.concatenate([x.reshape(len(x), -1) for x in arrays], -1)


def signal_to_noise(found: Array, exact: Array) -> float:
    """Signal-to-noise ratio of outputs against the exact ones, in dB: of the part that has the lowest one."""
    return -10 * float(np.log10(max(worst_noise([exact], [found]), EQUAL)))


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


def _found(name: str, quantizer: str, sets: int, without: Sequence[str]) -> Found:
    try:
        with left_out(*without):
            return [outputs(name, QUANTIZERS[quantizer], number, TASKS[name].test) for number in range(sets)]
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split()[:REASON])}".replace("|", "/")


def _row(measure: Measure, found: Mapping[str, Found], others: Sequence[str], truth: Array, digits: int) -> Row:
    """The mean score of each quantizer, or why there is none; `above`, the difference of ours to the best of the others
    with its standard error."""
    means = {name: mean_of(measure, each, truth) for name, each in found.items() if not isinstance(each, str)}
    row: Row = {name: round(means[name], digits) if name in means else str(each) for name, each in found.items()}
    best = max((name for name in others if name in means), key=means.__getitem__, default="")
    if not best or "ours" not in means:
        return {**row, "above": None}
    error = standard_error(measure, found["ours"], found[best], truth)  # type: ignore[arg-type]
    return {**row, "above": [round(means["ours"] - means[best], digits), round(error, digits)]}


def _rows(name: str, sets: int, without: Sequence[str]) -> tuple[Row | None, Row | None]:
    """A network's row of scores, if its task has a score, and its row of noise, if its outputs are floats."""
    task = TASKS[name]
    found = {each: _found(name, each, sets, without) for each in QUANTIZERS}
    wanted, (_, truth) = exact(name, task.test), inputs(name, True, task.test)
    score = noise = None
    if task.measure:
        truth = truth if task.loss else wanted
        row = _row(task.measure, found, ("XNNPACK", "X86Inductor"), truth, 2)
        score = {"network": name, "unit": task.unit, "float": round(task.measure(wanted, truth), 2), **row}
    if np.issubdtype(wanted.dtype, np.floating):
        noise = {"network": name, **_row(signal_to_noise, found, ("yardstick",), wanted, 1)}
    print(score or "", noise or "", sep="\n", flush=True)
    return score, noise


def side_by_side(jobs: int, rows: Callable[[str], Result], names: Sequence[str]) -> Iterator[Result]:
    """The rows of each network, in order, by `jobs` processes that share the processors."""
    if jobs <= 1:
        yield from map(rows, names)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, spawned, torch.set_num_threads, (threads,)) as pool:
        yield from pool.map(rows, names)


def part_accuracy(options: Options) -> None:
    """Prints the rows, and writes docs/accuracy.json if all networks were requested, with all rules."""
    if options.ablate:
        from bench.ablation import ablate

        return ablate(options.names, options.jobs)
    names = [*(options.names or TASKS)]
    scores: list[Row] = []
    noise: list[Row] = []
    found = side_by_side(options.jobs, partial(_rows, sets=options.sets, without=options.without), names)
    for rows in found:
        for row, kept in zip(rows, (scores, noise), strict=True):
            if row:
                kept.append(row)
    if not options.names and not options.without:
        now = origin("python -m bench accuracy", "reference", ("torch", "torchao"))
        write(FIGURES, {**now, "sets": options.sets, "scores": scores, "noise": noise}, "scores", "noise")
