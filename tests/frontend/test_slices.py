"""Parts of a weighted sum, as queries, keys and values of one linear are: a scale for each, one tensor for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.frontend.pt2e.annotations import Annotations
from q8ta_wgpu.ir.graph import INT16X4
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.passes.plan import storage
from q8ta_wgpu.passes.plan.slices import slices_of
from q8ta_wgpu.passes.rewriter import Rewriter
from testbed.pt2e import by_torchao
from tests import simulation
from tests.quantizing import INT8, Plain, data

SIZES = (1.0, 0.1, 10.0)
"""Of queries, keys and values beside each other."""


def joint(outputs: int, sizes: tuple[float, ...] = SIZES, offset: float = 0.0) -> nn.Linear:
    """A linear whose outputs are of several sizes, in blocks."""
    linear = nn.Linear(16, outputs)
    with torch.no_grad():
        for rows, bias, size in zip(linear.weight.chunk(len(sizes)), linear.bias.chunk(len(sizes)), sizes, strict=True):
            rows *= size
            bias.copy_((bias + offset) * size)
    return linear


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def stacked(x: Tensor) -> Tensor:
    return attention(*x.reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0))


def indexed(x: Tensor) -> Tensor:
    x = torch.unflatten(x, -1, (3, 2, 8)).transpose(1, 3)
    return attention(x[:, :, 0], x[:, :, 1], x[:, :, 2])


def chunked(x: Tensor) -> Tensor:
    return attention(*x.chunk(3, -1))


def uneven(x: Tensor) -> Tensor:
    q, k, v = torch.split(x, [16, 16, 16], 2)
    return attention(q, k, v[..., 4:])


def normalized(x: Tensor) -> Tensor:
    """Repeats a norm as `expand_as` does, which names a part that it does not read."""
    q, k, v = x.chunk(3, -1)
    return attention(F.normalize(q, dim=-1), F.normalize(k, dim=-1), v)


def gated(x: Tensor) -> Tensor:
    """Of two parts, one of them a gate, and none a factor of a product."""
    gate, value = x[..., :16], x[..., 16:]
    return torch.sigmoid(gate) * value[..., :16]


def made(module: nn.Module, *shape: int, quantizer: Quantizer = INT8) -> q8.Model:
    """The int8 model of a module, whose values are those of torch's simulation to a step."""
    x = data(*shape)
    program = q8.quantize(module.eval(), (x,), [x], quantizer, progress=False)
    model = q8.compile(program)
    for c in simulation.compare(program, model, {model.graph.inputs[0]: x.numpy()}):
        assert c.holds, c
    assert model.report().islands == ()
    return model


def scales(model: q8.Model) -> list[float]:
    """Of what views alone say, in order."""
    nodes = {node.output: node for node in model.graph.nodes}
    found = []
    for node in model.graph.nodes:
        before, after = model.graph.types[node.inputs[0]].q, model.graph.types[node.output].q
        if node.op == "view" and before and before != after:
            assert nodes[node.inputs[0]].op != "quantize"
            found.append(after.scale if after else 0.0)
    return found


def test_queries_keys_and_values() -> None:
    """Multiplied by multipliers of their own, they are stored as one tensor, which moves take apart."""
    torch.manual_seed(0)
    model = made(Plain(lambda s, x: uneven(s.qkv(x)), qkv=joint(48)), 2, 7, 16)
    assert [node.op for node in model.graph.nodes].count("q8ta_linear") == 1
    assert "q8ta_table" not in {node.op for node in model.graph.nodes}
    q, k, v = scales(model)
    assert k < 0.3 * q < 0.03 * v


def test_queries_keys_and_values_in_16_bits() -> None:
    torch.manual_seed(0)
    module = Plain(lambda s, x: stacked(s.qkv(x)), qkv=joint(48))
    model = made(module, 2, 7, 16, quantizer=Quantizer(precision="int16"))
    (linear,) = (node for node in model.graph.nodes if node.op.endswith("_linear"))
    assert model.graph.types[linear.output].dtype == INT16X4
    q, k, v = scales(model)
    assert k < 0.3 * q < 0.03 * v


def test_what_is_moved_further_is_read_as_the_part_is() -> None:
    """No table stands between a part and what reads pieces of it, its maxima or its products with a constant."""

    def forward(s: Any, x: Tensor) -> object:
        q, k, v = s.qkv(x).chunk(3, -1)
        first, second = k.split(8, -1)
        return s.a(first) * s.b(second) + F.max_pool1d(v, 4) @ s.table + s.a(q[..., :8])

    torch.manual_seed(0)
    module = Plain(forward, qkv=joint(48), a=nn.Linear(8, 4), b=nn.Linear(8, 4))
    module.register_buffer("table", torch.randn(4, 4))
    assert "q8ta_table" not in {node.op for node in made(module, 2, 7, 16).graph.nodes}


