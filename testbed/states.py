"""Networks that keep something from call to call: what the tests of states share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.ir.arithmetic import fraction
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, INT16X4, Array, Buffer, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from testbed.blocks import data
from testbed.harness import flat


class Streaming(nn.Module):
    """A convolution over time whose last samples stay: pieces give what the whole does."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(4, 8, 5), nn.Conv1d(8, 3, 1)
        self.register_buffer("last", torch.zeros(1, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.cat([self.last, x], -1)
        self.last.copy_(whole[..., -4:])
        y: Tensor = self.out(torch.relu(self.conv(whole)))
        return y


class Cell(nn.Module):
    """An LSTM's cell, whose states are other tensors after each call."""

    h: Tensor
    c: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.out = nn.Linear(6 + 8, 32), nn.Linear(8, 3)
        self.register_buffer("h", torch.zeros(1, 8))
        self.register_buffer("c", torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        i, f, g, o = self.gates(torch.cat([x, self.h], -1)).chunk(4, -1)
        self.c = f.sigmoid() * self.c + i.sigmoid() * g.tanh()
        self.h = o.sigmoid() * self.c.tanh()
        y: Tensor = self.out(self.h)
        return y


class Cached(nn.Module):
    """Attention of one token over those before it, which a cache of fixed size holds."""

    keys: Tensor
    values: Tensor
    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("keys", torch.zeros(1, 2, 12, 8))
        self.register_buffer("values", torch.zeros(1, 2, 12, 8))
        self.register_buffer("places", torch.arange(12.0))

    def forward(self, x: Tensor, place: Tensor) -> Tensor:
        q, k, v = (part(x).view(1, 1, 2, 8).transpose(1, 2) for part in (self.q, self.k, self.v))
        known = (self.places <= place).view(1, 1, 1, 12)
        self.keys.index_copy_(2, place.long(), k)
        self.values[:, :, place.long()] = v
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=known)
        found: Tensor = self.o(y.transpose(1, 2).reshape(1, 1, 16))
        return found


class Counted(nn.Module):
    """A number of calls, whether it is odd, a mean that fades, and a window that moves on."""

    calls: Tensor
    odd: Tensor
    mean: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("odd", torch.zeros(1, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(1, 6))
        self.register_buffer("window", torch.zeros(1, 5, 6))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        before = self.calls.clone()
        self.calls += 1
        self.odd = ~self.odd
        y = self.lin(x)
        self.mean.mul_(0.9).add_(y, alpha=0.1)
        self.window.copy_(torch.roll(self.window, -1, 1))
        self.window[:, -1] = y
        return {
            "mean": torch.where(self.odd, self.mean, self.mean * 2),
            "before": before,
            "window": self.window.mean(1),
        }


Items = Callable[[int], tuple[Tensor, ...]]

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Items]] = {
    "streaming": (Streaming, lambda i: (data(1, 4, 10, seed=i),)),
    "cell": (Cell, lambda i: (data(1, 6, seed=i),)),
    "cached": (Cached, lambda i: (data(1, 1, 16, seed=i), torch.tensor([float(i % 12)]))),
    "counted": (Counted, lambda i: (data(1, 6, seed=i),)),
}


@cache
def module(name: str) -> nn.Module:
    torch.manual_seed(3)
    return NETWORKS[name][0]().eval()


@cache
def quantized(name: str) -> torch.export.ExportedProgram:
    items = [NETWORKS[name][1](i) for i in range(60)]
    return q8.quantize(module(name), items[0], calibration=items, progress=False)


@cache
def compiled(name: str) -> Model:
    return q8.compile(quantized(name))


def calls(name: str, first: int, count: int) -> Iterator[tuple[Tensor, ...]]:
    """Inputs that calibration did not meet."""
    return (NETWORKS[name][1](1200 + i) for i in range(first, first + count))


def written(dtype: str, count: int = 6) -> Model:
    """`count` rows written into two states at places that are given, along a dimension inside and along the last one,
    which is packed; one is a result, too."""
    q = None if dtype == FLOAT32 else QParams(0.1, 3, dtype)
    graph = Graph(inputs=["rows", "columns", "place", "a", "b"], outputs=["a.1", "a.1", "b.1"])
    shapes = {"rows": (2, 3, count, 5), "columns": (3, 6, count), "a": (2, 3, count + 1, 5), "b": (3, 6, count + 5)}
    shapes |= {"a.1": shapes["a"], "b.1": shapes["b"]}
    graph.types = {name: TensorType(shape, dtype, q) for name, shape in shapes.items()}
    graph.types["place"] = TensorType((count,))
    graph.nodes = [
        Node("update", (x, rows, "place"), f"{x}.1", {"dim": 2, "from_end": True})
        for x, rows in (("a", "rows"), ("b", "columns"))
    ]
    for seed, name in enumerate("ab"):
        values = (data(*shapes[name], seed=seed) * 30).numpy().astype(DTYPES[dtype])
        graph.buffers[name] = Buffer(graph.add_constant(f"{name}.initial", values, dtype, q))
    return Model(graph, Structure({"list": [0]}))


def turned(dtype: str, pairs: bool = False, width: int = 6) -> Model:
    """Rows that are turned by angles and written into a state, which is a result, too."""
    q, fine = QParams(0.1 if dtype == INT8X4 else 0.001, 3, dtype), QParams(2.0**-15, 0, INT16X4)
    graph = Graph(inputs=["x", "cos", "sin", "place", "a"], outputs=["a.1", "a.1"])
    shapes: dict[str, tuple[int, ...]] = {"x": (1, 3, 2, width), "cos": (2, width), "a": (1, 3, 7, width)}
    shapes |= {"sin": (2, width if pairs else width // 2), "rows": shapes["x"], "a.1": shapes["a"]}
    for name, shape in shapes.items():
        own = fine if name in ("cos", "sin") else q
        graph.types[name] = TensorType(shape, own.dtype, own)
    graph.types["place"] = TensorType((2,))
    low, high = q.range
    factor = 2.0 ** (fraction(dtype) - 15)
    attrs = {"pairs": pairs, "cos_multiplier": factor, "sin_multiplier": factor, "lo": low, "hi": high}
    graph.nodes = [
        Node("q8ta_rotary", ("x", "cos", "sin"), "rows", attrs),
        Node("update", ("a", "rows", "place"), "a.1", {"dim": 2, "from_end": True}),
    ]
    zeros = np.zeros(shapes["a"], DTYPES[dtype])
    graph.buffers["a"] = Buffer(graph.add_constant("a.initial", zeros, dtype, q))
    return Model(graph, Structure({"list": [0]}))


def exchanged() -> Model:
    """Two states that take each other's place, what one was as output, and one in another shape."""
    q = QParams(0.1, 3)
    graph = Graph(inputs=["x", "a", "b", "c"], outputs=["y", "a", "b", "a", "seen"])
    shapes = {"x": (2, 6), "a": (2, 6), "b": (2, 6), "c": (12,), "y": (2, 6), "seen": (12,), "sum": (12,)}
    graph.types = {name: TensorType(shape, INT8X4, q) for name, shape in shapes.items()}
    attrs = {"a_multiplier": 1 << 14, "b_multiplier": 1 << 13, "shift": 14, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_add", ("x", "a"), "y", attrs), Node("view", ("a",), "seen", {"shape": (-1,)})]
    graph.nodes.append(Node("q8ta_add", ("seen", "c"), "sum", attrs))
    graph.outputs.insert(2, "sum")
    for seed, name in enumerate("abc"):
        values = (data(*shapes[name], seed=seed) * 30).clamp(-128, 127).to(torch.int8).numpy()
        graph.buffers[name] = Buffer(graph.add_constant(f"{name}.initial", values, INT8X4, q))
    return Model(graph, Structure({"list": [0, 1, 2]}))


def saved(session: Session) -> dict[str, Array]:
    """All states, as a caller would save them."""
    return dict(session.state)


def same(found: Any, expected: Any) -> None:
    for f, e in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_array_equal(f, e)


def same_states(found: Session, expected: Session) -> None:
    assert list(found.state) == list(expected.state) == list(found.model.graph.buffers)
    same(list(saved(found).values()), list(saved(expected).values()))
