"""Transposed convolutions quantized by PT2E: scales along the outputs, norms, tiles, and whole decoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.graph import Graph, Node, TensorType
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.verify import RUNNABLE, verify
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session.tiled import largest_value
from testbed.harness import stages_of
from tests.quantizing import Plain, check, conv, data, ops

LAYERS: dict[str, nn.Module] = {
    "2x2 s2": nn.ConvTranspose2d(8, 6, 2, 2),
    "4x4 s2 p1": nn.ConvTranspose2d(8, 5, 4, 2, 1),
    "3x3 s2 output padding": nn.ConvTranspose2d(8, 6, 3, 2, 1, 1),
    "asymmetric, dilated": nn.ConvTranspose2d(8, 6, (2, 3), (3, 2), (1, 0), (2, 1), dilation=(2, 3)),
    "groups": nn.ConvTranspose2d(8, 6, 3, 2, 1, groups=2),
    "depthwise": nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8),
    "depthwise, twice": nn.ConvTranspose2d(8, 16, 3, 2, groups=8),
    "one output": nn.ConvTranspose2d(8, 1, 2, 2),
    "batch norm": nn.Sequential(nn.ConvTranspose2d(8, 6, 2, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, vulkan: Device) -> None:
    """Between two convolutions: all int8, equal to the reference, within a step of torch's simulation."""
    torch.manual_seed(3)
    for part in LAYERS[name].modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean, part.running_var = data(6), data(6, seed=2).abs() + 0.2
    module = Plain(lambda s, x: s.b(s.up(s.a(x))), a=conv(3, 8), up=LAYERS[name], b=nn.LazyConv2d(4, 3))
    module(data(1, 3, 5, 6))
    model = check(module, [data(1, 3, 5, 6)], vulkan)
    assert ops(model) == ["q8ta_conv2d", "q8ta_conv_transpose2d", "q8ta_conv2d"]


def test_conv_transpose1d(vulkan: Device) -> None:
    module = Plain(
        lambda s, x: s.b(s.up(s.a(x))),
        a=nn.Conv1d(3, 8, 3),
        up=nn.ConvTranspose1d(8, 6, 4, 2, 1),
        b=nn.Conv1d(6, 4, 3),
    )
    assert "q8ta_conv_transpose2d" in ops(check(module, [data(2, 3, 9)], vulkan))


