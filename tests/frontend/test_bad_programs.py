"""q8.quantize and q8.compile on bad input: each has a defined answer that names what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from tests.quantizing import Plain, conv, data


def quantize(module: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    return q8.quantize(module.eval(), inputs, calibration=[inputs], progress=False)


def test_training_mode() -> None:
    with pytest.raises(q8.InputError, match="training mode"):
        q8.quantize(conv(3, 4).train(), (data(1, 3, 5, 5),), calibration=[data(1, 3, 5, 5)])


def test_example_inputs_that_do_not_fit() -> None:
    x = data(1, 3, 5, 5)
    for example, message in (
        (None, "tuple of torch tensors, found NoneType"),
        (x, r"write \(x,\)"),
        ((x.numpy(),), r"found \['ndarray'\]: write \(torch.from_numpy\(x\),\)"),
        (x.numpy(), r"found ndarray: write \(torch.from_numpy\(x\),\)"),
        (
            (x.double(),),
            r"must be float32, bool, or int64, int32, int16, int8 or uint8, found .*64: write x.float\(\)$",
        ),
        ((x.long(),), "does not run on example_inputs"),
        ((x.to(torch.complex64),), r"found torch.complex64: write torch.view_as_real\(x\)$"),
        ((x, x), "does not run on example_inputs"),
        ((), "does not run on example_inputs"),
        ((data(1, 4, 5, 5),), r"does not run on example_inputs, torch.float32 \(1, 4, 5, 5\)"),
    ):
        with pytest.raises(q8.InputError, match=message):
            q8.quantize(conv(3, 4).eval(), example, calibration=[x], progress=False)  # type: ignore[arg-type]


def test_a_part_in_training_mode() -> None:
    module = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4)).eval()
    module[1].train()
    with pytest.raises(q8.InputError, match="part 1 is in training mode"):
        q8.quantize(module, (data(1, 3, 5, 5),), calibration=[data(1, 3, 5, 5)])


def test_control_flow_that_depends_on_the_data() -> None:
    def forward(s: Any, x: Tensor) -> Tensor:
        y: Tensor = s.a(x)
        return y if y.sum() > 0 else -y

    with pytest.raises(q8.UnsupportedError, match="cannot trace"):
        quantize(Plain(forward, a=conv(3, 4)), data(1, 3, 5, 5))


def test_nothing_given_is_changed() -> None:
    module = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU(inplace=True)).eval()
    x = data(1, 3, 5, 5)
    before = [x.clone(), *(t.clone() for t in module.state_dict().values())]
    quantize(module, x)
    assert all(torch.equal(a, b) for a, b in zip(before, [x, *module.state_dict().values()], strict=True))
    with pytest.raises(q8.UnsupportedError, match="changes its inputs"):
        quantize(nn.Sequential(nn.ReLU(inplace=True), conv(3, 4)), x)
    assert torch.equal(x, before[0])


def test_progress_writes_nothing_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    x = data(1, 3, 5, 5)
    q8.quantize(conv(3, 4).eval(), (x,), calibration=[x])
    assert capsys.readouterr() == ("", "")


def test_an_unknown_operator_is_named_with_a_way_out() -> None:
    module = Plain(lambda s, x: torch.logcumsumexp(s.conv(x), -1), conv=conv(3, 4))
    with pytest.raises(
        q8.UnsupportedError, match=r'(?s)aten\.logcumsumexp\.default.*unsupported="torch".*CONTRIBUTING'
    ):
        q8.compile(quantize(module, data(1, 3, 5, 5)))


def test_what_is_no_module() -> None:
    with pytest.raises(q8.InputError, match=r"torch\.nn\.Module"):
        q8.quantize(lambda x: x, (data(1, 3),), calibration=[data(1, 3)])  # type: ignore[call-overload]


def test_a_module_that_changes_its_buffers() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv(3, 4)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)  # type: ignore[operator]
            y: Tensor = self.conv(x)
            return y

    model = q8.compile(quantize(Counter(), data(1, 3, 5, 5)))
    session = q8.Session(model, "reference")
    session(data(1, 3, 5, 5))
    session(data(1, 3, 5, 5))
    assert session.state["seen"].tolist() == [2]


def test_an_exported_program_that_changes_its_buffers() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("average", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.average.mul_(0.9)  # type: ignore[operator]
            self.average.add_(x[0])  # type: ignore[operator]
            return x * 2.0

    x = data(1, 3)
    session = q8.Session(q8.compile(torch.export.export(Mean().eval(), (x,))), "reference")
    for wanted in (x[0], x[0] * 1.9):
        session(x)
        np.testing.assert_allclose(session.state["average"], wanted, rtol=1e-6)


def test_every_unsupported_operator_is_named_with_its_place() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = torch.logcumsumexp(x, 1)
            inverse: Tensor = torch.linalg.inv(y @ y.transpose(-1, -2))
            return inverse

    program = torch.export.export(nn.Sequential(conv(3, 4), Odd()).eval(), (data(1, 3, 5, 5),))
    with pytest.raises(q8.UnsupportedError) as caught:
        q8.compile(program)
    text = str(caught.value)
    assert "aten.logcumsumexp.default at 1 (test_bad_programs.py:" in text
    assert "aten.linalg_inv" in text


def test_no_quantization_at_all() -> None:
    """A float program compiles and runs in float32; the report says that nothing is int8."""
    program = torch.export.export(nn.Sequential(conv(3, 4), nn.ReLU()).eval(), (data(1, 3, 5, 5),))
    report = q8.compile(program).report()
    assert report.int8 == {}
    assert "0 of 2 compute nodes in int8" in str(report)
    assert any("no quantize" in note for note in report.notes)


def test_what_is_no_program() -> None:
    with pytest.raises(q8.UnsupportedError, match=r"torch\.export"):
        q8.compile(conv(3, 4))


@pytest.mark.parametrize(("scale", "zero"), [(0.0, 0), (-1.0, 0), (float("inf"), 0), (float("nan"), 0), (0.1, 300)])
def test_bad_scales_and_zero_points(scale: float, zero: int) -> None:
    qd = torch.ops.quantized_decomposed

    class Bad(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q = qd.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
            y: Tensor = qd.dequantize_per_tensor(q, scale, zero, -128, 127, torch.int8)
            return y

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Bad(), (data(1, 3),))
    with pytest.raises(q8.UnsupportedError, match=r"scale must be|zero point must be"):
        q8.compile(program)


def test_dynamic_batch_takes_the_size_it_was_exported_with() -> None:
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(conv(3, 4).eval(), (data(2, 3, 5, 5),), dynamic_shapes=({0: batch},))
    model = q8.compile(program)
    assert model.inputs["input"].shape == (2, 3, 5, 5)
    assert model.reshape((5, 3, 5, 5)).graph.types[model.graph.outputs[0]].shape == (5, 4, 5, 5)


def test_other_dimensions_that_torch_names() -> None:
    height, module, x = torch.export.Dim("height", min=4, max=64), conv(3, 4).eval(), data(2, 3, 11, 5)
    program = torch.export.export(module, (data(2, 3, 8, 5),), dynamic_shapes=({2: height},))
    session = q8.Session(q8.compile(program), "reference")
    np.testing.assert_allclose(session(x), module(x).detach(), atol=1e-5)


def test_sizes_that_follow_from_others() -> None:
    """Of a program of torch's own: multiples of a named size, and more. Others are refused by name."""
    height, module = torch.export.Dim("height", min=4, max=64), conv(3, 4).eval()
    for size, spec, bad in ((10, 2 * height, 9), (9, 2 * height + 1, 10), (9, height - 1, 2)):
        program = torch.export.export(module, (data(2, 3, size, 5),), dynamic_shapes=({2: spec},))
        session, x = q8.Session(q8.compile(program), "reference"), data(2, 3, size + 8, 5)
        np.testing.assert_allclose(session(x), module(x).detach(), atol=1e-5)
        with pytest.raises(q8.InputError, match="dimension 2 of input input"):
            session(data(2, 3, bad, 5))


