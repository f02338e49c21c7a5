"""Importing what only moves elements: a compiled torch function gives its own bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from q8ta_wgpu import Session
from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes import run_passes
from testbed.fixtures import Devices
from tests.importing import Function, data, flat, imported


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
def test_moves(name: str, devices: Devices) -> None:
    """Operators that only move elements give torch's own bits, on the reference and on the GPU."""
    function, shape = MOVES[name]
    x = data(*shape)
    model = imported(function, x)
    expected = flat(function(x))
    for device in devices:
        with Session(model, device) as session:
            found = flat(session(x))
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            np.testing.assert_array_equal(f, e, err_msg=str(device))


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
