"""Rows behind the last one of a cache: calls that would take them are refused, also where a state counts them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.row_indices import RowIndices
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from testbed.harness import flat
from testbed.standins import failing
from testbed.states import same, saved
from tests.importing import imported
from tests.quantizing import Plain, data

ROWS = 7


class _Counting(nn.Module):
    """Writes rows into a cache behind those that are there, and gives the mean of all."""

    cache: Tensor
    at: Tensor

    def __init__(self, more: Callable[[Tensor, int], Tensor] = torch.add) -> None:
        super().__init__()
        self.more, self.layer = more, nn.Linear(6, 6)
        self.register_buffer("cache", torch.zeros(ROWS, 6))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        self.cache.index_copy_(0, self.at + torch.arange(count), self.layer(x))
        self.at.copy_(self.more(self.at, count))
        return self.cache.mean(0)


class _Numbered(nn.Module):
    """Rows of a table of positions, at the indices that one number and the count of tokens give."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 6)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        y: Tensor = x + self.table(first[0] + torch.arange(x.shape[0]))
        return y


def items_of(count: int, rows: int = 2) -> list[Tensor]:
    return [data(rows, 6, seed=i) for i in range(count)]


@cache
def counting(sizes: bool = False) -> Model:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dynamic_shapes": [{0: torch.export.Dim("n", min=1, max=4)}]} if sizes else {}
    example = (items_of(1, 4 if sizes else 2)[0],)
    program = q8.quantize(_Counting().eval(), example, items_of(3), progress=False, **options)
    return q8.compile(program)


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_a_full_cache_refuses_the_next_call(where: str, tmp_path: Path) -> None:
    counting().save(tmp_path / "net.q8ta")
    session, items = Session(q8.load(tmp_path / "net.q8ta"), where), items_of(5)
    session.warm_up()
    found = [session(x) for x in items[:3]]
    before = saved(session)
    message = r"state 'at' is 6, and the call takes row 7 of 'cache' \(.*\), which has 7 rows: session\.reset\(\) lets"
    with pytest.raises(InputError, match=message):
        session(items[3])
    with pytest.raises(InputError, match=f"item 0: {message}"):
        list(session.run_many(items))
    same(list(saved(session).values()), list(before.values()))
    session.warm_up()
    same(list(saved(session).values()), list(before.values()))
    session.state["at"] = np.array(5)
    session(items[3])
    assert session.state["at"] == 7
    with pytest.raises(InputError, match="state 'at' is 7"):
        session(items[3])
    session.reset()
    results = session.run_many(items)
    same([next(results) for _ in range(3)], found)
    with pytest.raises(InputError, match="item 3: state 'at' is 6"):
        next(results)


