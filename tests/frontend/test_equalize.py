"""Channels are made of like size, and the float network stays the same function."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate.equalize import enough, equalize
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.quantization.tuned import EQUALIZED_BY, FEW
from testbed.noise import decibels
from tests.quantizing import INT8, Plain, data


def unequal(module: nn.Module) -> nn.Module:
    """A module whose channels are of very different sizes."""
    torch.manual_seed(0)
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear | nn.LayerNorm | nn.BatchNorm2d):
            factor = torch.logspace(-1, 1, len(layer.weight)).reshape(-1, *[1] * (layer.weight.dim() - 1))
            layer.weight = nn.Parameter(layer.weight.detach() * factor)
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean, layer.running_var = data(layer.num_features), data(layer.num_features) ** 2 + 0.5
    return module.eval()


def images() -> nn.Module:
    """Every way by which the channels of an image are read, and one, of `e`, that they are not followed on."""

    def forward(s: Any, x: Tensor) -> object:
        y = s.slopes(s.a(x))
        y = torch.cat([F.max_pool2d(F.relu(s.b(y)), 2), F.avg_pool2d(s.c(y), 2)], 1)
        y = s.d(y.flip(3))
        y = s.f(F.hardswish(s.e(y)))
        return s.g(torch.cat([y.mean((2, 3)), F.leaky_relu(y).flatten(2).mean(2)], 1))

    return Plain(
        forward,
        a=nn.Conv2d(2, 8, 3, padding=1),
        slopes=nn.PReLU(8),
        b=nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False),
        c=nn.BatchNorm2d(8),
        d=nn.Conv2d(16, 6, 1),
        e=nn.ConvTranspose2d(6, 4, 2, 2, groups=2),
        f=nn.Conv2d(4, 5, 3, padding=1, bias=False),
        g=nn.Linear(10, 3),
    )


def tokens() -> nn.Module:
    """A transformer's block, whose keys, values and norms are read by products and rows."""

    def forward(s: Any, x: Tensor) -> object:
        q, k, v = s.qkv(s.norm(x)).reshape(-1, 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 5, 8)
        return s.head(s.last(x + s.out(y)).mean(1))

    parts = {"qkv": nn.Linear(8, 24), "out": nn.Linear(8, 8, bias=False), "head": nn.Linear(8, 3)}
    return Plain(forward, norm=nn.LayerNorm(8), last=nn.LayerNorm(8), **parts)


def equalized(module: nn.Module, x: Tensor) -> tuple[GraphModule, set[str]]:
    """A module's float graph, as a quantizer sees it, and the names of the nodes whose channels were changed."""
    graph = Traceable(module, (x,)).graph()
    graph = q8.Quantizer().transform_for_annotation(graph)
    equalize(graph, [(x,)])
    graph.recompile()
    return graph, {node.name for node in graph.graph.nodes if "q8ta_channels" in node.meta.get("custom", {})}


def test_the_function_stays_the_same() -> None:
    with torch.no_grad():
        for module, x, changed in (
            (images(), data(2 * FEW, 2, 8, 8), {"conv2d", "conv2d_1", "batch_norm", "conv2d_2", "conv2d_3"}),
            (tokens(), data(2 * FEW, 5, 8), {"layer_norm", "linear", "layer_norm_1"}),
        ):
            graph, found = equalized(unequal(module), x)
            assert found >= changed, found
            assert not any("transpose" in name for name in found)  # read by what is no multiple of its channels
            torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-4)


def test_a_few_inputs_say_nothing() -> None:
    x = data(EQUALIZED_BY - 1, 2, 8, 8)
    with torch.no_grad():
        assert not equalized(unequal(images()), x)[1]
    graph = Traceable(images().eval(), (x,)).graph()
    items = iter([(x,)] * 4)
    assert [len(enough(graph, items)), len(list(items))] == [2, 2]  # what is not held is left to calibration
    rows = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Flatten(0)).eval()  # its first dimension is no batch
    assert not equalized(rows, data(2 * FEW, 8))[1]


