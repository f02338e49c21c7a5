"""Importing operators: a torch module without quantization, compiled, computes what torch computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from q8ta_wgpu import Session
from q8ta_wgpu.errors import UnsupportedError
from q8ta_wgpu.frontend.importer.importer import import_program
from q8ta_wgpu.importing.unary_calls import ATEN
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.runtime.device import Device
from testbed.fixtures import Devices
from tests.importing import Function, data, flat, imported

UNARY: dict[str, Function] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "relu6_module": nn.ReLU6(),
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 2.5),
    "clamp_min": lambda x: x.clamp(min=0.5),
    "clamp_max": lambda x: x.clamp(max=0.5),
    "clamp_crossed": lambda x: x.clamp(2, 1),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "elu": lambda x: F.elu(x, 1.3),
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 1.5, 10),
    "mish": F.mish,
    "exp": lambda x: (x / 2).exp(),
    "log": lambda x: (x.abs() + 0.1).log(),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: (x.abs() + 0.1).rsqrt(),
    "reciprocal": lambda x: 1 / (x.abs() + 0.1),
    "pow_2": lambda x: x**2,
    "pow_3": lambda x: x**3,
    "pow_half": lambda x: x.abs() ** 0.5,
    "pow_minus_2": lambda x: (x.abs() + 0.1) ** -2,
    "pow_fraction": lambda x: (x.abs() + 0.1) ** 1.7,
    "square": torch.square,
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(x.abs() + 1),
    "atanh": lambda x: torch.atanh(x.tanh() / 2),
    "erfc": torch.erfc,
    "neg": lambda x: -x,
    "abs": torch.abs,
    "scalars": lambda x: (1 - (x * 2 + 1.5) / 3) - 0.25,
    "rsub_alpha": lambda x: torch.rsub(x, 2.0, alpha=0.5),
    "div_constant": lambda x: x / torch.tensor(3.0),
    "div_tensor": lambda x: x / (x.abs() + 1),
    "div_zero": lambda x: x / (x - x),
    "normalize": lambda x: F.normalize(x, dim=1),
    "norm_one": lambda x: torch.linalg.vector_norm(x, 1, (2, 3)),
    "norm_all": lambda x: x / torch.linalg.vector_norm(x),
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf"), -1, keepdim=True),
    "addcmul": lambda x: torch.addcmul(x, x, x + 1, value=0.5),
    "einsum": lambda x: torch.einsum("nchw,ndhw->ncd", x.sigmoid(), x.sigmoid()),
    "fold": lambda x: F.fold(x.flatten(1, 2)[:, :12, :6], (3, 4), 2),
    "fold_strided": lambda x: F.fold(
        x.flatten(1, 2)[:, :12, :6], (3, 8), (2, 3), dilation=(2, 1), padding=1, stride=(2, 3)
    ),
    "avg_pool3d": lambda x: F.avg_pool3d(x, (1, 2, 3)),
    "in_place": lambda x: F.relu_(x * 1.0),
    "prelu_one": nn.PReLU(),
    "prelu_channels": nn.PReLU(5),
    "dropout": nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Identity()),
    "no_ops": lambda x: x.contiguous().clone().detach().to(torch.float32) * 1.5,
}


def test_functions_are_listed_by_calls_that_torch_has() -> None:
    """A function that torch exports as several operators has no call: the list of operators named one."""
    calls = [call.split(".")[1:] for rules in ATEN.values() for call in rules]
    names = {name for name, _ in calls if not name.endswith("_")}
    assert not {name for name in names if not hasattr(torch.ops.aten, name)}, "see _NO_CALL of unary_calls.py"


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, devices: Devices) -> None:
    """Elementwise functions, at values where a careless formula overflows; on the reference and on the GPU."""
    x = data(2, 5, 3, 7)
    function = UNARY[name]
    model = imported(function, x)
    expected = flat(function(x))[0]
    for device in devices:
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=str(device))


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dilated, strided": (nn.Conv2d(4, 6, (3, 2), (2, 3), (1, 2), (2, 3), groups=2), (2, 4, 9, 11)),
    "same": (nn.Conv2d(3, 5, 3, padding="same"), (1, 3, 6, 7)),
    "same, even kernel": (nn.Conv2d(3, 5, (4, 2), padding="same", dilation=(1, 3)), (1, 3, 6, 7)),
    "valid": (nn.Conv2d(3, 5, 2, padding="valid"), (1, 3, 6, 7)),
    "four sides": (nn.Sequential(nn.ZeroPad2d((1, 2, 3, 0)), nn.Conv2d(3, 5, 3)), (1, 3, 6, 7)),
    "1d same": (nn.Conv1d(3, 5, 4, padding="same", dilation=2), (2, 3, 9)),
    "3d, flat in front": (nn.Conv3d(4, 6, (1, 3, 2), (1, 2, 1), (0, 1, 2), groups=2), (2, 4, 3, 5, 6)),
    "3d, flat behind": (nn.Conv3d(1, 4, (3, 3, 1), padding=(1, 1, 0)), (2, 1, 5, 6, 3)),
    "3d, deep": (nn.Conv3d(4, 6, (3, 2, 3), (2, 1, 2), (1, 0, 1), groups=2), (2, 4, 6, 5, 7)),
    "3d, deep same": (nn.Conv3d(3, 5, (3, 3, 2), padding="same", dilation=(2, 1, 1)), (2, 3, 5, 4, 3)),
    "3d same": (nn.Conv3d(3, 5, (3, 1, 2), padding="same"), (2, 3, 5, 4, 3)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, decomposed: bool, devices: Devices) -> None:
    """Every way of padding, whole and decomposed, on the reference and on the GPU."""
    module, shape = CONVOLUTIONS[name]
    x = data(*shape)
    program = torch.export.export(module.eval(), (x,))
    graph, structure = import_program(program.run_decompositions() if decomposed else program)
    model = Model(run_passes(graph), structure)
    for device in devices:
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5, err_msg=str(device))


TRANSPOSED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.ConvTranspose2d(5, 6, 2, 2), (2, 5, 3, 7)),
    "output_padding": (nn.ConvTranspose2d(5, 6, 3, (2, 3), 1, (1, 2)), (1, 5, 3, 7)),
    "dilated": (nn.ConvTranspose2d(4, 6, (3, 2), 2, (0, 1), 1, dilation=(2, 3), bias=False), (1, 4, 3, 5)),
    "groups": (nn.ConvTranspose2d(6, 9, 4, 2, 1, groups=3), (2, 6, 3, 5)),
    "depthwise": (nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6), (2, 6, 3, 5)),
    "one_output": (nn.ConvTranspose2d(6, 1, 3, 3), (1, 6, 3, 5)),
    "1d": (nn.ConvTranspose1d(6, 4, 4, 3, 1, 2, groups=2, dilation=2), (2, 6, 9)),
    "1d_no_bias": (nn.ConvTranspose1d(3, 5, 2, bias=False), (2, 3, 9)),
    "3d": (
        nn.ConvTranspose3d(4, 6, (3, 2, 4), (2, 1, 3), (1, 0, 2), (1, 0, 2), 2, dilation=(2, 1, 1)),
        (2, 4, 3, 4, 2),
    ),
    "batch_norm": (nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.BatchNorm2d(6)), (1, 4, 3, 5)),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name: str, decomposed: bool, devices: Devices) -> None:
    """Transposed convolutions, whole and decomposed to aten.convolution, on the reference and on the GPU."""
    module, shape = TRANSPOSED[name]
    x = data(*shape)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 2.0)
            nn.init.normal_(part.bias)
            part.running_mean, part.running_var = torch.linspace(-1, 1, 6), torch.linspace(0.5, 2, 6)
    program = torch.export.export(module.eval(), (x,))
    if decomposed:
        program = program.run_decompositions()
        assert any("aten.convolution.default" in str(node.target) for node in program.graph.nodes)
    graph, structure = import_program(program)
    model = Model(run_passes(graph), structure)
    moves = ("view", "permute", "pad", "index_select") if name == "3d" else ("view",)
    norms = ["batch_norm"] * any(isinstance(part, nn.BatchNorm2d) for part in module.modules())  # folded by quantize
    assert [n.op for n in model.graph.nodes if n.op not in moves] == ["conv_transpose2d", *norms]
    for device in devices:
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5, err_msg=str(device))


SCALES = (1.0, 2.0, 3.0, 0.5, 1.5, 2.5, 1.3, 0.7, 1 / 3, 2.01, 1.99, 5 / 3)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("extent", [1, 2, 5, 7, 31, 48])
def test_upsample_index_rule(mode: str, extent: int) -> None:
    """Every ratio, odd ones too, reads the elements torch reads."""
    x = torch.arange(2 * extent, dtype=torch.float32).reshape(1, 1, 2, extent)
    options: list[dict[str, Any]] = [{"scale_factor": (2.0, s)} for s in SCALES if math.floor(extent * s) >= 1]
    options += [{"size": (3, s)} for s in (1, 2, 3, 7, 13, extent, 2 * extent, 3 * extent, 61, 97)]

    def all_of_them(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.interpolate(x, mode=mode, **option) for option in options)

    found = flat(Session(imported(all_of_them, x), "reference")(x))
    for f, e, option in zip(found, flat(all_of_them(x)), options, strict=True):
        np.testing.assert_array_equal(f, e, err_msg=str(option))


@pytest.mark.parametrize(
    ("shape", "option"),
    [
        ((2, 5, 3, 7), {"scale_factor": 2}),
        ((2, 5, 3, 7), {"size": (8, 13)}),
        ((2, 5, 3, 7), {"scale_factor": 1.7, "mode": "nearest-exact"}),
        ((2, 5, 7), {"scale_factor": 3}),
        ((2, 5, 7), {"size": 11}),
    ],
)
def test_upsample(shape: tuple[int, ...], option: dict[str, Any], vulkan: Device) -> None:
    """Nearest upsampling of images and sequences on the GPU."""
    x = data(*shape)
    with Session(imported(lambda x: F.interpolate(x, **option), x), vulkan) as session:
        np.testing.assert_array_equal(flat(session(x))[0], F.interpolate(x, **option).numpy())


@pytest.mark.parametrize(
    ("shape", "option"),
    [
        ((2, 5, 3, 7), {"scale_factor": 2, "mode": "bilinear"}),
        ((2, 5, 3, 7), {"size": (8, 13), "mode": "bilinear", "align_corners": True}),
        ((2, 5, 3, 7), {"scale_factor": (1.7, 0.6), "mode": "bilinear"}),
        ((2, 5, 3, 7), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
        ((2, 5, 7), {"size": 11, "mode": "linear"}),
    ],
)
def test_upsample_bilinear(shape: tuple[int, ...], option: dict[str, Any], devices: Devices) -> None:
    """Mixed rows and columns of images and sequences, on the reference and on the GPU."""
    x = data(*shape)
    model = imported(lambda x: F.interpolate(x, **option), x)
    for device in devices:
        with Session(model, device) as session:
            expected = F.interpolate(x.double(), **option).numpy()
            np.testing.assert_allclose(flat(session(x))[0], expected, rtol=2e-5, atol=2e-3, err_msg=str(device))


def put(x: Tensor, places: Any, rows: Tensor) -> Tensor:
    y = x * 1
    y[places] = rows
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x, at: x.index_copy(2, at, x[:, :, :1] * 2),
        lambda x, at: put(x, (slice(None), at), x[:, :1] * 2),
        lambda x, at: put(x, (..., at - 1), x[..., :1] * 2),
        lambda x, at: put(x, (slice(None), at), x[0, 0] * 2),
        lambda x, at: put(x, at, x[:1] * 2),
    ],
)
def test_rows_written_at_computed_places(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = data(2, 3, 3, 7)

    def call(x: Tensor) -> Tensor:
        return function(x, x[0, :, 0, 0].argmax(0, keepdim=True) % 2)

    np.testing.assert_array_equal(Session(imported(call, x), "reference")(x), call(x).numpy())


THREE, FIVE = torch.arange(3), torch.arange(5)


@pytest.mark.parametrize("whole", [True, False], ids=["integers", "computed from floats"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[THREE, i],
        lambda x, i: x[THREE, i - 3],
        lambda x, i: x[THREE[:, None], i],
        lambda x, i: x[THREE[:, None], i[:, None] - torch.arange(2)],
        lambda x, i: x[THREE, :, i],
        lambda x, i: x.transpose(0, 1)[i, THREE],
        lambda x, i: x[:1][torch.tensor([0]), i],
        lambda x, i: x[torch.tensor([2, 0, 0]), i],
        lambda x, i: x[i, i],
        lambda x, i: x[i[:, None], FIVE],
        lambda x, i: x[THREE, i, THREE * 2],
        lambda x, i: put(x, (i, i), x[0, 0]),
        lambda x, i: put(x, (THREE, i - 2), x[:, 0] * 2),
        lambda x, i: put(x, (THREE, slice(None), i), x[:, :, 0] * 2),
        lambda x, i: put(x, (slice(None), i, i + 1), x[:, 0, :3]),
        lambda x, i: put(x, (i, i - 1, i), torch.tensor(3.0)),
        lambda x, i: put(x, (slice(None), i[:, None]), x[:, :1, None].expand(3, 3, 1, 7)),
        lambda x, i: put(x, (THREE[:, None], (i[:, None] + torch.arange(2)) % 5), x[:, :2] * 3),
        lambda x, i: put(torch.arange(15).reshape(3, 5), (THREE, i), i),
    ],
)
def test_several_indices(function: Callable[[Tensor, Tensor], Tensor], whole: bool, devices: Devices) -> None:
    """Some of them computed, adjacent or not, beside the numbers of the rows; some count from the end."""
    x, given = data(3, 5, 7), torch.tensor([2, 0, 1])

    def call(x: Tensor, i: Tensor) -> Tensor:
        return function(x, i if whole else x[:, :3, 0].argmax(-1) + 0 * i)

    expected, model = call(x, given).numpy(), imported(call, x, given)
    for device in devices:
        with Session(model, device) as session:
            np.testing.assert_array_equal(flat(session(x, given))[0], expected, err_msg=str(device))


def test_nothing_is_written_where_one_of_several_indices_lies_outside(vulkan: Device) -> None:
    """Computed ones are not checked before a call. Torch raises an error."""
    x, given = data(3, 5, 7), torch.tensor([2, 0, 1])
    model = imported(lambda x, i: put(x, (THREE, i // 1 * 2), torch.tensor(9.0)), x, given)
    expected = x.numpy().copy()
    expected[2, 4] = 9
    for device in ("reference", vulkan):
        with Session(model, device) as session:
            found = flat(session(x, torch.tensor([3, -4, 2])))[0]
        np.testing.assert_array_equal(found, expected, err_msg=str(device))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: F.pad(x, (1, -1, 1, 1), mode="reflect"), "padding mode 'reflect' cannot cut"),
        (lambda x: torch.linalg.svdvals(x), "aten._linalg_svd.default .*is not supported"),
        (lambda x: x.to(torch.float64), "torch.float64"),
        (lambda x: F.dropout(x, 0.5, True), "training mode"),
        (lambda x: x / 0, "divides by zero, found the divisor 0"),
        (
            lambda x: F.grid_sample(x, x[:, 0, :, :2, None].expand(2, 3, 2, 2), "bicubic", align_corners=True),
            "nearest, .*found .* bicubic",
        ),
        (lambda x: x.softmax(1, dtype=torch.float64), "must be float32, found torch.float64: leave out its dtype"),
        (
            lambda x: x.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), x[:, 0], accumulate=True),
            "write each index once, with accumulate=",
        ),
        (lambda x: x.clamp(-1, 1).cumprod(1, dtype=torch.int64), "floats as integers: .*.long.*.cumprod"),
        (lambda x: x.clamp(-1, 1).prod(1, dtype=torch.int64), "floats as integers: .*.long.*.prod"),
        (lambda x: F.max_pool2d(x, 2, dilation=2, return_indices=True), "result 1 is not supported"),
        (
            lambda x: x[None].index_put((x[0, 0].argmax(0) % 1,), x),
            r"writes at computed indices into \(1, 2, 5, 3, 7\): up to 4",
        ),
    ],
)
def test_refusals(function: Function, message: str) -> None:
    """What cannot be imported is named."""
    with pytest.raises(UnsupportedError, match=message):
        imported(function, data(2, 5, 3, 7))
