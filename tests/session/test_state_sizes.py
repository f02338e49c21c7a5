"""What a network keeps from call to call, where inputs have other sizes than the example."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.runtime.device import Device
from testbed.noise import decibels
from testbed.states import (
    Streaming,
    calls,
    compiled,
    same,
    same_states,
)
from tests.quantizing import data


def test_other_sizes_of_what_comes_in_leave_states_as_they_are() -> None:
    """One model for chunks and for steps: what a session wrote in one, another goes on with in the other."""
    model = compiled("streaming")
    x = np.concatenate([call[0] for call in calls("streaming", 0, 2)], axis=2)
    long, short = Session(model.reshape((1, 4, 20)), "reference"), Session(model, "reference")
    whole = long(x)
    short(x[..., :10])
    long.state.update(short.state)
    same(short(x[..., 10:]), whole[..., 10:])
    same(long(np.concatenate([x[..., 10:], x[..., 10:]], axis=2))[..., :10], whole[..., 10:])


class _Placed(torch.nn.Module):
    """Rows of a list, without the state's leading dimension, written at places along its second."""

    kept: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 2, 12, 8))

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        self.kept[:, :, places] = x.transpose(0, 1)
        return self.kept.sum(2)


def test_a_chunk_and_a_single_row_are_written_at_places_by_one_model() -> None:
    items = [(data(4, 2, 8, seed=i), torch.arange(4) + 4 * i) for i in range(3)]
    model = q8.compile(q8.quantize(_Placed().eval(), items[0], items, progress=False))
    chunks, single = Session(model, "reference"), Session(model.reshape((1, 2, 8), (1,)), "reference")
    rows, places = items[1]
    wanted = chunks(rows, places)
    for i in range(4):
        found = single(rows[i : i + 1], places[i : i + 1])
    same(found, wanted)
    same_states(single, chunks)


class _Mean(torch.nn.Module):
    """A mean that counts the elements itself, and a state."""

    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("last", torch.zeros(1, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).sum(1) / x.shape[1] + self.last
        self.last.copy_(x[:, -1])
        return y


def test_a_size_that_numbers_follow_from_is_fixed_beside_states() -> None:
    x = data(1, 6, 8)
    model = q8.compile(q8.quantize(_Mean().eval(), (x,), [x], progress=False))
    with pytest.raises(InputError, match="dimension 1 of input x"):
        model.reshape((1, 9, 8))


def test_inputs_of_any_size_go_on_with_the_same_states(device: Device, tmp_path: Path) -> None:
    """Pieces of a stream as they come: one session, its programs share what stays."""
    torch.manual_seed(0)
    stream, pieces = Streaming().eval(), [data(1, 4, size, seed=size) for size in (10, 3, 17, 10, 4)]
    program = q8.quantize(
        stream, (pieces[0],), [data(1, 4, 10, seed=i) for i in range(8)], dynamic_shapes=[{2: Dim("T")}], progress=False
    )
    q8.compile(program).save(tmp_path / "net.q8ta")
    model = q8.load(tmp_path / "net.q8ta")
    with Session(model, device) as ours, Session(model, "reference") as exact:
        found = [ours(x) for x in pieces]
        for y, x in zip(found, pieces, strict=True):
            same(y, exact(x))
        same_states(ours, exact)
        with ours._fitting((pieces[1],), {}) as other:
            ours.reset()
            ours.close()
            exact.reset()
            same(other.begin((pieces[1],), {}).result(), exact(pieces[1]))  # states are there as long as a program is
    wanted = np.concatenate([stream(x).detach().numpy() for x in pieces], -1)
    assert (decibels(wanted, np.concatenate(found, -1)) or 0) > 35


class _Written(torch.nn.Module):
    """Writes rows behind those that it counted, and says how many there were."""

    rows: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)
        self.register_buffer("rows", torch.zeros(1, 24, 4))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        places = self.count + torch.arange(x.shape[1])
        self.rows.index_copy_(1, places, self.lin(x))
        before = self.count.clone()
        self.count += x.shape[1]
        return self.rows * 1.0, before


def test_what_a_state_grows_by_follows_the_size_of_an_input(vulkan: Device, tmp_path: Path) -> None:
    """A cache that counts what it holds, from a file; and what is written beyond it is the calibration's fault."""
    torch.manual_seed(0)
    module, items = _Written().eval(), [data(1, 8, 4, seed=i) for i in range(4)]

    def anew() -> Iterator[Tensor]:
        for x in items:
            module.count.zero_()
            yield x

    dynamic: dict[str, Any] = {"dynamic_shapes": [{1: Dim("n", min=1, max=8)}], "progress": False}
    with pytest.raises(InputError, match=r"not run on calibration item 3: .*\(rows, count\): .*generator that sets it"):
        q8.quantize(module, (items[0],), items, **dynamic)
    q8.compile(q8.quantize(module, (items[0],), anew(), **dynamic)).save(tmp_path / "net.q8ta")
    model = q8.load(tmp_path / "net.q8ta")
    with Session(model, vulkan) as ours, Session(model, "reference") as exact:
        before = 0
        for size in (3, 1, 8, 5, 1):
            x = data(1, size, 4, seed=size)
            found, wanted = ours(x), module(x)
            same(found, exact(x))
            assert found[1].tolist() == wanted[1].tolist() == [before]
            assert (decibels(wanted[0].detach().numpy(), found[0]) or 0) > 35
            before += size
