"""What a network keeps from call to call: the same bytes everywhere, and nobody's but the caller's to change."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.export import Dim

import q8ta_wgpu as q8
from bench.noise import decibels
from q8ta_wgpu import Session
from q8ta_wgpu.errors import DeviceError, InputError, UnsupportedError
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, INT8X4, INT16X4, Array
from q8ta_wgpu.runtime import engines
from q8ta_wgpu.runtime.device import Device
from tests.harness import flat
from tests.modelfiles import forge, refused
from tests.quantizing import data
from tests.states import NETWORKS, Streaming, calls, compiled, exchanged, module, quantized, written

SNR = {"streaming": 35.0, "cell": 30.0, "cached": 28.0, "counted": 35.0}
"""dB that the outputs keep over calls that calibration did not meet."""


def saved(session: Session) -> dict[str, Array]:
    return dict(session.state)


def same(found: Any, expected: Any) -> None:
    for f, e in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_array_equal(f, e)


def same_states(found: Session, expected: Session) -> None:
    assert list(found.state) == list(expected.state) == list(found.model.graph.buffers)
    same(list(saved(found).values()), list(saved(expected).values()))


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
            for f, wanted in zip(flat(y), torch.utils._pytree.tree_leaves(stateful(*x)), strict=True):
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
    """Negative places count from the end, the last of equal ones counts, and outside nothing is written."""
    model = written(dtype)
    ours, exact = Session(model, device), Session(model, "reference")
    assert {d.kernel.partition(".")[0] for d in ours.program.dispatches} == {"update_rows"}
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


def test_a_cancelled_or_interrupted_call_was_a_call(vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    session, (x,) = Session(compiled("counted"), vulkan), next(calls("counted", 0, 1))

    async def cancelled() -> None:
        call = asyncio.ensure_future(session.run_async(x))
        await asyncio.sleep(0)
        call.cancel()

    asyncio.run(cancelled())
    assert session.state["calls"] in (0, 1)  # before it began, or all of it
    session.reset()

    def interrupted(found: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(session, "_finish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session(x)
    assert session.state["calls"] == 1
    for _ in session.run_many([x] * 9):
        break  # two more runs were in flight
    assert session(x)["before"] == session.state["calls"] - 1 == 4


def test_a_lost_device_takes_its_states_along() -> None:
    native = engines.native()
    own = native.request(next(a for a in native.adapters() if "llvmpipe" in a.info["device"]))
    session = Session(compiled("cell"), own)
    for x in calls("cell", 0, 2):
        session(*x)
    kept, later = saved(session), [session(*x) for x in calls("cell", 2, 2)]
    own.destroy()
    for use in (lambda: session(*x), session.reset, lambda: session.state["h"], lambda: session.state.update(kept)):
        with pytest.raises(DeviceError, match="lost"):
            use()
    session.close()
    again = Session(compiled("cell"), "vulkan")
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
            same(other(pieces[1]), exact(pieces[1]))  # states are there as long as a program is
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


def test_a_quantized_program_runs_in_torch_with_its_buffers() -> None:
    program = quantized("cell").module(check_guards=False)
    exact = Session(compiled("cell"), "reference")
    with torch.no_grad():
        for x in calls("cell", 0, 4):
            np.testing.assert_allclose(exact(*x), program(*x).numpy(), atol=0.02)


def test_models_without_states_have_none(vulkan: Device) -> None:
    from tests.small import small_model

    session = Session(small_model(), vulkan)
    session.reset()
    assert saved(session) == {} and session.program.states == ()


Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["buffers"].update({f"h{i}": "a.initial" for i in range(9)}), "states are read and written, found"),
        (lambda d: d["buffers"].update(a="nothing"), "begins with nothing, which is no constant"),
        (lambda d: d["buffers"].update(a="c.initial"), "state a is read as"),
        (lambda d: d["buffers"].update(a=7), "a name must be"),
        (lambda d: d.update(buffers=[]), "'buffers' must be a dict"),
        (lambda d: d["whole"].update(a="float64"), "buffer a is float64"),
        (lambda d: d["whole"].update(x="int64"), "buffer x is int64"),
        (lambda d: d["outputs"].reverse(), "is read as|positions"),
        (lambda d: d["inputs"].pop(), "nothing before it writes|is read as|neither input"),
        (lambda d: d["batched"].append("a"), "no batch"),
        (lambda d: d.pop("whole"), "'whole' is missing"),
    ],
)
def test_a_hostile_file_of_states_is_refused(edit: Edit, message: str, tmp_path: Path) -> None:
    exchanged().save(tmp_path / "net.q8ta")
    data = forge((tmp_path / "net.q8ta").read_bytes(), lambda found, _: edit(found))
    assert re.search(message, refused(data, tmp_path))
