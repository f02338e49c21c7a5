"""Importing operators: a torch module without quantization, compiled, computes what torch computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from q8ta_wgpu import Session
from q8ta_wgpu.errors import InputError, UnsupportedError
from q8ta_wgpu.frontend.importer import import_program
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.passes import run_passes

Function = Callable[..., Any]


class Wrapped(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def imported(function: Function, *inputs: Tensor) -> Model:
    """The compiled model of a float function."""
    module = function if isinstance(function, nn.Module) else Wrapped(function)
    program = torch.export.export(module.eval(), inputs)
    graph, structure = import_program(program)
    return Model(run_passes(graph), structure)


def flat(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a module's outputs."""
    found: Sequence[Any] = torch.utils._pytree.tree_flatten(outputs)[0]
    return [np.asarray(v.detach() if isinstance(v, Tensor) else v) for v in found]


def data(*shape: int) -> Tensor:
    """Normal values, the first ones replaced by what overflows careless formulas."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    edges = torch.tensor([0.0, -0.0, 88.0, -88.0, 120.0, -120.0, 1e-6, -1e-6, 0.05, -0.05, 0.1, 3.0, -3.0, 20.5])
    x.view(-1)[: edges.numel()] = edges[: x.numel()]
    return x


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


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    """Elementwise functions, at values where a careless formula overflows; on the reference and on the GPU."""
    x = data(2, 5, 3, 7)
    function = UNARY[name]
    model = imported(function, x)
    expected = flat(function(x))[0]
    for device in ("reference", "llvmpipe"):
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6, err_msg=device)


class Patches(nn.Module):
    """Image to tokens and back, as vision transformers write it."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        heads = tokens.reshape(b, h * w, 2, c // 2).permute(0, 2, 1, 3)
        return heads.transpose(1, 2).reshape(b, h * w, c).transpose(1, 2).reshape(b, c, h, w)