def test_unequal_channels_keep_what_one_scale_would_lose() -> None:
    """And what compare makes of it, from a file too: it knows what was done to channels."""
    torch.manual_seed(0)
    first, second = nn.Conv2d(2, 16, 3, padding=1, bias=False), nn.Conv2d(16, 4, 3, padding=1)
    module = nn.Sequential(first, nn.ReLU(), second).eval()
    factor = torch.logspace(-1.5, 0, 16)[:, None, None, None]
    first.weight = nn.Parameter(first.weight * factor)
    second.weight = nn.Parameter(second.weight / factor.transpose(0, 1))
    x, batches = data(32, 2, 8, 8), [data(32, 2, 8, 8, seed=seed) for seed in range(EQUALIZED_BY // 32)]
    found = []
    for count in (len(batches), len(batches) - 1):
        file = io.BytesIO()
        torch.export.save(q8.quantize(module, (x,), batches[:count], progress=False), file)
        file.seek(0)
        program = torch.export.load(file)
        layers_of = {layer.module: layer.snr for layer in q8.compare(module, program, (x,)).layers}
        with torch.no_grad():
            wanted = module(x).numpy()
        lost = np.square(q8.Session(q8.compile(program), "reference")(x) - wanted).mean()
        assert layers_of["2"] == pytest.approx(10 * np.log10(np.square(wanted).mean() / lost), abs=1.0)
        found.append((layers_of["1"], layers_of["2"]))
    (hidden, result), (hidden_before, result_before) = found
    assert hidden > hidden_before + 3, found
    assert result > result_before + 3, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_weights_of_whole_steps_stay_as_they_are(dtype: torch.dtype) -> None:
    """As training with rounded weights leaves them, also where float16 stored them. Half a step beside is rounded."""
    steps = torch.randint(-127, 128, (6, 8), generator=torch.Generator().manual_seed(0)).float()
    steps[:, 3] = 127
    layer, x = nn.Linear(8, 6), data(2 * FEW, 8)
    module = nn.Sequential(unequal(nn.LayerNorm(8)), layer).eval()
    with torch.no_grad():
        layer.weight.copy_((steps * torch.linspace(0.001, 0.02, 6)[:, None]).to(dtype))
        assert not equalized(module, x)[1]
        model = q8.compile(q8.quantize(module, (x,), [x], progress=False))
        assert any(np.array_equal(array, steps) for array in model.graph.constants.values() if array.dtype == np.int8)
        layer.weight[0, 0] += 0.0005
        assert equalized(module, x)[1] == {"layer_norm"}


@pytest.mark.parametrize("weighted", [lambda s: s.softmax(1), lambda s: s.log_softmax(-1)], ids=["columns", "logs"])
def test_values_keep_their_middle_where_rows_are_no_shares(weighted: Callable[[Tensor], Tensor]) -> None:
    module = Plain(
        lambda s, x: s.out(weighted(s.scores(x)) @ s.values(x)),
        scores=nn.Linear(8, 5),
        values=nn.Linear(8, 8),
        out=nn.Linear(8, 3),
    )
    x = data(2 * FEW, 5, 8)
    with torch.no_grad():
        graph, found = equalized(unequal(module), x)
        assert "linear_1" in found
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-4)


def test_rows_masked_as_a_whole_are_not_centred() -> None:
    """int8 gives zeros there, and so does torch."""
    module = Plain(
        lambda s, x, mask: s.out(F.scaled_dot_product_attention(s.q(x), s.k(x), s.v(x), attn_mask=mask)),
        **{name: nn.Linear(8, 8) for name in ("q", "k", "v", "out")},
    ).eval()
    with torch.no_grad():
        module.get_parameter("v.bias").add_(20.0)
        x, mask = data(2 * FEW, 5, 8), torch.ones(2 * FEW, 5, 5, dtype=torch.bool)
        mask[1] = False
        exported = q8.quantize(module, (x, mask), [(x, mask)], progress=False)
        y = q8.Session(q8.compile(exported), "reference")(x, mask)
        wanted = module(x, mask).numpy()
        assert np.square(y - wanted).sum() < 1e-3 * np.square(wanted).sum()


def test_many_channels_are_told_apart() -> None:
    """Numbers beyond 160 and their neighbours are alike to a float's relative tolerance."""
    module = Plain(lambda s, x: s.out(F.avg_pool1d(s.a(x)[:, :, 512:], 2)), a=nn.Linear(4, 1024), out=nn.Linear(256, 3))
    x = data(2 * FEW, 2, 4)
    with torch.no_grad():
        graph, _ = equalized(unequal(module), x)
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-4)


def test_norms_without_weights_and_vectors_are_followed_or_left() -> None:
    plain = nn.Sequential(nn.BatchNorm2d(3, affine=False), nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    vector = Plain(lambda s, x: torch.matmul(s.m.weight, s.a(x)[0]), a=nn.Linear(4, 4), m=nn.Linear(4, 3)).eval()
    with torch.no_grad():
        for module, x in ((plain, data(2 * FEW, 3, 4, 4)), (vector, data(1, 4))):
            q8.quantize(module, (x,), [x] * (1 if len(x) > 1 else 2 * FEW), progress=False)


def test_a_loader_may_use_its_memory_again() -> None:
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    fresh = [data(64, 2, 8, 8), 0.01 * data(64, 2, 8, 8, seed=1)]
    buffer = torch.empty(64, 2, 8, 8)

    def again() -> Iterator[Tensor]:
        for item in fresh:
            yield buffer.copy_(item)

    programs = [q8.quantize(module, (fresh[0],), items, INT8, progress=False) for items in (fresh, again())]
    first, second = (q8.Session(q8.compile(program), "reference")(fresh[0]) for program in programs)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("rows", [128, 192, 1024])
def test_columns_of_few_rows_are_not_equalized(rows: int) -> None:
    """Other rows are larger in one column of a hundred: 13 dB were lost. Images have many values a channel."""
    torch.manual_seed(0)
    units = torch.arange(1.0, 17)
    module = nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 2)).eval()
    module[0].running_mean, module[0].running_var = 100 * units, units**2
    items = [units * (100 + data(rows // 8, 16, seed=s)) for s in range(8)]
    with torch.no_grad():
        others = torch.cat([units * (100 + data(16, 16, seed=s)) for s in range(100, 130)])
        wanted = module(others)
        plain, fitted = (
            q8.Session(q8.compile(q8.quantize(module, (items[0],), items, how, dynamic_batch=True)), "reference")
            for how in (q8.Quantizer(fit_weights=False), q8.Quantizer())
        )
    ratios = [decibels(wanted.numpy(), session(others.numpy())) or 0.0 for session in (plain, fitted)]
    assert ratios[1] > ratios[0] - 1, ratios
