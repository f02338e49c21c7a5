"""Buffers and other attributes that forward changes: put back, and refused where results depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import UnsupportedError
from tests.quantizing import around_conv, data

X = data(1, 3, 5, 5)


class Stateful(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.state, self.count, self.kept = function, torch.zeros(1), 0, [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def set_anew(s: Stateful, x: Tensor) -> Tensor:
    s.state = s.state + 1
    return x * s.state


def changed(s: Stateful, x: Tensor) -> Tensor:
    s.state.add_(1)
    return x * s.state


def counted(s: Stateful, x: Tensor) -> Tensor:
    s.count += 1
    return x * s.count


def listed(s: Stateful, x: Tensor) -> Tensor:
    s.kept[0] = s.kept[0] + 1
    return x * s.kept[0]


def test_buffers_that_forward_changes_are_put_back() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)  # type: ignore[operator]
            return x * self.seen  # type: ignore[operator]

    counter = Counter().eval()
    model = q8.compile(q8.quantize(counter, (X,), calibration=[X, X], progress=False))
    assert counter.seen.item() == 0  # type: ignore[operator]
    assert list(model.graph.buffers) == ["seen"]
    model = q8.compile(q8.quantize(counter, (X,), calibration=[X], progress=False, dynamic_batch=True))
    assert list(model.graph.buffers) == ["seen"]
    with pytest.raises(UnsupportedError, match="changes its buffers seen, which stay on the device"):
        q8.quantize(counter, (X,), calibration=[X], progress=False, unsupported="torch")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda kept, x: torch.cat([kept, x.reshape(-1)]),
            r"changes from shape \(1,\) to \(\d+,\): what stays .* one size",
        ),
        (lambda kept, x: (kept + 1).long(), r"buffer kept from torch.float32 to torch.int64"),
    ],
)
def test_buffers_that_cannot_stay(function: Callable[..., Tensor], message: str) -> None:
    class Kept(nn.Module):
        kept: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.kept = function(self.kept, x)
            return x * 2

    with pytest.raises(UnsupportedError, match=message):
        q8.quantize(Kept().eval(), (X,), calibration=[X], progress=False)


@pytest.mark.parametrize(
    ("function", "name"), [(set_anew, "state"), (changed, "state"), (counted, "count"), (listed, r"kept\.0")]
)
def test_attributes_that_forward_changes_are_put_back(function: Callable[..., Tensor], name: str) -> None:
    stateful = Stateful(function).eval()
    way_out = r"must be a buffer \(register_buffer\), or an input and a result"
    with pytest.raises(UnsupportedError, match=f"changes its {name} while it runs.*{way_out}"):
        q8.quantize(stateful, (X,), calibration=[X], progress=False)
    assert (stateful.count, stateful.state.item(), stateful.kept[0].item()) == (0, 0, 0)


def test_attributes_that_results_do_not_depend_on_may_change() -> None:
    """A cache of what depends on no input, and values that are kept to be looked at."""

    def cached(s: Stateful, x: Tensor) -> Tensor:
        if s.count == 0:
            s.count, s.state = 1, torch.arange(5.0)
        s.kept.append(x * s.state)
        return s.kept[-1]

    stateful = Stateful(cached).eval()
    with torch.inference_mode():  # tensors that nothing may write to, were it what they hold
        stateful.frozen = torch.ones(2)
    stateful.sparse = torch.eye(3).to_sparse()
    q8.quantize(stateful, (X,), calibration=[X], progress=False)
    assert (stateful.count, len(stateful.kept)) == (0, 1)


class _Window:
    """Rows of the last calls, as transformers' StaticSlidingWindowLayer holds them: it counts the calls in a number."""

    def __init__(self) -> None:
        self.rows, self.count = torch.zeros(3, 5), 0

    def add(self, row: Tensor) -> Tensor:
        self.rows[min(self.count, 2)] = row
        self.count += 1
        return self.rows


@pytest.mark.parametrize("registered", [False, True])
def test_attributes_of_objects_that_a_module_holds(registered: bool) -> None:
    """A number was what it is at the first call in all of them."""

    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.windows = [_Window()]
            if registered:
                self.register_buffer("rows", self.windows[0].rows)

        def forward(self, x: Tensor) -> Tensor:
            return self.windows[0].add(x).sum(0)

    held, items = Held().eval(), [data(5, seed=i) for i in range(4)]
    name = "windows.0.count" if registered else "windows.0.rows"
    with pytest.raises(UnsupportedError, match=f"changes its {name} while it runs"):
        q8.quantize(held, items[:1], calibration=items, progress=False)
    assert held.windows[0].count == 0
    assert not held.windows[0].rows.any()


def test_a_dict_that_refuses_writes_is_left_alone() -> None:
    """diffusers' networks keep their configuration in one: it was emptied, then update raised."""

    class Frozen(dict[str, int]):
        def update(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("frozen")

    plain = around_conv()
    plain.config = Frozen(size=3)  # type: ignore[assignment]
    q8.quantize(plain, (X,), calibration=[X], progress=False)
    assert plain.config == {"size": 3}