class Written(nn.Module):
    """A part of a tensor is written in place."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, 1:3] = x[:, 3:] * 2
        y[:, 0] += x[:, 1]
        return y


MOVES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "flatten": (lambda x: x.flatten(1), (2, 5, 3, 7)),
    "flatten_scalar": (lambda x: x.flatten(), (3,)),
    "view": (lambda x: x.view(2, 3, 2, 7), (2, 6, 7)),
    "reshape": (lambda x: x.reshape(-1, 7), (2, 5, 3, 7)),
    "squeeze": (lambda x: x.squeeze(), (1, 5, 1, 7)),
    "squeeze_dim": (lambda x: x.squeeze(-1).squeeze(0), (2, 5, 3, 1)),
    "squeeze_dims": (lambda x: x.squeeze((0, 2)), (1, 5, 1, 7)),
    "unsqueeze": (lambda x: x.unsqueeze(0).unsqueeze(-1), (5, 3, 7)),
    "permute": (lambda x: x.permute(0, -1, 1, 2), (2, 5, 3, 7)),
    "transpose": (lambda x: x.transpose(1, -1), (2, 5, 3, 7)),
    "t": (lambda x: x.t(), (5, 7)),
    "mt": (lambda x: x.mT, (2, 5, 7)),
    "movedim": (lambda x: x.movedim(-1, 1), (2, 5, 3, 7)),
    "swapaxes": (lambda x: x.swapaxes(1, 2), (2, 5, 3, 7)),
    "expand": (lambda x: x.expand(-1, 4, -1, 7), (2, 1, 3, 1)),
    "expand_new": (lambda x: x.expand(3, 2, 5), (2, 5)),
    "expand_as": (lambda x: x[:, :1].expand_as(x), (2, 5, 3, 7)),
    "slice": (lambda x: x[:, 1:4, ::2, -3:], (2, 5, 3, 7)),
    "slice_negative": (lambda x: x[:, -4:-1, :-1], (2, 5, 3, 7)),
    "slice_last": (lambda x: x[..., 2:100], (2, 5, 3, 7)),
    "select": (lambda x: (x[:, 0], x[:, -1], x[..., 2], x[1]), (2, 5, 3, 7)),
    "select_vector": (lambda x: x[2] * 1.0, (5,)),
    "index_none": (lambda x: x[:, None, ..., 1], (2, 5, 3, 7)),
    "narrow": (lambda x: x.narrow(1, 1, 3), (2, 5, 3, 7)),
    "split": (lambda x: x.split(2, 1), (2, 5, 3, 7)),
    "split_sizes": (lambda x: x.split([1, 3, 1], 1), (2, 5, 3, 7)),
    "chunk": (lambda x: x.chunk(3, -1), (2, 5, 3, 7)),
    "tensor_split": (lambda x: x.tensor_split(3, 1), (2, 5, 3, 7)),
    "unbind": (lambda x: x.unbind(2), (2, 5, 3, 7)),
    "split_unused": (lambda x: x.chunk(2, 1)[1], (2, 6, 3, 7)),
    "cat": (lambda x: torch.cat([x, x * 2, x[:, :1]], 1), (2, 5, 3, 7)),
    "cat_negative": (lambda x: torch.cat([x, x[..., 1:]], -1), (2, 5, 3, 7)),
    "cat_rank_5": (lambda x: torch.cat([x, x * 2], 1), (2, 3, 2, 3, 5)),
    "cat_many": (lambda x: torch.cat([x * i for i in range(17)], 1), (1, 3, 2, 2)),
    "stack": (lambda x: torch.stack([x, x * 2], 1), (2, 5, 3)),
    "stack_last": (lambda x: torch.stack([x, x * 2], -1), (2, 5, 3)),
    "pad": (lambda x: F.pad(x, [1, 2, 0, 1]), (2, 5, 3, 7)),
    "pad_value": (lambda x: F.pad(x, [1, -2, 0, 1, 2, 0], value=1.5), (2, 5, 3, 7)),
    "zero_pad": (nn.ZeroPad2d(2), (2, 5, 3, 7)),
    "pad_1d": (lambda x: F.pad(x, (3, 0)), (2, 5, 7)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 3), (2, 18, 3, 5)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 3, 4, 6)),
    "channel_shuffle": (nn.ChannelShuffle(3), (2, 12, 3, 5)),
    "flip": (lambda x: x.flip((1, -1)), (2, 5, 3, 7)),
    "repeat": (lambda x: x.repeat(2, 1, 3, 2), (2, 5, 3, 7)),
    "repeat_new": (lambda x: x.repeat(2, 3, 1), (5, 3)),
    "patches": (Patches(), (2, 6, 3, 5)),
    "pad_reflect": (lambda x: F.pad(x, (3, 2, 0, 1), mode="reflect"), (2, 5, 3, 7)),
    "pad_replicate": (lambda x: F.pad(x, (3, 0, 1, 2), mode="replicate"), (2, 5, 3, 7)),
    "pad_circular": (lambda x: F.pad(x, (3, 2), mode="circular"), (2, 5, 7)),
    "reflection_pad": (nn.ReflectionPad2d((2, 1, 1, 2)), (2, 5, 3, 7)),
    "unfold": (lambda x: x.unfold(2, 2, 1).unfold(3, 3, 2), (2, 5, 3, 7)),
    "im2col": (lambda x: F.unfold(x, (2, 3), padding=1, stride=(1, 2)), (2, 5, 3, 7)),
    "slice_scatter": (lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 3), (2, 5, 3, 7)),
    "slice_scatter_nothing": (lambda x: torch.slice_scatter(x, x[:, :0], 1, 3, 1), (2, 5, 3, 7)),
    "written": (Written(), (2, 5, 3, 7)),
    "max_pool3d": (lambda x: F.max_pool3d(x, (1, 2, 3), (1, 2, 1), (0, 1, 1)), (2, 5, 3, 6, 7)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 4)), (2, 5, 4, 9)),
    "max_dim": (lambda x: (x.max(1)[0], x.min(-1, keepdim=True).values, x.max()), (2, 5, 3, 7)),
    "argmax_5d": (lambda x: (x.argmax(1) * 1.0, x.argmin(0, keepdim=True) * 1.0), (2, 5, 3, 2, 4)),
    "extremes": (lambda x: torch.maximum(x, x.flip(1)) + torch.minimum(x, x[:, :1]), (2, 5, 3, 7)),
    "roll": (lambda x: x.roll((1, -2, 10), (0, 2, -1)), (2, 5, 6, 7)),
    "roll_flat": (lambda x: x.roll(3), (2, 5, 3)),
    "index_select": (lambda x: x.index_select(-1, torch.tensor([4, 0, 0, 6])), (2, 5, 3, 7)),
    "index_channels": (lambda x: x[:, torch.tensor([4, -1, 0])], (2, 5, 3, 7)),
    "index_mesh": (lambda x: x[:, :, torch.arange(2)[:, None], torch.tensor([6, 0, -3])], (2, 5, 3, 7)),
    "index_apart": (lambda x: x[torch.tensor([1, 0, 1]), :, torch.tensor([2, 0, 1])], (2, 5, 3, 7)),
    "gather": (lambda x: x.gather(1, torch.tensor([[[0, 2, 1]], [[4, 0, 3]]])), (2, 5, 3)),
    "reshape_to_scalar": (lambda x: x[0, 0] + x[1, 1], (2, 3)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    """Operators that only move elements give torch's own bits, on the reference and on the GPU."""
    function, shape = MOVES[name]
    x = data(*shape)
    model = imported(function, x)
    expected = flat(function(x))
    for device in ("reference", "llvmpipe"):
        with Session(model, device) as session:
            found = flat(session(x))
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_array_equal(f, e, err_msg=device)


CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "dilated, strided": (nn.Conv2d(4, 6, (3, 2), (2, 3), (1, 2), (2, 3), groups=2), (2, 4, 9, 11)),
    "same": (nn.Conv2d(3, 5, 3, padding="same"), (1, 3, 6, 7)),
    "same, even kernel": (nn.Conv2d(3, 5, (4, 2), padding="same", dilation=(1, 3)), (1, 3, 6, 7)),
    "valid": (nn.Conv2d(3, 5, 2, padding="valid"), (1, 3, 6, 7)),
    "four sides": (nn.Sequential(nn.ZeroPad2d((1, 2, 3, 0)), nn.Conv2d(3, 5, 3)), (1, 3, 6, 7)),
    "1d same": (nn.Conv1d(3, 5, 4, padding="same", dilation=2), (2, 3, 9)),
    "3d, flat in front": (nn.Conv3d(4, 6, (1, 3, 2), (1, 2, 1), (0, 1, 2), groups=2), (2, 4, 3, 5, 6)),
    "3d, flat behind": (nn.Conv3d(1, 4, (3, 3, 1), padding=(1, 1, 0)), (2, 1, 5, 6, 3)),
    "3d same": (nn.Conv3d(3, 5, (3, 1, 2), padding="same"), (2, 3, 5, 4, 3)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str, decomposed: bool) -> None:
    """Every way of padding, whole and decomposed, on the reference and on the GPU."""
    module, shape = CONVOLUTIONS[name]
    x = data(*shape)
    program = torch.export.export(module.eval(), (x,))
    graph, structure = import_program(program.run_decompositions() if decomposed else program)
    model = Model(run_passes(graph), structure)
    for device in ("reference", "llvmpipe"):
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5, err_msg=device)


