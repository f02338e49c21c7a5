"""What a network keeps from call to call: the same bytes everywhere, and nobody's but the caller's to change."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, INT16X4
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from testbed.harness import flat
from testbed.standins import failing
from testbed.states import (
    NETWORKS,
    calls,
    compiled,
    exchanged,
    module,
    same,
    same_states,
    saved,
    written,
)

SNR = {"streaming": 35.0, "cell": 30.0, "cached": 28.0, "counted": 35.0}
"""dB that the outputs keep over calls that calibration did not meet."""


@pytest.mark.parametrize("name", NETWORKS)
def test_many_calls_are_the_same_bytes_and_near_torch(name: str, device: Device) -> None:
    ours, exact, stateful = Session(compiled(name), device), Session(compiled(name), "reference"), module(name)
    before = [b.clone() for b in stateful.buffers()]
    found: list[Any] = [ours(*x) for x in calls(name, 0, 8)]
    found += ours.run_many(calls(name, 8, 8))
    error = signal = 0.0
    with torch.no_grad():
        for y, x in zip(found, calls(name, 0, 16), strict=True):
            same(y, exact(*x))
            for f, wanted in zip(flat(y), pytree.tree_leaves(stateful(*x)), strict=True):
                error += float(((torch.from_numpy(f) - wanted) ** 2).sum())
                signal += float((wanted**2).sum())
    for buffer, value in zip(stateful.buffers(), before, strict=True):
        buffer.copy_(value)
    same_states(ours, exact)
    assert 10 * np.log10(signal / error) > SNR[name]


def test_caches_are_written_row_by_row(vulkan: Device) -> None:
    session = Session(compiled("cached"), vulkan)
    kernels = [d.kernel for d in session.program.dispatches]
    assert kernels.count("update_rows") == 2
    stay = "from call to call stay keys int8x4[1, 2, 12, 8], values int8x4[1, 2, 12, 8]"
    assert stay in str(session.model.report()).splitlines()
    assert not any(kernel.startswith(("store", "update.")) for kernel in kernels)


def test_states_that_take_each_others_place(device: Device) -> None:
    ours, exact = Session(exchanged(), device), Session(exchanged(), "reference")
    for seed in range(4):
        x = np.random.default_rng(seed).integers(-128, 128, (2, 6)).astype(np.int8)
        same(ours(x), exact(x))
        same_states(ours, exact)


@pytest.mark.parametrize("dtype", [FLOAT32, INT8X4, INT16X4])
def test_rows_are_written_where_a_state_lies(dtype: str, device: Device) -> None:
    """Negative places count from the end, the last of equal ones counts, and outside nothing is written. Integers along
    the last dimension are copied with the state: a word has several of them."""
    model = written(dtype)
    ours, exact = Session(model, device), Session(model, "reference")
    copied = () if dtype == FLOAT32 else ("update", "store")
    assert {d.kernel.partition(".")[0] for d in ours.program.dispatches} == {"update_rows", *copied}
    generator = np.random.default_rng(5)
    places = (
        *([0, 1, 6, -1, 4, 4], [3, 7, -8, 10, np.nan, -4], [5, 1, 2, 3, 4, 5], [2, 2, 2, 2, 2, 2]),
        *([0, 1, 2, 3, 4, 6], [-1, 0, 1, 2, 3, 7], [0, 1, 2, 3, 4, np.nan], [2.5, 3, 4, 5, 6, 100]),
    )
    for place in places:
        rows, columns = (
            generator.normal(0, 40, model.inputs[n].shape).astype(DTYPES[dtype]) for n in ("rows", "columns")
        )
        x = rows, columns, np.array(place, np.float32)
        same(ours(*x), exact(*x))
        same_states(ours, exact)


@pytest.mark.parametrize("twice", [None, 1, 64, 120])
def test_long_lists_of_places_need_not_ascend(twice: int | None, device: Device) -> None:
    """More rows than a workgroup has threads, and one that is written over by the last."""
    model = written(INT8X4, 130)
    place = np.arange(130, dtype=np.float32)
    if twice is not None:
        place[-1] = twice
    generator = np.random.default_rng(6)
    rows, columns = (generator.integers(-128, 128, model.inputs[n].shape, np.int8) for n in ("rows", "columns"))
    ours, exact = Session(model, device), Session(model, "reference")
    same(ours(rows, columns, place), exact(rows, columns, place))
    same_states(ours, exact)


def test_integers_and_bools_have_their_dtypes(vulkan: Device) -> None:
    session = Session(compiled("counted"), vulkan)
    (x,) = next(calls("counted", 0, 1))
    for _ in range(3):
        session(x)
    kept = saved(session)
    assert [str(kept[name].dtype) for name in ("calls", "odd")] == ["int64", "bool"]
    assert kept["calls"].tolist() == [3] and kept["odd"].tolist() == [True]
    session.state.update(calls=np.array([(1 << 29) + 1]), odd=np.array([False]))
    assert session(x)["before"] == (1 << 29) + 1 and session.state["odd"].all()
    for name, value in (("calls", np.array([3.0])), ("calls", np.array([1 << 31])), ("odd", np.array([1]))):
        with pytest.raises(InputError, match=name):
            session.state[name] = value
    assert session.state["calls"] == (1 << 29) + 2


@pytest.mark.parametrize("where", ["vulkan", "reference"])
def test_states_are_read_set_saved_and_reset(where: str, tmp_path: Path) -> None:
    model = compiled("cell")
    model.save(tmp_path / "net.q8ta")
    session, other = Session(model, where), Session(q8.load(tmp_path / "net.q8ta"), where)
    assert {name: (y.shape, y.dtype) for name, y in session.state.items()} == dict.fromkeys(
        ("h", "c"), ((1, 8), np.dtype(np.float32))
    )
    first = [session(*x) for x in calls("cell", 0, 3)]
    kept = saved(session)
    later = [session(*x) for x in calls("cell", 3, 3)]
    same(other.state["c"], np.zeros((1, 8)))  # a session of its own
    other.state.update(kept)
    same([other(*x) for x in calls("cell", 3, 3)], later)
    same_states(other, session)
    session.reset()
    same([session(*x) for x in calls("cell", 0, 3)], first)
    session.state["h"] = kept["h"]
    same(list(saved(session).values()), list(kept.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.state.update(h=np.zeros((1, 8), np.float32), d=0), r"no state 'd'; its states are: h, c"),
        (lambda s: s.state.update(h=np.ones((1, 8)), c=np.zeros((8,))), r"'c' must be float32 \(1, 8\), found float64"),
        (lambda s: s.state.update(h=np.zeros((1, 8), np.int64)), "'h' must be float32"),
        (lambda s: s.state.update(h=[[1.0], [2.0, 3.0]]), "state 'h' cannot become an array of numbers, found list"),
        (lambda s: s.state.__delitem__("h"), "can be set, not deleted"),
        (lambda s: s(np.zeros((1, 7), np.float32)), "must have shape"),
        (lambda s: list(s.run_many([np.zeros(3, np.float32)])), "item 0"),
        (lambda s: q8.run_many([s, s], calls("cell", 0, 2)), "keeps h, c from call to call, and each session its own"),
        (lambda s: s.model.reshape((2, 6)), "the model cannot take inputs of \\(2, 6\\)"),
    ],
)
def test_what_is_refused_changes_no_state(change: Any, message: str, vulkan: Device) -> None:
    with Session(compiled("cell"), vulkan) as session:
        for x in calls("cell", 0, 2):
            session(*x)
        before = saved(session)
        with pytest.raises(InputError, match=message):
            change(session)
        same(list(saved(session).values()), list(before.values()))
    with pytest.raises(InputError, match="closed"):
        session.reset()


def test_what_is_measured_is_no_call(vulkan: Device, caches: Path) -> None:
    session, exact = Session(compiled("counted"), vulkan, tune=True), Session(compiled("counted"), "reference")
    for x in calls("counted", 0, 3):
        session.time(*x, repeats=2)
        session.warm_up()
        same(session(*x), exact(*x))
    same_states(session, exact)


def test_calls_of_several_threads_follow_each_other(vulkan: Device) -> None:
    session, (x,) = Session(compiled("counted"), vulkan), next(calls("counted", 0, 1))
    with ThreadPoolExecutor(4) as pool:
        numbers = sorted(int(y["before"][0]) for y in pool.map(lambda _: session(x), range(40)))
    assert numbers == list(range(40))
    assert session.state["calls"] == 40


@pytest.mark.parametrize("where", ["reference", "device"])
def test_calls_go_on_while_other_threads_warm_up(where: str, vulkan: Device) -> None:
    """Warming up set states back to what they were before it: calls that were made meanwhile were lost."""
    session = Session(compiled("counted"), vulkan if where == "device" else "reference")
    (x,), done = next(calls("counted", 0, 1)), threading.Event()

    def warm_up() -> None:
        while not done.is_set():
            session.warm_up()

    with ThreadPoolExecutor(2) as pool:
        warming = [pool.submit(warm_up) for _ in range(2)]
        numbers = [int(session(x)["before"][0]) for _ in range(40)]
        done.set()
        for each in warming:
            each.result()
    assert numbers == list(range(40))


def test_a_cancelled_or_interrupted_call_was_a_call(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session, (x,) = Session(compiled("counted"), vulkan), next(calls("counted", 0, 1))

    async def cancelled() -> None:
        call = asyncio.ensure_future(session.run_async(x))
        await asyncio.sleep(0)
        call.cancel()

    asyncio.run(cancelled())
    assert session.state["calls"] in (0, 1)  # before it began, or all of it
    session.reset()
    with monkeypatch.context() as patched:
        failing(patched, Structure, "unflatten", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            session(x)
    assert session.state["calls"] == 1
    for _ in session.run_many([x] * 9):
        break  # two more runs were in flight
    assert session(x)["before"] == session.state["calls"] - 1 == 4


def test_a_lost_device_takes_its_states_along(vulkan: Device) -> None:
    own = vulkan.engine.request(vulkan.wgpu.adapter)
    session = Session(compiled("cell"), own)
    for x in calls("cell", 0, 2):
        session(*x)
    kept, later = saved(session), [session(*x) for x in calls("cell", 2, 2)]
    own.destroy()
    for use in (lambda: session(*x), session.reset, lambda: session.state["h"], lambda: session.state.update(kept)):
        with pytest.raises(DeviceError, match="lost"):
            use()
    session.close()
    again = Session(compiled("cell"), vulkan)
    again.state.update(kept)
    same([again(*x) for x in calls("cell", 2, 2)], later)


def test_bindings_go_on_from_run_to_run(vulkan: Device) -> None:
    session, exact = Session(compiled("cell"), vulkan), Session(compiled("cell"), "reference")
    (x,) = next(calls("cell", 0, 1))
    usage = engines.native().package.BufferUsage
    buffer = vulkan.wgpu.create_buffer_with_data(data=x.numpy(), usage=usage.STORAGE | usage.COPY_SRC)
    binding = session.bind(buffer)
    for _ in range(3):
        binding.run()
        exact(x)
    same_states(session, exact)


def test_models_without_states_have_none(vulkan: Device) -> None:
    from testbed.small import small_model

    session = Session(small_model(), vulkan)
    session.reset()
    assert saved(session) == {} and session.program.states == ()
