"""What `quantize` says of calibration data, and of values that int8 cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.frontend.calibrate import faults
from tests.quantizing import Plain, around_conv, conv, data

X = data(1, 3, 5, 5)


def test_what_calibration_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        q8.quantize(around_conv(), (X,), calibration=(1 / i for i in range(1)), progress=False)  # type: ignore[misc]


def test_a_calibration_of_zeros_is_told() -> None:
    with pytest.warns(UserWarning, match="every calibration input is zero"):
        q8.quantize(around_conv(), (X,), calibration=[torch.zeros_like(X)] * 2, progress=False)


def test_an_observer_that_takes_nan() -> None:
    """Some fail on NaN, others give a range that is none."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(x)
    module = torch.fx.GraphModule(nn.Module(), graph)
    faults.check_ranges(module, [faults.Met(x, -1.0, 1.0)], {})
    with pytest.raises(InputError, match=r"the value of x .* is NaN or infinite on the calibration"):
        faults.check_ranges(module, [faults.Met(x, float("nan"), float("nan"))], {})


def _scaled(factor: float) -> nn.Module:
    tiny = around_conv(lambda s, x: F.relu(s.second(s.conv(x) * factor)), second=conv(4, 4))
    with torch.no_grad():
        tiny.second.bias.zero_()  # type: ignore[operator, union-attr]
    return tiny


@pytest.mark.parametrize(("empty", "said"), [([1], r" \(in row 1 of 3\)"), ([0, 2], r" \(in row 0 and 1 more of 3\)")])
def test_rows_that_are_not_finite_are_named(empty: list[int], said: str) -> None:
    """As the mean of no tokens."""
    module = Plain(lambda s, x, m: s.linear((x * m).sum(1) / m.sum(1)), linear=nn.Linear(8, 4)).eval()
    mask = torch.ones(3, 5, 1)
    mask[empty] = 0
    with pytest.raises(InputError, match=rf"value of div .* is NaN or infinite on calibration item 0{said}: a range"):
        q8.quantize(module, (data(3, 5, 8), mask), [(data(3, 5, 8), mask)], progress=False)


@pytest.mark.parametrize("factor", [1e-6, 1e-10, 1e-20])
def test_small_values_have_small_steps(factor: float) -> None:
    tiny = _scaled(factor)
    compared = q8.compare(tiny, q8.quantize(tiny, (X,), calibration=[X], progress=False), (X,))
    assert min(layer.snr for layer in compared.layers) > 25, str(compared)


def test_values_that_int8_makes_constant_are_told() -> None:
    """An untrained network whose layers' results vary little around something large gives constants: it must not do so
    silently."""
    flat = around_conv(lambda s, x: s.second(s.conv(x) * 1e-3 + 50.0), second=conv(4, 4))
    with pytest.warns(UserWarning, match=r"constant: .* go from 50 to 50, where a step is 0.2.*skip=\["):
        q8.quantize(flat, (X,), calibration=[X], progress=False)


def test_constants_that_are_nearly_equal_are_no_fault() -> None:
    """Of these widths one is the next float after the others."""
    widths = torch.full((5,), 0.8)
    widths[0] = torch.nextafter(widths[0], torch.tensor(1.0))
    module = around_conv(lambda s, x: s.conv(x) / widths)
    assert q8.quantize(module, (X,), calibration=[X], progress=False)


def test_a_constant_that_int8_loses_is_a_fault() -> None:
    widths = 100 + torch.linspace(0, 0.3, 5)
    module = around_conv(lambda s, x: (s.conv(x) @ widths[:, None]) * widths)
    with pytest.warns(UserWarning, match=r"int8 makes the values of .* constant"):
        q8.quantize(module, (X,), calibration=[X], progress=False)