TRANSPOSED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.ConvTranspose2d(5, 6, 2, 2), (2, 5, 3, 7)),
    "output_padding": (nn.ConvTranspose2d(5, 6, 3, (2, 3), 1, (1, 2)), (1, 5, 3, 7)),
    "dilated": (nn.ConvTranspose2d(4, 6, (3, 2), 2, (0, 1), 1, dilation=(2, 3), bias=False), (1, 4, 3, 5)),
    "groups": (nn.ConvTranspose2d(6, 9, 4, 2, 1, groups=3), (2, 6, 3, 5)),
    "depthwise": (nn.ConvTranspose2d(6, 6, 4, 2, 1, groups=6), (2, 6, 3, 5)),
    "one_output": (nn.ConvTranspose2d(6, 1, 3, 3), (1, 6, 3, 5)),
    "1d": (nn.ConvTranspose1d(6, 4, 4, 3, 1, 2, groups=2, dilation=2), (2, 6, 9)),
    "1d_no_bias": (nn.ConvTranspose1d(3, 5, 2, bias=False), (2, 3, 9)),
    "batch_norm": (nn.Sequential(nn.ConvTranspose2d(4, 6, 2, 2, groups=2), nn.BatchNorm2d(6)), (1, 4, 3, 5)),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(name: str, decomposed: bool) -> None:
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
    assert [n.op for n in model.graph.nodes if n.op != "view"] == ["conv_transpose2d"]
    for device in ("reference", "llvmpipe"):
        with Session(model, device) as session:
            found = flat(session(x))[0]
        np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5, err_msg=device)


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
def test_upsample(shape: tuple[int, ...], option: dict[str, Any]) -> None:
    """Nearest upsampling of images and sequences on the GPU."""
    x = data(*shape)
    with Session(imported(lambda x: F.interpolate(x, **option), x), "llvmpipe") as session:
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
def test_upsample_bilinear(shape: tuple[int, ...], option: dict[str, Any]) -> None:
    """Mixed rows and columns of images and sequences, on the reference and on the GPU."""
    x = data(*shape)
    model = imported(lambda x: F.interpolate(x, **option), x)
    for device in ("reference", "llvmpipe"):
        with Session(model, device) as session:
            expected = F.interpolate(x.double(), **option).numpy()
            np.testing.assert_allclose(flat(session(x))[0], expected, rtol=2e-5, atol=2e-3, err_msg=device)


RESHAPED: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "flatten_batch": (lambda x: x.flatten(1), (2, 5, 3, 7), (3, 5, 3, 7)),
    "flatten_size": (lambda x: x.flatten(2).transpose(1, 2), (2, 5, 3, 7), (1, 5, 4, 9)),
    "heads": (lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2), (2, 5, 6), (3, 4, 6)),
    "unsqueeze": (lambda x: x.unsqueeze(0), (2, 5), (3, 5)),
    "unsqueeze_one": (lambda x: x.unsqueeze(0), (1, 5), (3, 5)),
    "squeeze": (lambda x: x.squeeze(2).squeeze(-1), (1, 5, 1, 1), (3, 5, 1, 1)),
    "squeeze_dims": (lambda x: x.squeeze((1, 3)), (2, 1, 5, 1, 4), (3, 1, 6, 1, 7)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), (2, 6, 5), (3, 6, 7)),
    "merge_batch": (lambda x: x.reshape(-1, 7), (2, 5, 7), (3, 4, 7)),
    "groups": (
        lambda x: x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2),
        (2, 6, 3, 7),
        (3, 6, 4, 9),
    ),
    "crop": (lambda x: x[:, :, 1:-1, 2:], (2, 5, 4, 7), (1, 5, 6, 9)),
    "select": (lambda x: x[:, 1] + x[:, -1], (2, 5, 3, 7), (3, 5, 4, 7)),
    "stack": (lambda x: torch.stack([x, x], 1), (2, 5, 3), (3, 7, 3)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=1.5), (2, 5, 4, 6), (1, 5, 7, 9)),
    "pad_reflect": (lambda x: F.pad(x, (2, 2, 1, 1), mode="reflect"), (2, 5, 4, 6), (1, 5, 7, 9)),
    "upsample_bilinear": (
        lambda x: F.interpolate(F.avg_pool2d(x, 2), x.shape[-2:], mode="bilinear"),
        (2, 5, 4, 6),
        (1, 5, 8, 10),
    ),
    "upsample_as": (lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:]), (2, 5, 4, 6), (1, 5, 8, 10)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)), (2, 5, 4, 6), (1, 5, 7, 9)),
    "shuffles": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), (2, 8, 4, 6), (1, 8, 7, 9)),
    "expand": (lambda x: x.expand(-1, 4, -1, -1), (2, 1, 4, 6), (3, 1, 7, 9)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (2, 5, 4, 9), (1, 5, 7, 10)),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(3, 5, 3), padding=1), (2, 5, 7), (3, 5, 9)),
    "select_last": (lambda x: x[:, 3], (2, 4, 5), (2, 6, 5)),
}


