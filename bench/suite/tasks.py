"""The task of each network: data, a score of outputs, and by how much int8 may reduce it. Networks with random weights
only have inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bench.suite import attention, data, hard, networks, sounds
from bench.suite.untrained import UNTRAINED, Draw, Inputs

WEIGHTS = Path(__file__).with_name("weights")


def accuracy(scores: data.Array, truth: data.Array) -> float:
    """Percent of correct classifications."""
    return 100 * float((scores.argmax(1) == truth).mean())


def iou(scores: data.Array, truth: data.Array) -> float:
    """Mean intersection over union of all classes, in percent."""
    found = scores.argmax(1)
    each = [((found == c) & (truth == c)).sum() / max(1, ((found == c) | (truth == c)).sum()) for c in range(11)]
    return 100 * float(np.mean(each))


def psnr(picture: data.Array, truth: data.Array) -> float:
    """Peak signal-to-noise ratio in dB, without borders."""
    inner = np.s_[..., 3:-3, 3:-3]
    return float(-10 * np.log10(np.mean((np.clip(picture, 0, 1) - truth)[inner] ** 2)))


def decisions(scores: data.Array, truth: data.Array) -> float:
    """Percent of correct binary decisions; scores above 0 mean yes."""
    return 100 * float(((scores > 0) == truth).mean())


def following(scores: data.Array, truth: data.Array) -> float:
    """Percent of correctly predicted next characters."""
    return 100 * float((scores.argmax(-1) == truth).mean())


def equal(found: data.Array, truth: data.Array) -> float:
    """Percent of indices that are equal to the float network's."""
    return 100 * float((found == truth).mean())


@dataclass(frozen=True)
class Task:
    """A network with its data.

    Attributes:
        build: makes the network without weights.
        samples: (held out, count, seed) → inputs, one or several, and truth.
        test: number of test inputs.
        measure: (outputs, truth) → score, larger is better; None if only noise is measured.
        unit: unit of the score.
        loss: training loss; None for random weights, whose truth is the float network's output.
        slack: by how much int8's score may be below float's.
        steps: number of training steps.
    """

    build: Callable[[], nn.Module]
    samples: Callable[[bool, int, int], tuple[data.Array | Inputs, data.Array]]
    test: int
    measure: Callable[[data.Array, data.Array], float] | None = None
    unit: str = ""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    slack: float = 0.0
    steps: int = 1500


def _digits(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    if held_out:
        images, labels = data.held_out_digits(count)
        return images, labels.astype(np.float32)
    images, labels = data.digits(False)
    chosen = np.random.default_rng(seed).integers(len(images), size=count)
    return images[chosen], labels[chosen].astype(np.float32)


def _of_digits(build: Callable[[], nn.Module]) -> Task:
    return Task(build, _digits, 2400, accuracy, "%", _classes, 0.5)


def _classes(scores: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores, truth.long(), label_smoothing=0.05)


def _scenes(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    x, y = data.scenes(held_out, count, seed)
    return x, y.astype(np.float32)


def _lines(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    x, y = data.lines(held_out, count, seed)
    return x, y.astype(np.float32)


def _words(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    x, y = sounds.words(held_out, count, seed)
    return x, y.astype(np.float32)


def _characters(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    x, y = data.next_characters(held_out, count, seed)
    return x, y.astype(np.float32)


def _following(scores: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.transpose(1, 2), truth.long())


def _decisions(scores: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(scores, truth)


def _photographs(held_out: bool, count: int, seed: int) -> tuple[data.Array, data.Array]:
    return data.photographs(held_out, count, 32, seed)


def _untrained(build: Callable[[], nn.Module], draw: Draw, test: int) -> Task:
    def samples(held_out: bool, count: int, seed: int) -> tuple[Inputs, data.Array]:
        return draw(np.random.default_rng((seed, held_out)), count), np.zeros(count, np.float32)

    return Task(build, samples, test)


TASKS = {
    "residual": _of_digits(networks.residual),
    "depthwise": _of_digits(networks.depthwise),
    "sequence": _of_digits(networks.sequence),
    "vision": _of_digits(networks.vision),
    "segmentation": Task(networks.Segmentation, _scenes, 200, iou, "% IoU", _classes, 1.0),
    "superresolution": Task(
        networks.superresolution, _photographs, 48, psnr, "dB", nn.functional.mse_loss, 0.3, steps=3000
    ),
    "text": Task(networks.text, _lines, 500, accuracy, "%", _classes, 0.5),
    "voice": Task(hard.VoiceDetector, sounds.voices, 200, decisions, "%", _decisions, 1.0),
    "keywords": Task(attention.KeywordTransformer, _words, 500, accuracy, "%", _classes, 0.5),
    "characters": Task(attention.characters, _characters, 100, following, "%", _following, 0.5, steps=3000),
    **{name: _untrained(*row) for name, row in UNTRAINED.items()},
}
TASKS["masked_argmax"] = replace(TASKS["masked_argmax"], measure=equal, unit="% as float")


def trained(name: str) -> nn.Module:
    """A network with the repository's weights, or with random ones, in eval mode.

    Raises FileNotFoundError when the weights are missing; `python -m bench.suite.train` writes them.
    """
    torch.manual_seed(0)
    module = TASKS[name].build()
    if TASKS[name].loss is None:
        return module.eval()
    state = load_file(WEIGHTS / f"{name}.safetensors")
    module.load_state_dict({key: value.float() if value.is_floating_point() else value for key, value in state.items()})
    return module.eval()


def inputs(name: str, held_out: bool, count: int, seed: int = 0) -> tuple[tuple[Tensor, ...], data.Array]:
    """The network's arguments, and the truth."""
    x, y = TASKS[name].samples(held_out, count, seed)
    return tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in (x if isinstance(x, tuple) else (x,))), y