def test_states_that_count_are_not_read_from_the_device(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(counting(), vulkan)
    with monkeypatch.context() as patched:
        failing(patched, type(session.state), "_read", AssertionError("a state was read"))
        for _ in range(3):
            for x in items_of(3):
                session(x)
            with pytest.raises(InputError, match="state 'at' is 6"):
                session(x)
            session.reset()
        list(session.run_many(items_of(3)))


def test_calls_of_other_sizes_count_on(device: Device) -> None:
    session = Session(counting(sizes=True), device)
    for rows in (1, 3, 2):
        session(data(rows, 6))
    with pytest.raises(InputError, match="state 'at' is 6, and the call takes row 7"):
        session(data(2, 6))
    session(data(1, 6))
    with pytest.raises(InputError, match="state 'at' is 7, and the call takes row 7"):
        session(data(1, 6))


def test_runs_of_a_binding_are_counted_by_the_next_call(vulkan: Device) -> None:
    session, (x,) = Session(counting(), vulkan), items_of(1)
    usage = engines.native().package.BufferUsage
    buffer = vulkan.wgpu.create_buffer_with_data(data=x.numpy(), usage=usage.STORAGE | usage.COPY_SRC)
    binding = session.bind(buffer)
    binding.run()
    binding.run()
    session(x)
    with pytest.raises(InputError, match="state 'at' is 6"):
        session(x)
    binding.run()  # is not checked, and writes nothing behind the last row
    assert session.state["at"] == 8


def test_an_interrupted_call_is_counted(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session, (x,) = Session(counting(), vulkan), items_of(1)
    with monkeypatch.context() as patched:
        failing(patched, RowIndices, "after", KeyboardInterrupt)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                session(x)
    with pytest.raises(InputError, match="state 'at' is 6"):
        session(x)


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_rows_of_a_number_and_a_count(where: str) -> None:
    torch.manual_seed(0)
    items = [(x, torch.tensor([i])) for i, x in enumerate(items_of(6))]
    session = Session(q8.compile(q8.quantize(_Numbered().eval(), items[0], items, progress=False)), where)
    session(*items[5])
    with pytest.raises(
        InputError, match=r"input 'first' is 6, and the call takes row 7 of the table of .*: give row indices"
    ):
        session(items[0][0], np.array([6]))


class _Sliced(nn.Module):
    """Rows of a table at the first four token numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 16)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.table(ids[:, :4]).mean(1)
        return y


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_a_part_of_an_input_is_checked_as_all_of_it_is(where: str) -> None:
    torch.manual_seed(0)
    items = [(torch.arange(6).roll(i, 0)[None],) for i in range(4)]
    session = Session(q8.compile(q8.quantize(_Sliced().eval(), items[0], items, progress=False)), where)
    session(np.array([[0, 1, 2, 6, 99999, 5]]))
    with pytest.raises(InputError, match=r"element 2 of input 'ids' is 7, and the call takes row 7 of .*7 rows"):
        session(np.array([[0, 1, 7, 6, 5, 4]]))


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_rows_before_the_first_one_are_refused_where_torch_raises(where: str) -> None:
    """Of an embedding and what is written by index_copy; in x[places] they count from the end."""
    torch.manual_seed(0)
    module = Plain(
        lambda self, ids, x: (self.table(ids - 3), x.index_copy(0, ids - 3, x[:2]), self.layer(x)[ids - 7]),
        table=nn.Embedding(ROWS, 6),
        layer=nn.Linear(6, 6),
    )
    ids, x = torch.tensor([3, 5]), data(ROWS, 6)
    session = Session(q8.compile(q8.quantize(module.eval(), (ids, x), [(ids, x)], progress=False)), where)
    session(np.array([9, 3]), x)
    for wrong in (2, 10):
        with pytest.raises(
            InputError,
            match=rf"element 1 of input 'inputs_0' is {wrong}, and the call takes row {wrong - 3} of .*7 rows",
        ):
            session(np.array([3, wrong]), x)


def test_computed_rows_before_the_first_one_take_the_nearest_and_write_none(device: Device) -> None:
    """Torch raises an error. What the network computes is not checked."""
    x, table = data(ROWS, 6), data(ROWS, 6, seed=1)
    model = imported(
        lambda ids: (
            nn.functional.embedding(ids // 1 - 3, table),
            x.index_copy(0, ids // 1 - 3, table[:2]),
            table.gather(0, (ids // 1 - 3)[:, None]),
            x.index_select(1, ids // 1 - 3),
            x[ids // 1 - 3],
        ),
        torch.tensor([3, 5]),
    )
    found = flat(Session(model, device)(np.array([1, 4])))
    nearest = table.numpy()[[0, 1]]
    written = x.numpy().copy()
    written[1] = table.numpy()[1]
    same(found, [nearest, written, nearest[:, :1], x.numpy()[:, [0, 1]], x.numpy()[[-2, 1]]])


def test_a_recorded_run_counts_whenever_it_is_submitted(vulkan: Device) -> None:
    session, (x,) = Session(counting(), vulkan), items_of(1)
    usage = engines.native().package.BufferUsage
    buffer = vulkan.wgpu.create_buffer_with_data(data=x.numpy(), usage=usage.STORAGE | usage.COPY_SRC)
    encoder = vulkan.wgpu.create_command_encoder()
    session.bind(buffer).record(encoder)
    session(x)
    session(x)
    vulkan.wgpu.queue.submit([encoder.finish()])
    with pytest.raises(InputError, match="state 'at' is 6"):
        session(x)


def test_a_warm_up_that_fails_leaves_states_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    session, (x,) = Session(counting(), "reference"), items_of(1)
    session(x)
    before = saved(session)
    with monkeypatch.context() as patched:
        failing(patched, reference, "run", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            session.warm_up()
    same(list(saved(session).values()), list(before.values()))


def _of(more: Callable[[Tensor, int], Tensor]) -> Model:
    torch.manual_seed(0)
    return q8.compile(q8.quantize(_Counting(more).eval(), (items_of(1)[0],), items_of(3), progress=False))


def test_a_ring_is_never_full() -> None:
    session = Session(_of(lambda at, count: (at + count) % (ROWS - 1)), "reference")
    for x in items_of(9):
        session(x)
    assert session.state["at"] == 0


def test_what_counts_by_other_rules_is_not_followed(vulkan: Device) -> None:
    """Behind the last row nothing is written."""
    model = _of(lambda at, count: at + torch.clamp(at, count, count))
    ours, exact = Session(model, vulkan), Session(model, "reference")
    for x in items_of(5):
        same(ours(x), exact(x))
        same(list(saved(ours).values()), list(saved(exact).values()))
    assert ours.state["at"] == 10