class Kept(nn.Module):
    """Keeps a value from call to call, which the output of the network may depend on."""

    kept: torch.Tensor

    def __init__(self, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], reads: bool, initial: float) -> None:
        super().__init__()
        self.first, self.second, self.step, self.reads = conv(3, 4), conv(4, 3), step, reads
        self.register_buffer("kept", torch.full((1, 4, 5, 5), initial))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 3, 5, 5) → the same."""
        y = self.first(x)
        self.kept.copy_(self.step(self.kept, y))
        found: torch.Tensor = self.second(self.kept if self.reads else y)
        return found


@pytest.mark.parametrize(
    ("step", "reads", "said"),
    [
        (
            lambda kept, y: kept * 1e12 + y,
            True,
            r"value of mul .* on calibration item \d, and with it buffer kept: a range",
        ),
        (
            lambda kept, y: kept + y * 0.5 + 2e38,
            False,
            "buffer kept is NaN or infinite after calibration item 1: bound what",
        ),
    ],
)
def test_a_state_that_overflows_is_named(step: Any, reads: bool, said: str) -> None:
    """Also one that is only written, so that nothing observes it."""
    torch.manual_seed(0)
    with pytest.raises(InputError, match=said):
        q8.quantize(Kept(step, reads, 1.0).eval(), (X,), [X] * 6, progress=False)


def test_a_state_may_begin_infinite() -> None:
    torch.manual_seed(0)
    module = Kept(lambda kept, y: kept + y, False, -torch.inf).eval()
    exported = q8.quantize(module, (X,), [X] * 6, progress=False)
    assert [state.partition(" ")[0] for state in q8.compile(exported).report().states] == ["kept"]


@pytest.mark.parametrize("reads", [False, True])
def test_a_buffer_that_begins_infinite_and_is_computed_with_is_named(reads: bool) -> None:
    """Not the input that it becomes. Its module can be skipped."""

    class Lowest(nn.Module):
        lowest: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("lowest", torch.full((1, 4, 5, 5), torch.inf))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """(1, 4, 5, 5) → the same."""
            before, self.lowest = self.lowest, torch.minimum(self.lowest, x)
            return x - before.clamp(max=9.0) if reads else x - self.lowest

    module = nn.Sequential(conv(3, 4), Lowest(), conv(4, 3)).eval()
    with pytest.raises(InputError, match=r"^buffer 1\.lowest begins with inf: .* Let it begin with a finite number"):
        q8.quantize(module, (X,), [X] * 3, progress=False)
    assert q8.quantize(module, (X,), [X] * 3, q8.Quantizer(skip=["1"]), progress=False)


def test_a_buffer_may_begin_with_the_largest_float32() -> None:
    """The range of values in 16 bits has room beyond the largest that was met, but float32 has none."""
    torch.manual_seed(0)
    module = Kept(torch.minimum, True, torch.finfo(torch.float32).max).eval()
    with pytest.warns(UserWarning, match="the outputs are predicted to keep"):
        program = q8.quantize(module, (X,), [X] * 3, progress=False)
    assert q8.compile(program).report().states


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (lambda s, x: F.relu(s.conv(x)) + s.wide, r"constant wide holds inf, whatever the inputs are: a range"),
        (
            lambda s, x: F.relu(s.conv(x)) * (s.large * s.gain),
            r"a constant computed from large, gain at .*:\d+ holds inf, whatever the inputs are",
        ),
        (
            lambda s, x: s.conv(x) * s.large * s.gain,
            r"a constant computed from conv.weight, conv.bias, large, gain holds -?inf",
        ),
        (lambda s, x: s.norm(s.conv(x)), r"a constant computed from conv.weight, .*norm.running_var holds (-?inf|nan)"),
    ],
)
def test_constants_that_overflow_are_named(forward: Any, said: str) -> None:
    """Calibration is not at fault: they are the same on every input."""
    norm = nn.BatchNorm2d(4, eps=0.0)
    norm.running_var[1] = 0.0  # type: ignore[index]
    large, gain = (nn.Parameter(torch.full((4, 1, 1), size)) for size in (3e38, 10.0))
    module = around_conv(forward, norm=norm)
    module.large, module.gain = large, gain
    module.register_buffer("wide", torch.tensor([1.0, torch.inf, 1.0, 1.0]).reshape(4, 1, 1))
    with pytest.raises(InputError, match=said) as error:
        q8.quantize(module.eval(), (X,), calibration=[X], progress=False)
    assert "calibration" not in str(error.value)
