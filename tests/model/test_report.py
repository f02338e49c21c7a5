"""What a report says: how much of the work is int8, and why each island is none of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.report import together
from q8ta_wgpu.model.structure import Structure
from testbed.small import small_model
from tests.quantizing import Plain, conv, data

X = data(1, 3, 8, 8)


def test_work_and_the_reason_of_every_island() -> None:
    middle = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(4)))
    module = nn.Sequential(nn.Conv2d(3, 4, 1), middle, nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    report = q8.compile(q8.quantize(module, (x,), [x], quantizer=q8.Quantizer(skip=["1"]), progress=False)).report()
    assert "\n4 float islands between" in str(report)
    assert "\n1 float island between" in str(replace(report, islands=report.islands[:1]))
    assert report.macs == (25 * (3 * 4 + 4 * 2), 25 * (3 * 4 + 4 * 4 * 4 + 4 * 2))
    assert len(report.islands) == 4
    cause = "conv2d stays in float32: Quantizer(skip=...) names its module"
    assert {reason: len(notes) for reason, notes in report.reasons.items()} == {cause: 4}
    assert {note.partition(": ")[0] for note in report.reasons[cause]} == set(report.islands)
    text = str(report)
    assert "23.8 % of 2.1 k multiply-adds in int8" in text
    assert f"1.0.conv2d: {cause} (1.0)" in text
    assert text.count(cause) == 1 and text.endswith("), and 3 more")


def test_a_model_without_products_says_nothing_of_them() -> None:
    x = torch.ones(1, 4)
    text = str(q8.compile(q8.quantize(nn.ReLU().eval(), (x,), [x], progress=False)).report())
    assert "multiply-adds" not in text


def test_products_of_activations_have_no_weights_of_4_bits() -> None:
    """Their second operand has three dimensions, as weights of 4 bits have."""

    class Product(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x @ y

    x, y = (torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    report = q8.compile(q8.quantize(Product().eval(), (x, y), [(x, y)], progress=False)).report()
    assert any("matmul" in name for name in report.int8)
    assert "4 bits" not in str(report)


def test_a_skipped_island_has_its_own_reason_beside_that_of_its_width(tmp_path: Path) -> None:
    """Its result is stored in int16, which is another note. A file keeps both."""
    torch.manual_seed(0)
    module = nn.Sequential(conv(3, 4), nn.GELU(), conv(4, 3)).eval()
    program = q8.quantize(module, (X,), [X], q8.Quantizer(skip=["1"], precision="int16"), progress=False)
    model = q8.compile(program)
    model.save(tmp_path / "net.q8ta")
    for report in (model.report(), q8.load(tmp_path / "net.q8ta").report()):
        assert report.islands == ("1.gelu",)
        assert any(note.startswith("1.gelu: is stored in int16") for note in report.notes)
        assert "gelu stays in float32: Quantizer(skip=...) names its module" in report.reasons


class Growing(nn.Module):
    """Divides a sum over all calls by another one."""

    total: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = conv(3, 4), conv(4, 3)
        self.register_buffer("total", torch.zeros(1, 4, 8, 8))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(1, 3, 8, 8) → the same."""
        self.total.add_(self.before(x).relu())
        self.count.add_(1.0)
        found: torch.Tensor = self.after(self.total / self.count)
        return found


def test_what_grows_from_call_to_call_is_said_to_have_no_range() -> None:
    torch.manual_seed(0)
    items = [data(1, 3, 8, 8, seed=seed) for seed in range(6)]
    report = q8.compile(q8.quantize(Growing().eval(), (X,), items, progress=False)).report()
    assert {"add", "div"} <= set(report.islands)
    no_range = "so that calibration finds no range"
    assert f"add stays in float32: a state grows by it in each call, {no_range}" in report.reasons
    assert f"div stays in float32: it reads what grows from call to call, {no_range}" in report.reasons


