"""Which buffers of a module stay from call to call, which are constants, and which are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import UnsupportedError
from testbed.noise import decibels
from testbed.states import calls, compiled, quantized
from tests.quantizing import data


class _Cache:
    """As transformers' StaticCache: what is written into, beside a module's buffers of the same tensors."""

    def __init__(self) -> None:
        self.layers = [{"keys": torch.zeros(1, 2, 12, 8)}]


class _HeldByAnObject(torch.nn.Module):
    """Four queries a key of a cache that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.cache = torch.nn.Linear(16, 64), torch.nn.Linear(16, 16), _Cache()
        self.register_buffer("keys", self.cache.layers[0]["keys"])

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        keys = self.cache.layers[0]["keys"]
        keys.index_copy_(2, index.long(), self.k(x).view(1, 1, 2, 8).transpose(1, 2))
        repeated = keys[:, :, None].expand(1, 2, 4, 12, 8).reshape(1, 8, 12, 8)
        return torch.matmul(self.q(x).view(1, 8, 1, 8), repeated.transpose(-1, -2))


def test_buffers_that_an_object_of_the_module_holds_are_states() -> None:
    stateful = _HeldByAnObject().eval()
    first = stateful.cache.layers[0]["keys"]
    items = [(data(1, 1, 16, seed=i), torch.tensor([float(i)])) for i in range(12)]
    with Session(q8.compile(q8.quantize(stateful, items[0], items, progress=False)), "reference") as session:
        assert stateful.cache.layers[0]["keys"] is first
        assert list(session.state) == ["keys"]
        found = [session(*x) for x in items]
    wanted = [stateful(*x) for x in items]
    assert (decibels(torch.stack(wanted).detach().numpy(), np.stack(found)) or 0) > 35


class _Named(torch.nn.Module):
    """A sum that goes on, which forward reads by another name or through a view."""

    total: Tensor
    read: Tensor

    def __init__(self, view: bool) -> None:
        super().__init__()
        total = torch.zeros(2, 8)
        self.register_buffer("total", total)
        self.register_buffer("read", total[1:] if view else total)

    def forward(self, x: Tensor) -> Tensor:
        self.total.mul_(0.5).add_(x)
        return self.read * 2


def test_a_state_of_two_names_is_one() -> None:
    items = [data(2, 8, seed=i) for i in range(8)]
    with Session(q8.compile(q8.quantize(_Named(False).eval(), items[:1], items, progress=False)), "reference") as ours:
        found, own = [ours(x) for x in items], _Named(False)
    assert (decibels(torch.stack([own(x) for x in items]).numpy(), np.stack(found)) or 0) > 35


def test_states_whose_memory_is_shared_in_part_are_refused() -> None:
    items = [data(2, 8, seed=i) for i in range(2)]
    with pytest.raises(UnsupportedError, match="changes its buffer total, whose memory read shares: keep one"):
        q8.quantize(_Named(True).eval(), items[:1], items, progress=False)


def test_a_state_that_the_example_leaves_as_it_was() -> None:
    """An example of zeros replaces a buffer of zeros by another of zeros."""

    class Last(torch.nn.Module):
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(1, 8))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last + x * 2
            self.last = x
            return y

    zeros, items = torch.zeros(1, 8), [data(1, 8, seed=i) for i in range(8)]
    with Session(q8.compile(q8.quantize(Last().eval(), (zeros,), items, progress=False)), "reference") as ours:
        found = [ours(x) for x in items[:2]]
    assert (decibels((items[0] + items[1] * 2).numpy(), found[1]) or 0) > 35


def test_two_buffers_that_are_given_one_tensor_are_refused() -> None:
    """They kept it for the first of them alone."""

    class Pair(torch.nn.Module):
        one: Tensor
        other: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("one", torch.zeros(1, 8))
            self.register_buffer("other", torch.ones(1, 8))

        def forward(self, x: Tensor) -> Tensor:
            found = self.one + self.other * 2 + x
            self.one = self.other = x * 3
            return found

    x = data(1, 8)
    with pytest.raises(q8.UnsupportedError, match="its buffers one and other one tensor: keep one alone, and read it"):
        q8.quantize(Pair().eval(), (x,), [x], progress=False)


def test_a_buffer_that_is_given_the_tensor_it_is_stays_a_constant() -> None:
    class Moved(torch.nn.Module):
        rates: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rates", torch.linspace(1, 2, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.rates = self.rates.to(x.device, x.dtype)
            return x * self.rates

    x = data(1, 8)
    model = q8.compile(q8.quantize(Moved().eval(), (x,), [x], progress=False))
    assert not model.graph.buffers
    assert (decibels((x * torch.linspace(1, 2, 8)).numpy(), q8.Session(model, "reference")(x)) or 0) > 35


def test_a_quantized_program_runs_in_torch_with_its_buffers() -> None:
    program = quantized("cell").module(check_guards=False)
    exact = Session(compiled("cell"), "reference")
    with torch.no_grad():
        for x in calls("cell", 0, 4):
            np.testing.assert_allclose(exact(*x), program(*x).numpy(), atol=0.02)


class _Before(torch.nn.Module):
    """Gives its state as it was before the call, and views of that."""

    h: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.register_buffer("h", torch.zeros(2, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        before = self.h.clone()
        self.h.copy_(self.layer(x + before).tanh())
        return before, before.t(), *before.chunk(2, 1)


def test_a_quantized_program_in_torch_returns_a_state_as_it_was_before_the_call() -> None:
    items = [data(2, 8, seed=seed) for seed in range(8)]
    exported = q8.quantize(_Before().eval(), (items[0],), items, progress=False)
    session, program = Session(q8.compile(exported), "reference"), exported.module(check_guards=False)
    for x in items[:3]:
        for found, wanted in zip(program(x), session(x.numpy()), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-6)


class _Renewed(torch.nn.Module):
    """Gives a buffer what a function makes of it."""

    table: Tensor

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.layer = change, torch.nn.Linear(8, 8)
        self.register_buffer("table", torch.linspace(1, 2, 64).view(8, 8).t())

    def forward(self, x: Tensor) -> Tensor:
        self.table = self.change(self.table)
        y: Tensor = self.layer(x) @ self.table
        return y


def test_a_batch_of_any_size_takes_states() -> None:
    """Also a buffer that is given a copy of what it holds."""
    items = [data(2, 8, seed=i) for i in range(8)]
    for moved in (torch.clone, lambda table: table.roll(1, 0), lambda table: table * 1.1):
        renewed = _Renewed(moved).eval()
        session = q8.Session(
            q8.compile(q8.quantize(renewed, items[:1], items, progress=False, dynamic_batch=True)), "reference"
        )
        with torch.no_grad():
            for x in (data(5, 8), data(1, 8)):
                assert np.abs(session(x) - renewed(x).numpy()).max() < 0.1  # of values up to 10