@pytest.mark.parametrize("name", ["2x2 s2", "one output", "groups", "depthwise"])
def test_scales_follow_the_outputs(name: str) -> None:
    """Outputs of very different size keep their own scale; torch has one for every place within a group."""
    layer = LAYERS[name]
    assert isinstance(layer, nn.ConvTranspose2d)
    outputs, groups = layer.out_channels, layer.groups
    distinct = outputs if groups in (1, layer.in_channels) else outputs // groups
    with torch.no_grad():
        each = 10.0 ** torch.arange(distinct).repeat(outputs // distinct)
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)))
        parts = layer.weight.view(groups, -1, *layer.weight.shape[1:])
        parts *= each.view(groups, 1, outputs // groups, 1, 1)
    x = data(1, layer.in_channels, 5, 6)
    model = q8.compile(q8.quantize(Plain(lambda s, x: s.up(x), up=layer).eval(), (x,), [x], progress=False))
    node = next(node for node in model.graph.nodes if node.op.startswith("q8ta_conv_transpose2d"))
    multiplier = model.graph.constants[node.inputs[2]]
    largest = np.abs(model.graph.constants[node.inputs[1]].astype(int)).reshape(outputs, -1).max(1)
    assert (largest == 127).sum() >= distinct, "every output, or the largest of those that share a scale, fills int8"
    assert len(np.unique(multiplier)) == distinct


def test_residual_and_activation_join_the_epilogue(vulkan: Device) -> None:
    """A skip connection is added before rounding."""

    module = Plain(
        lambda s, x: s.b(torch.relu(s.skip(x) + s.up(s.a(x)))),
        a=nn.Conv2d(3, 8, 2, 2),
        up=nn.ConvTranspose2d(8, 6, 2, 2),
        skip=conv(3, 6),
        b=conv(6, 4),
    )
    model = check(module, [data(1, 3, 6, 8)], vulkan)
    assert ("q8ta_conv_transpose2d", "residual requantize") in [(n.op, stages_of(n)) for n in model.graph.nodes]


def test_a_file_with_other_corrections_is_refused() -> None:
    """What a kernel starts its sums with must follow from the weights, phase by phase."""
    x = data(1, 4, 5, 5)
    model = q8.compile(q8.quantize(nn.ConvTranspose2d(4, 6, 3, 2).eval(), (x,), [x], progress=False))
    node = next(node for node in model.graph.nodes if node.op.startswith("q8ta_conv_transpose2d"))
    name = node.inputs[4]
    correction = model.graph.constants[name]
    assert correction.shape == (4, 6)
    verify(model.graph, RUNNABLE)
    model.graph.constants[name] = correction[::-1].copy()
    with pytest.raises(GraphError, match="sums of each phase's weights"):
        verify(model.graph, RUNNABLE)


def test_work_is_counted_once_for_each_pixel_of_the_input(vulkan: Device) -> None:
    x = data(2, 4, 5, 7)
    model = q8.compile(q8.quantize(nn.ConvTranspose2d(4, 6, 3, 2).eval(), (x,), [x], progress=False))
    with q8.Session(model, vulkan) as session:
        assert sum(d.macs for d in session.program.dispatches) == 2 * 5 * 7 * 4 * 6 * 9


class Decoder(nn.Module):
    """A small U-Net: strided convolutions down, transposed ones up (2x2 and 4x4), features joined by cat."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.down1 = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(32, 48, 3, 2, 1), nn.ReLU())
        self.up1 = nn.ConvTranspose2d(48, 32, 2, 2)
        self.mix1 = nn.Sequential(nn.Conv2d(64, 32, 3, padding=1), nn.ReLU())
        self.up2 = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.stem(x)
        b = self.down1(a)
        y = self.mix1(torch.cat([self.up1(self.down2(b)), b], 1))
        y = self.head(torch.cat([self.up2(y), a], 1))
        assert isinstance(y, Tensor)
        return y


def test_a_decoder_runs_in_int8(vulkan: Device) -> None:
    torch.manual_seed(5)
    model = check(Decoder(), [data(1, 3, 20, 28)], vulkan)
    report = model.report()
    assert report.float32 == {}, str(report)
    assert report.exact
    assert ops(model).count("q8ta_conv_transpose2d") == 2
    other = model.reshape((2, 3, 12, 16))
    x = data(2, 3, 12, 16, seed=4).numpy()
    with q8.Session(other, vulkan) as session:
        used = [d.kernel for d in session.program.dispatches if "transpose" in d.kernel]
        found = session(x)
    assert all(".implicit_" in name for name in used), used
    assert int((found != q8.Session(other, "reference")(x)).sum()) == 0


TILED: dict[str, nn.Module] = {
    "2x2 s2": nn.ConvTranspose2d(6, 3, 2, 2),
    "4x4 s2 p1": nn.ConvTranspose2d(6, 3, 4, 2, 1),
    "3x3 s2 p1 output padding": nn.ConvTranspose2d(6, 3, 3, 2, 1, 1),
    "1x1 s2 output padding": nn.ConvTranspose2d(6, 3, 1, 2, 0, 1),
}


@pytest.mark.parametrize("name", TILED)
def test_tiles_equal_the_whole(name: str, vulkan: Device) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), TILED[name], nn.Conv2d(3, 2, 3, padding=1)).eval()
    x = torch.randn(1, 1, 24, 24)
    model = q8.compile(q8.quantize(module, (x,), [x], progress=False))
    image = np.random.default_rng(3).normal(size=(1, 1, 40, 52)).astype(np.float32)
    with q8.Session(model.reshape(image.shape), vulkan) as session:
        whole = session(image)
    limit = largest_value(model.reshape(image.shape).graph) // 2
    with q8.TiledSession(model, image.shape, vulkan, max_bytes=limit) as tiled:
        assert tiled.windows > 1
        found = tiled(image)
    assert int((found.view(np.uint32) != whole.view(np.uint32)).sum()) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_reads_names_what_a_row_depends_on(size: int, kernel: int, stride: int) -> None:
    """Changing an input row outside of what `reads` gives changes no result row, inside of it does."""
    rng = np.random.default_rng(0)
    op = OPS["conv_transpose2d"]
    for padding, dilation in ((0, 1), (1, 1), (0, 2)):
        graph = _one(size, kernel, stride, padding, dilation)
        if graph is None:
            continue
        call = graph.call(graph.nodes[0])
        x, weight = rng.normal(size=(1, 1, size, 1)), np.ones((1, 1, kernel, 1))
        base = op.reference(call, [x, weight, np.zeros(1)])
        assert op.reads is not None
        for row in range(size):
            other = x.copy()
            other[0, 0, row] += 1
            changed = (op.reference(call, [other, weight, np.zeros(1)]) != base)[0, 0, :, 0]
            for y in range(base.shape[2]):
                span = op.reads(call, 2, y, y)
                assert span is not None
                assert not changed[y] or span[0] <= row <= span[1]


def _one(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Graph | None:
    attrs = {"padding": (padding, 0), "output_padding": (0, 0), "dilation": (dilation, 1), "groups": 1}
    graph = Graph(["x"], ["y"])
    graph.types = {"x": TensorType((1, 1, size, 1)), "w": TensorType((1, 1, kernel, 1)), "b": TensorType((1,))}
    graph.nodes = [Node("conv_transpose2d", ("x", "w", "b"), "y", {**attrs, "stride": (stride, 1)})]
    try:
        shape, _ = OPS["conv_transpose2d"].check(tuple(graph.types.values()), graph.nodes[0].attrs)
    except GraphError:
        return None
    graph.types["y"] = TensorType(shape)
    return graph