def near_zero(s: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A quotient whose divisor comes near zero."""
    y = s.get_submodule("before")(x)
    found: torch.Tensor = s.get_submodule("after")(y / (y.square().amin(1, keepdim=True) + 1e-4))
    return found


def test_an_island_names_what_is_not_rounded_and_why() -> None:
    torch.manual_seed(0)
    module = Plain(near_zero, before=conv(3, 4), after=conv(4, 3)).eval()
    report = q8.compile(q8.quantize(module, (X,), [X], progress=False)).report()
    assert {note.partition(": ")[0] for note in report.notes if ": is not rounded" in note} == {"square", "add"}
    assert {
        "amin: amin stays in float32: it reads the result of pow in float32, since what is divided by comes near zero",
        "div: div stays in float32: an input is not quantized; add is float32",
    } <= {note.partition(" (")[0] for note in report.notes}
    assert any(cause.endswith("an input is not quantized") for cause in report.reasons)


def test_reasons_of_islands_that_only_move_elements_are_saved(tmp_path: Path) -> None:
    def forward(s: Plain, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = s.get_submodule("middle")(s.get_submodule("before")(x))
        return s.get_submodule("after")(y), torch.sin(y)

    torch.manual_seed(0)
    rolled = Plain(lambda _, x: torch.roll(x.permute(0, 1, 3, 2), 1, 2))
    module = Plain(forward, before=conv(3, 4), middle=rolled, after=conv(4, 3)).eval()
    program = q8.quantize(module, (X,), [X], q8.Quantizer(skip=["middle", "after"]), progress=False)
    model = q8.compile(program)
    model.save(tmp_path / "net.q8ta")
    text = str(q8.load(tmp_path / "net.q8ta").report())
    assert "roll: index_select stays in float32: Quantizer(skip=...) names its module" in text
    assert text == str(model.report())


@pytest.mark.parametrize("integers", [False, True])
def test_results_have_the_names_of_the_users_operators(integers: bool) -> None:
    """Also where they are stored for others, as a residual stream is."""

    def forward(s: Plain, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = s.get_submodule("first")(x)
        x = x + s.get_submodule("second")(nn.functional.layer_norm(x, (8,)))
        return x, x.relu(), x.reshape(2, 2, 8), s.get_submodule("second")(x)

    torch.manual_seed(0)
    module, x = Plain(forward, first=nn.Linear(6, 8), second=nn.Linear(8, 8)).eval(), data(4, 6)
    model = q8.compile(q8.quantize(module, (x,), [x], progress=False), int8_outputs=integers)
    assert model.graph.results == ["add", "relu", "reshape", "second.linear_1"]
    found = q8.Session(model, "reference")(x.numpy())
    assert [result.shape for result in found] == [(4, 8), (4, 8), (2, 2, 8), (4, 8)]


TOO_FEW = "since 8 bits are too few"
DECISIONS = [
    Decision(("a",), "others", "int16", "noise", TOO_FEW, noise=0.22, cost=1.5e3, source="stem (net.py:3)"),
    Decision(("b.1", "c"), "sums", "int16", "noise", TOO_FEW, noise=1200.0, cost=1.2e6),
    Decision(("c",), "others", "int16", "scores", "since its readers are sums", ("scores",), cost=8e3),
    Decision(("d",), "others", "float32", "noise", TOO_FEW, noise=0.22, cost=3e3),
    Decision(("e",), "others", "int8", "plan", noise=0.01),
    Decision(("f",), "others", "int16", "noise", TOO_FEW, noise=31.0, cost=5e5),
]
NOTES = (
    "a: is stored in int16 since 8 bits are too few: here alone they would make 22 % of the noise that the outputs "
    "should have at most, for 1.5 kB more (stem (net.py:3))",
    "c: is stored in int16 since its readers are sums, for 8 kB more",
    "d: is not rounded since 8 bits are too few: here alone they would make 22 % of the noise that the outputs should "
    "have at most, for 3 kB more",
)


def test_values_of_one_reason_have_one_line() -> None:
    """How many, at what cost, and which: the costliest first. With details each has its own."""
    graph = small_model().graph.copy()
    graph.decisions, graph.notes = DECISIONS, ["the file holds no quantized values: quantize it first"]
    lines = str(Model(graph, Structure(0)).report()).splitlines()
    assert lines[-4] == (
        "3 values: each is stored in int16 since 8 bits are too few: alone each would make at least 22 % of the "
        "noise that outputs may have, for 1.7 MB more: b.1, f, a"
    )
    assert lines[-3:] == [*NOTES[1:], *graph.notes]
    detailed = str(Model(graph, Structure(0)).report(details=True)).splitlines()
    assert {*NOTES, *graph.notes} <= {*detailed}
    assert len(detailed) == len(lines) + 2
    with pytest.raises(InputError, match="details must be True or False, found 'yes'"):
        small_model().report(details="yes")  # type: ignore[arg-type]


def test_few_names_stand_in_a_line() -> None:
    reason = "since that costs next to nothing"
    (line,) = together(Decision((f"v{i}",), "others", "int16", "cheap", reason, cost=1e3 * (i + 1)) for i in range(9))
    assert line.endswith("for 45 kB more: v8, v7, v6, v5 and 5 more")
