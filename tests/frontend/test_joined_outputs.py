"""What is joined only for an output, or to be taken apart again, has no scale of its own: each part keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.passes.plan.joins import joined_values, origins_of
from tests.quantizing import Plain, conv, data

Forward = Callable[[Any, Tensor], Any]


def _written(s: Any, x: Tensor) -> Tensor:
    y: Tensor = s.both(x).clone()
    y[:, :4] = y[:, :4] * 40
    y[:, 4:] = y[:, 4:].sigmoid()
    return y


def _levels(s: Any, x: Tensor) -> Tensor:
    """Two levels whose boxes and scores are joined, joined with each other, and taken apart again."""
    levels = [torch.cat([s.boxes(each) * 40, s.scores(each) - 4], 1) for each in (x, x[:, :, ::2, ::2])]
    whole = torch.cat([each.flatten(2) for each in levels], 2)
    boxes, scores = whole[:, :4], whole[:, 4:]
    return torch.cat([boxes * 1.5, scores.sigmoid()], 1)


DETECTORS: dict[str, Forward] = {
    "cat": lambda s, x: torch.cat([s.boxes(x) * 40, s.scores(x).sigmoid()], 1),
    "cat, moved": lambda s, x: torch.cat([s.boxes(x) * 40, s.scores(x).sigmoid()], 1).flatten(2).transpose(1, 2),
    "stack": lambda s, x: torch.stack([s.scores(x) * 100, s.scores(x).sigmoid()], 1).flatten(1, 2)[:, 4:],
    "write": _written,
    "levels": _levels,
}


def _parts(y: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    y = y if y.shape[1] == 12 else y.swapaxes(1, 2)
    return y[:, :4], y[:, 4:]


def _decibels(found: Any, wanted: Any) -> float:
    return float(10 * np.log10((wanted**2).sum() / ((found - wanted) ** 2).sum()))


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detectors_scores_keep_a_scale_of_their_own(name: str) -> None:
    torch.manual_seed(0)
    module = Plain(DETECTORS[name], boxes=conv(3, 4), scores=conv(3, 8), both=conv(3, 12)).eval()
    items = [data(1, 3, 12, 12, seed=seed) for seed in range(8)]
    for precision in ("int8", "int16"):
        quantizer = q8.Quantizer(precision=precision)
        model = q8.compile(q8.quantize(module, (items[0],), items, quantizer, progress=False))
        assert model.report().exact
        found, wanted = q8.Session(model, "reference")(items[1].numpy()), module(items[1]).detach().numpy()
        for part, exact in zip(_parts(found), _parts(wanted), strict=True):
            assert _decibels(part, exact) > 30
        assert len(np.unique(_parts(found)[1])) > 40


def test_what_a_layer_reads_or_a_shuffle_mixes_is_joined_in_int8() -> None:
    torch.manual_seed(0)
    forwards: list[Forward] = [
        lambda s, x: s.last(torch.cat([s.a(x), s.b(x).sigmoid()], 1)),
        lambda s, x: s.part(torch.channel_shuffle(torch.cat([s.a(x), s.b(x).relu()], 1), 2).chunk(2, 1)[1]),
    ]
    for forward in forwards:
        module = Plain(forward, a=conv(3, 4), b=conv(3, 4), last=conv(8, 4), part=conv(4, 4)).eval()
        model = q8.compile(q8.quantize(module, (data(1, 3, 8, 8),), [data(1, 3, 8, 8)], progress=False))
        assert not model.report().float32


def test_thousands_of_joins_in_a_row() -> None:
    """Each joins what the one before left with an input; what is left of all of them is an output."""
    graph = Graph(inputs=["x", "y"], types=dict.fromkeys("xy", TensorType((1, 2))))
    last = "y"
    for i in range(2000):
        graph.types |= {f"c{i}": TensorType((1, 4)), f"s{i}": TensorType((1, 2))}
        graph.nodes.append(Node("cat", (last, "x"), f"c{i}", {"dim": 1}))
        cut = {"dim": 1, "start": 1, "end": 3, "step": 1, "extent": 0}
        graph.nodes.append(Node("slice", (f"c{i}",), f"s{i}", cut))
        last = f"s{i}"
    graph.outputs = [last]
    names = {node.output for node in graph.nodes}
    joined = joined_values(graph, names)
    assert joined.values | joined.pieces == names
    ((numbers, parts),) = (found for found in origins_of(graph, [last]) if found is not None)
    assert [parts[i] for i in numbers[0]] == ["x", "x"]
