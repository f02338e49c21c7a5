"""What networks of ONNX files are for: how far a result decides as the float file's does, from 0 to 1.

Each function takes the outputs of one call, ours or another's first, the float file's second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from q8ta_wgpu.ir.graph import Array

Outputs = Sequence[Array]
Task = Callable[[Outputs, Outputs], float]

FOUND, OVERLAP = 0.25, 0.5
"""A box is found from this score on, and is another one's from this overlap on (intersection over union)."""


def _equal(found: Array, wanted: Array) -> float:
    return float(np.mean(found == wanted))


def classes(found: Outputs, wanted: Outputs) -> float:
    """Whether the largest element of the first output's rows is the same."""
    return _equal(found[0].argmax(-1), wanted[0].argmax(-1))


def halves(found: Outputs, wanted: Outputs) -> float:
    """Whether the first output is on the same side of one half, as the decision of a voice detector."""
    return _equal(found[0] > 0.5, wanted[0] > 0.5)


def signs(found: Outputs, wanted: Outputs) -> float:
    """Whether a logit of the first output has the same sign."""
    return _equal(found[0] > 0, wanted[0] > 0)


def scores(found: Outputs, wanted: Outputs) -> float:
    """Whether numbers, such as opinion scores from 1 to 5, are within a tenth."""
    return float(np.mean(np.abs(found[0] - wanted[0]) < 0.1))


def texts(found: Outputs, wanted: Outputs) -> float:
    """Whether the same text is read: the largest class of each column, repeated ones once, without blanks (class 0)."""
    return float(_text(found[0]) == _text(wanted[0]))


def last_blank(found: Outputs, wanted: Outputs) -> float:
    """`texts` of columns first, whose last class is blank."""
    return float(_text(found[0], found[0].shape[-1] - 1) == _text(wanted[0], wanted[0].shape[-1] - 1))


def _text(output: Array, blank: int = 0) -> list[int]:
    columns = output.argmax(-1).reshape(-1) if output.ndim == 3 else output.reshape(-1)
    changes = np.concatenate([[True], columns[1:] != columns[:-1]])
    return [int(each) for each in columns[changes] if each != blank]


def maps(found: Outputs, wanted: Outputs) -> float:
    """F1 of the elements above 0.3, such as pixels of text or notes that sound, over all outputs."""
    ours, theirs = (np.concatenate([each.reshape(-1) > 0.3 for each in outputs]) for outputs in (found, wanted))
    return _f1(int((ours & theirs).sum()), int(ours.sum()), int(theirs.sum()))


def yolo(found: Outputs, wanted: Outputs) -> float:
    """F1 of boxes: of an output (1, 4 + classes, places) the center, size and class scores of each place."""
    return _boxes_agree(*(_kept(*_yolo(outputs[0][0].T)) for outputs in (found, wanted)))


def yolox(found: Outputs, wanted: Outputs) -> float:
    """F1 of boxes: of an output (1, places, 5 + classes) in units of a grid."""
    return _boxes_agree(*(_kept(*_yolox(outputs[0][0])) for outputs in (found, wanted)))


def _yolo(rows: Array) -> tuple[Array, Array, Array]:
    scores = rows[:, 4:]
    return _corners(rows[:, :2], rows[:, 2:4]), scores.max(1), scores.argmax(1)


def _yolox(rows: Array) -> tuple[Array, Array, Array]:
    """Grids of 1/8, 1/16 and 1/32 of a square image follow each other."""
    side = int(np.sqrt(len(rows) / 21 * 16))
    sizes = [side, side // 2, side // 4]
    places = np.concatenate([np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2) for n in sizes])
    strides = np.repeat([8, 16, 32], [n * n for n in sizes])[:, None]
    scores = rows[:, 4:5] * rows[:, 5:]
    corners = _corners((rows[:, :2] + places) * strides, np.exp(rows[:, 2:4]) * strides)
    return corners, scores.max(1), scores.argmax(1)


def _corners(center: Array, size: Array) -> Array:
    return np.concatenate([center - size / 2, center + size / 2], 1)


def _kept(boxes: Array, scores: Array, kinds: Array) -> list[tuple[int, Array]]:
    """Boxes that are found, without those that overlap a better one of their class: (class, corners)."""
    kept = list[tuple[int, Array]]()
    for at in np.argsort(-scores):
        if scores[at] < FOUND:
            break
        box = int(kinds[at]), boxes[at]
        if not any(kind == box[0] and _overlap(each, box[1]) > OVERLAP for kind, each in kept):
            kept.append(box)
    return kept


def _overlap(a: Array, b: Array) -> float:
    """Intersection over union."""
    inner = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    both = float(inner.clip(0).prod())
    return both / (float((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod()) - both + 1e-9)


def _boxes_agree(found: list[tuple[int, Array]], wanted: list[tuple[int, Array]]) -> float:
    left, hits = list(wanted), 0
    for kind, box in found:
        match = next((i for i, (k, each) in enumerate(left) if k == kind and _overlap(each, box) > OVERLAP), None)
        if match is not None:
            left.pop(match)
            hits += 1
    return _f1(hits, len(found), len(wanted))


def _f1(hits: int, found: int, wanted: int) -> float:
    return 2 * hits / (found + wanted) if found + wanted else 1.0


TASKS: Mapping[str, Task] = {
    "classes": classes,
    "halves": halves,
    "signs": signs,
    "scores": scores,
    "texts": texts,
    "texts, last blank": last_blank,
    "maps": maps,
    "boxes": yolo,
    "boxes of a grid": yolox,
}