@pytest.mark.parametrize("number", [3, None])
def test_numbers_beside_named_sizes(number: int | None) -> None:
    """An argument of a program that is no tensor is refused by its name, also where others have many sizes."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor, n: int | None) -> Tensor:
            return x * (n or 2)

    batch = torch.export.Dim("batch")
    for shapes in (({0: batch}, None), ({0: batch}, torch.export.Dim.DYNAMIC), (None, torch.export.Dim.DYNAMIC)):
        if number is None and shapes[1] is not None:
            continue
        program = torch.export.export(Scaled(), (data(2, 3), number), dynamic_shapes=shapes)
        with pytest.raises(q8.UnsupportedError, match="input n must be a tensor"):
            q8.compile(program)


def test_inputs_of_another_float() -> None:
    class Index(nn.Module):
        def forward(self, x: Tensor, i: Tensor) -> Tensor:
            return x + i

    program = torch.export.export(Index(), (data(1, 3), torch.ones(1, 3, dtype=torch.float64)))
    with pytest.raises(
        q8.UnsupportedError, match=r"input i must be a tensor of float32, integers .* found torch.float64"
    ):
        q8.compile(program)


def test_float16_given_to_a_program_is_refused_once() -> None:
    program = torch.export.export(Plain(lambda _, x: x + 1), (torch.zeros(2, 3, dtype=torch.float16),))
    with pytest.raises(q8.UnsupportedError, match=r"found torch.float16: quantities are float32 outside") as caught:
        q8.compile(program)
    assert "aten.add" not in str(caught.value)


def test_float64_as_the_default_dtype() -> None:
    x = data(1, 2, 8, 8)
    functions: tuple[Callable[..., Any], ...] = (
        lambda _, x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
        lambda _, x: torch.fft.irfft(torch.fft.rfft(x) + torch.zeros(5, dtype=torch.complex64)),
        lambda _, x: F.interpolate(x, (5, 12), mode="bilinear"),
    )
    torch.set_default_dtype(torch.float64)
    try:
        for function in functions:
            module = Plain(function).eval()
            found = q8.Session(q8.compile(quantize(module, x)), "reference")(x)
            np.testing.assert_allclose(found, module(x), atol=0.1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_reshape_that_does_not_fit() -> None:
    module = nn.Sequential(conv(3, 4), nn.Flatten(), nn.Linear(4 * 25, 6))
    model = q8.compile(quantize(module, data(1, 3, 5, 5)))
    with pytest.raises(q8.InputError, match="cannot take inputs"):
        model.reshape((1, 3, 9, 9))
    assert model.reshape((4, 3, 5, 5)).graph.types[model.graph.outputs[0]].shape == (4, 6)


def test_reshape_beyond_what_may_run() -> None:
    """A reshaped graph is checked as a loaded one is."""
    model = q8.compile(quantize(conv(3, 4), data(1, 3, 5, 5)))
    with pytest.raises(q8.InputError, match=r"cannot take inputs of \(1, 3, 16777216, 16777216\).*elements"):
        model.reshape((1, 3, 2**24, 2**24))
    model = q8.compile(quantize(Plain(lambda s, x: x @ x.transpose(-1, -2)), data(1, 5, 5)))
    with pytest.raises(q8.InputError, match=r"cannot take inputs of \(1, 40000, 8192\).*steps"):
        model.reshape((1, 40000, 8192))