def test_channels_of_a_convolution() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 8, 1)
    with torch.no_grad():
        conv.weight[4:] *= 20
    model = made(Plain(lambda s, x: F.silu((y := s.a(x).chunk(2, 1))[0]) * y[1], a=conv), 2, 3, 5, 5)
    assert len(scales(model)) == 2


def test_a_convolution_that_is_seen_as_matrices() -> None:
    """As resizing by products sees it."""
    torch.manual_seed(0)
    module = Plain(
        lambda s, x: s.b(F.interpolate(s.a(x), (3, 5), mode="bicubic")), a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 2, 1)
    )
    made(module, 2, 3, 6, 6)


class Affine(Quantizer):
    """Our quantizer, but that slices of a sum have a zero point each."""

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Writes annotations."""
        annotations = Annotations(model)
        given = annotations.activation
        annotations.activation = lambda kind: given(storage.INT8 if kind == storage.SLICE else kind)
        annotations.write()
        return model


def test_an_attention_reads_parts_of_other_zero_points() -> None:
    """Other quantizers give each part one; what reads all of them in place knows one zero point for a tensor."""
    torch.manual_seed(0)
    affine = Affine(precision="int8")
    module = Plain(
        lambda s, x: s.out(stacked(s.qkv(x)).transpose(1, 2).flatten(2)),
        qkv=joint(48, offset=1.0),
        out=nn.Linear(16, 5),
    )
    model = q8.compile(by_torchao(module.eval(), [(data(2, 8, 16),)], affine))
    zeros = {
        model.graph.types[name].q for node in model.graph.nodes if node.op == "q8ta_attention" for name in node.inputs
    }
    assert len({q.zero for q in zeros if q}) > 2
    x = {model.graph.inputs[0]: data(2, 8, 16).numpy()}
    lowered = lower(model.graph, BASELINE)
    assert "q8ta_attention" in {node.op for node in lowered.nodes}
    (found,), (expected,) = (reference.run(graph, x).values() for graph in (lowered, model.graph))
    np.testing.assert_array_equal(found, expected)


def apart(function: Callable[..., object]) -> int:
    """How many slices a linear's result is taken apart into."""
    x = data(2, 7, 16)
    module = Plain(lambda s, x: function(s.qkv(x)), qkv=joint(48)).eval()
    graph = Traceable(module, (x,)).graph()
    Quantizer(precision="int8").transform_for_annotation(graph)
    imported = import_float(graph).graph
    (linear,) = (node for node in imported.nodes if node.op == "linear")
    return len(slices_of(Rewriter(imported), linear))


def test_forms() -> None:
    assert [apart(form) for form in (stacked, indexed, chunked, uneven, normalized, gated)] == [3, 3, 3, 3, 3, 2]


def test_what_is_joined_read_whole_or_shared_has_one_scale() -> None:
    for form in (
        lambda y: torch.cat(y.chunk(3, -1)[::-1], -1) + 1,
        lambda y: torch.cat([part.transpose(1, 2) for part in y.chunk(3, -1)], 1) + 1,
        lambda y: y[..., :20].relu() - y[..., 19:39].sigmoid(),
        lambda y: y[:, :1].relu() - y[:, 1:].sigmoid(),
        lambda y: y[..., :24].relu() - y.sigmoid()[..., 24:],
        lambda y: y.transpose(1, 2)[:, :8].relu() - F.pad(y, (0, 2))[..., 42:].transpose(1, 2),
        lambda y: (y[..., :24].relu(), y),
        lambda y: y[..., :24].relu(),
    ):
        assert apart(form) == 0


class ManyWrites(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y, sums = torch.zeros(2, 30), x.sum(1)
        for i in range(30):
            y[:, i] = sums * (i + 1)
        return y


def test_many_slices_are_written_in_a_row() -> None:
    """quantize asked in which role a value is read once for each of 2^30 ways through these writes."""
    x = torch.randn(2, 8)
    exported = q8.quantize(ManyWrites().eval(), (x,), calibration=[x], progress=False)
    found = q8.Session(q8.compile(exported), device="reference")(x.numpy())
    expected = ManyWrites()(x).numpy()
    assert abs(found - expected).max() < 0.02 * abs(expected).max()
