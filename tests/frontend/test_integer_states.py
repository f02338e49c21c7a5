"""States of integers: exact to int32, and refused beyond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.runtime.device import Device
from tests.importing import flat, imported
from tests.quantizing import Plain


class Last(nn.Module):
    """Keeps the token that it was given last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        y = ids + self.get_buffer("last")
        self.get_buffer("last").copy_(ids)
        return y


class History(nn.Module):
    """Tokens by the places they were written at, and the next place, which nothing is read at."""

    told: Tensor
    place: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("told", torch.full((5,), -(2**30) - 1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.told.index_copy_(0, self.place % 5, ids)
        self.place += 1
        return self.told.clone(), self.told.argmax(), self.place.clone()


def test_integers_that_stay_are_exact_to_int32(device: Device) -> None:
    """Where float32 has one number of 64: written at a computed place, counted, read back and set."""
    module = History()
    with q8.Session(imported(module, torch.tensor([3])), device) as session:
        module.place.fill_(2**28 + 3)
        session.state["place"] = np.array([2**28 + 3])
        for token in (2**29 + 1, 2**29 + 3, 2**29, -(2**29) - 7, 5, 6):
            for ours, theirs in zip(
                flat(session(torch.tensor([token]))), flat(module(torch.tensor([token]))), strict=True
            ):
                np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(session.state["told"], module.told)


def test_a_state_holds_what_an_input_held() -> None:
    session = q8.Session(imported(Last(), torch.tensor([3])), "reference")
    assert [int(session(torch.tensor([n]))[0]) for n in (3, 5, -7)] == [3, 8, -2]


@pytest.mark.parametrize(
    ("first", "function", "message"),
    [
        (0, lambda ids: ids.float().exp().long(), "made of floats of any size"),
        (2**40, lambda ids: ids, r"net.last begins with 1099511627776, .* int32, within 2\^31: begin with a smaller"),
    ],
)
def test_states_beyond_int32_are_refused(first: int, function: Callable[[Tensor], Tensor], message: str) -> None:
    module = Last()
    module.get_buffer("last").fill_(first)
    with pytest.raises(UnsupportedError, match=message):
        imported(Plain(lambda s, ids: s.net(function(ids)), net=module), torch.tensor([3]))


class Twice(nn.Module):
    """Two states that become the same value."""

    first: Tensor
    second: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("first", torch.zeros(1, 4))
        self.register_buffer("second", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        self.first = self.first + x
        self.second = self.first.clone()
        return self.second + x


def test_two_states_may_become_one_value() -> None:
    x = torch.ones(1, 4)
    session = q8.Session(q8.compile(q8.quantize(Twice().eval(), (x,), [x] * 3, progress=False)), "reference")
    found = [float(session(x.numpy())[0, 0]) for _ in range(3)]
    np.testing.assert_allclose(found, [2, 3, 4], atol=0.05)
    np.testing.assert_array_equal(session.state["first"], session.state["second"])
