"""What torch and Python keep for a module, a thread or the process is the user's: quantizing leaves it alone, also for
a moment, also in other threads."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.threads import few_threads
from q8ta_wgpu.frontend.export.modes import quietly
from q8ta_wgpu.frontend.export.own_copy import own_copy
from q8ta_wgpu.ir.graph import Graph
from tests.quantizing import Plain, data

X = data(2, 8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


class Counting(nn.Module):
    """Keeps a sum from call to call, in the module and in a part of it."""

    sum: Tensor
    part: Any

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.part = nn.Linear(8, 8), nn.Module()
        self.register_buffer("sum", torch.zeros(8))
        self.part.register_buffer("sum", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.sum = self.sum * 0.5 + y.mean(0)
        self.part.sum = self.part.sum * 0.5 + y.mean(0)
        found: Tensor = y + self.sum + self.part.sum
        return found


class Watched(nn.Module):
    """Calls a function in each forward, before it computes: also while it is traced."""

    def __init__(self, function: Callable[[], object], inner: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Tensor:
        self.function()
        out: Tensor = self.inner(x)
        return out


def in_another_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def quantized(module: nn.Module, items: Any = (X,), **options: Any) -> Any:
    return q8.quantize(module, (X,), items, progress=False, **options)


@pytest.mark.parametrize("module", [network(), Counting().eval()], ids=["plain", "with states"])
def test_two_threads_quantize_one_module(module: nn.Module) -> None:
    wanted = q8.Session(q8.compile(quantized(module)), "reference")(X)
    started = threading.Barrier(2)

    def work() -> Any:
        started.wait()
        return [q8.Session(q8.compile(quantized(module)), "reference")(X) for _ in range(3)]

    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(work) for _ in range(2)]:
            assert all((result == wanted).all() for result in found.result())


def test_the_users_forward_meets_the_users_own_weights_while_the_module_is_traced() -> None:
    seen = list[bool]()
    inner = network()
    before = dict(inner.named_parameters())

    def look() -> None:
        own = all(before[name] is tensor for name, tensor in inner.named_parameters())
        seen.append(own and in_another_thread(lambda: type(inner(X)) is Tensor))

    module = Watched(look, inner).eval()
    wanted = inner(X)
    program = quantized(module)
    q8.compare(module, program, (X,))
    assert len(seen) > 2
    assert all(seen)
    assert inner(X).equal(wanted)


def test_hooks_of_registrations_are_called_meanwhile_and_stay_removed() -> None:
    """A module that changes its buffers was traced without the hooks of all threads, which came back afterwards."""
    called, registered, hooks = list[str](), list[bool](), torch_modules._global_buffer_registration_hooks
    handle = torch_modules.register_module_buffer_registration_hook(lambda _, name, __: called.append(name))

    def register() -> None:
        in_another_thread(lambda: nn.Module().register_buffer("mine", torch.zeros(1)))
        registered.append(handle.id in hooks)

    quantized(Watched(register, Counting()).eval())
    assert called.count("mine") == len(registered) > 2
    assert all(registered)

    quantized(Watched(handle.remove, Counting()).eval())
    assert handle.id not in hooks


def test_the_random_generator_stays_where_it_is() -> None:
    module = nn.Sequential(nn.Conv1d(8, 8, 1), nn.BatchNorm1d(8), nn.ReLU()).eval()
    x = data(2, 8, 5)
    before = torch.get_rng_state()
    program = q8.quantize(module, (x,), [x], progress=False)
    q8.compile(program)
    q8.compare(module, program, (x,))
    assert torch.get_rng_state().equal(before)


def test_warnings_of_the_users_generator_are_shown() -> None:
    def items() -> Iterator[Tensor]:
        warnings.warn("the disk is slow", stacklevel=1)
        yield X

    with pytest.warns(UserWarning, match="the disk is slow"):
        quantized(network(), items())


def test_filters_of_warnings_are_left_as_they_are() -> None:
    """Threads that overlap, one of which ends first, and a thread that warns of something else meanwhile."""
    before, inside, outside = list(warnings.filters), threading.Barrier(2), threading.Barrier(2)

    def first() -> None:
        with quietly():
            inside.wait()
            warnings.warn("hidden", stacklevel=1)
        outside.wait()

    def second() -> None:
        with quietly():
            inside.wait()
            outside.wait()
            warnings.warn("hidden", stacklevel=1)

    def overlapping() -> None:
        with ThreadPoolExecutor(2) as pool, quietly():
            workers = [pool.submit(first), pool.submit(second)]
            in_another_thread(lambda: warnings.warn("shown", stacklevel=1))
            for worker in workers:
                worker.result()

    with pytest.warns(UserWarning, match="shown") as met:
        overlapping()
    assert [str(each.message) for each in met] == ["shown"]
    assert list(warnings.filters) == before


def test_each_thread_keeps_its_number_of_threads() -> None:
    """Two calibrate at once, and a third one begins to compute."""
    graph = Graph()  # multiplies nothing
    inside, outside = threading.Barrier(2), threading.Barrier(2)
    before = torch.get_num_threads()
    new = in_another_thread(torch.get_num_threads)

    def work(number: int) -> tuple[int, int, int]:
        torch.set_num_threads(number)
        torch.set_num_threads(number)
        with few_threads(graph):
            inside.wait()
            within = torch.get_num_threads()
            begun = in_another_thread(torch.get_num_threads)
            outside.wait()
        return within, torch.get_num_threads(), begun

    try:
        with ThreadPoolExecutor(2) as pool:
            found = [worker.result() for worker in [pool.submit(work, number) for number in (2, 3)]]
    finally:
        in_another_thread(lambda: torch.set_num_threads(new))
    assert [each[:2] for each in found] == [(1, 2), (1, 3)]
    assert all(begun in (2, 3) for *_, begun in found)
    assert torch.get_num_threads() == before


def bfloat16() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


def inference() -> AbstractContextManager[Any]:
    return torch.inference_mode()


@pytest.mark.parametrize("made", [nullcontext, inference])
@pytest.mark.parametrize("called", [nullcontext, inference, bfloat16, lambda: torch.device("meta")])
@pytest.mark.parametrize("make", [network, Counting, lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))])
def test_modes_of_the_caller(made: Any, called: Any, make: Any) -> None:
    """Modules and inputs may be made in inference mode. The calls may stand in it or in autocast, or choose a
    device for tensors."""
    with made():
        torch.manual_seed(1)
        module, x = make().eval(), data(2, 8)
    with called():
        program = q8.quantize(module, (x,), [x], progress=False)
        model = q8.compile(program)
        q8.compare(module, program, (x,))
    with torch.no_grad():
        plain = copy.deepcopy(make()).eval()
        for mine, other in zip(plain.state_dict().values(), module.state_dict().values(), strict=True):
            mine.copy_(other)
    wanted = q8.Session(q8.compile(quantized(plain, [x.clone()])), "reference")(X)
    assert (q8.Session(model, "reference")(X) == wanted).all()


def test_a_copy_shares_parameters_and_memory_as_the_module_does() -> None:
    module: Any = network()
    module.register_buffer("whole", torch.arange(6.0))
    module.view = module.whole[2:4]
    module.kept = [module[0], {"weight": module[0].weight}, threading.Lock()]
    module.call = module[0].forward
    made: Any = own_copy(module)
    assert all(one is other for one, other in zip(made.parameters(), module.parameters(), strict=True))
    assert made.kept[0] is made[0] is made.call.__self__ is not module[0]
    assert made.kept[1]["weight"] is module[0].weight
    made.whole += 1
    assert made.view.tolist() == [3, 4]
    assert module.whole.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_cannot_be_copied_is_shared() -> None:
    class Stubborn:
        def __reduce__(self) -> Any:
            raise TypeError("there is one of me")

    stubborn = Stubborn()
    module: Any = Plain(lambda s, x: s.inner(x), inner=network())
    module.stubborn = stubborn
    made = own_copy(module.eval())
    assert made.stubborn is stubborn
    assert made.inner is not module.inner
    quantized(module)