def test_reshape_of_a_transposed_convolution() -> None:
    module = nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)
    x = data(1, 4, 6, 2)
    (found,) = flat(Session(imported(module, data(2, 4, 3, 5)).reshape(x.shape), "reference")(x))
    np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", RESHAPED)
def test_reshape(name: str) -> None:
    """model.reshape gives what torch gives at the other size, although the program was exported at one size."""
    function, old, new = RESHAPED[name]
    model = imported(function, data(*old)).reshape(new)
    x = data(*new)
    (found,) = flat(Session(model, "reference")(x))
    np.testing.assert_allclose(found, flat(function(x))[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("value", "out"), [(5.0, QParams(0.1, -20)), (0.03, QParams(0.0005, 7)), (0.0, QParams(0.023, 3))]
)
def test_pad_value_between_int8_values(value: float, out: QParams) -> None:
    """A padding value that the input's scale cannot hold is not rounded to it on the way to the result's scale."""
    x_q, shape = QParams(0.01, -10), (1, 5, 3, 7)
    padded = (1, 5, 5, 9)
    graph = Graph(["x"], ["y"])
    graph.types = {"x": TensorType(shape, INT8X4, x_q), "real": TensorType(shape), "padded": TensorType(padded)}
    graph.types["y"] = TensorType(padded, INT8X4, out)
    graph.nodes = [
        Node("dequantize", ("x",), "real"),
        Node("pad", ("real",), "padded", {"padding": (0, 0, 0, 0, 1, 1, 1, 1), "value": value}),
        Node("quantize", ("padded",), "y", {"lo": -128, "hi": 127}),
    ]
    inputs = {"x": np.arange(-52, 53, dtype=np.int8).reshape(shape)}
    expected, fused = reference.run(graph, inputs)["y"], run_passes(graph)
    assert {node.op for node in fused.nodes} == {"pad", "q8ta_table"}
    np.testing.assert_array_equal(reference.run(fused, inputs)["y"], expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 1:4],
        lambda x: x.narrow(1, 2, 2),
        lambda x: x.split(2, 1)[1],
        lambda x: x.split([1, 3], 1)[0],
        lambda x: x.chunk(2, 1)[0],
        lambda x: x.unbind(1)[1],
    ],
)
def test_reshape_refuses_what_may_be_counted_from_the_size(function: Function) -> None:
    """A part that ends where the dimension ends, and one of all its parts, may be other elements at another size."""
    model = imported(function, data(2, 4, 5))
    model.reshape((3, 4, 7))
    with pytest.raises(InputError, match="counted in 4 elements"):
        model.reshape((2, 6, 5))


def test_reshape_refuses_what_the_network_fixes() -> None:
    """Sizes written into the network stay: a flatten into a linear keeps its width."""
    model = imported(nn.Sequential(nn.Flatten(), nn.Linear(105, 4)), data(2, 5, 3, 7))
    with pytest.raises(InputError, match="cannot take inputs"):
        model.reshape((2, 5, 4, 7))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: F.pad(x, (1, -1, 1, 1), mode="reflect"), "padding mode 'reflect' cannot cut"),
        (lambda x: F.max_pool3d(x[None], 2), "one element deep"),
        (lambda x: F.conv3d(x[None], torch.ones(2, 2, 3, 3, 3)), "one element deep"),
        (lambda x: x.to(torch.float64), "torch.float64"),
        (lambda x: F.dropout(x, 0.5, True), "training mode"),
        (lambda x: x / 0, "divides by zero"),
        (
            lambda x: x.roll(1, 1) + x[:, x.argmax(1)[0, 0, :5], x.argmax(2)[0, 0, :5]].sum(),
            "index is computed from the input",
        ),
    ],
)
def test_refusals(function: Function, message: str) -> None:
    """What cannot be imported is named."""
    with pytest.raises(UnsupportedError, match=message):
        imported(function, data(2, 5, 3, 7))
