"""Operators that become others of the table when a program is imported: what torch computes, by the reference.

All of them are one program, since exporting takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.importing import Wrapped, flat, imported
from tests.quantizing import Plain, data

BOUNDS = torch.tensor([-1.0, 0.0, 0.5])
ROWS = torch.arange(2)
WINDOW = torch.hann_window(256)
W = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1))
V = torch.randn(2, 3, 3, 2, 4, generator=torch.Generator().manual_seed(2))


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[..., 1::2] = x[..., :-1:2]
    y[y > 1] = 0.25
    return y


def _spectrum(x: Tensor) -> Tensor:
    return torch.stft(x, 256, 64, window=WINDOW, return_complex=True)


def _bags(x: Tensor) -> Any:
    """Even ones, and others, of which one is empty and one holds nothing but padding."""
    ids = (x.flatten(1)[:, :12] * 4).long().clamp(0, 11)
    ids[0, 5:7] = 3
    offsets, table = torch.tensor([0, 5, 7, 7, 24]), V.reshape(12, 12)
    return [
        bags
        for mode in ("sum", "mean", "max")
        for pad in (None, 3, -1)
        for bags in (
            F.embedding_bag(ids, table, mode=mode, padding_idx=pad),
            F.embedding_bag(ids.flatten(), table, offsets[:-1], mode=mode, padding_idx=pad),
            F.embedding_bag(ids.flatten(), table, offsets, mode=mode, padding_idx=pad, include_last_offset=True),
        )
    ] + [F.embedding_bag(ids, table, mode="sum", per_sample_weights=x.flatten(1)[:, :12])]


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "bags": _bags,
    "any and all": lambda x: ((x > 1).any(), (x > 1).any(1), (x > -1).all(-1, keepdim=True), x.bool().all((0, 2))),
    "infinities": lambda x: (torch.isfinite(1 / x.relu()), torch.logsumexp(x, 1), torch.nan_to_num(x / x.relu())),
    "to a number": lambda x: (torch.maximum(x, torch.tensor(0.1)), torch.clamp(x, x[:, :1], x[:, 1:2].abs())),
    "rounded": lambda x: (torch.round(x, decimals=1), x // 0.75, torch.div(x, x.abs() + 1, rounding_mode="floor")),
    "remainders": lambda x: (x % 0.75, torch.fmod(x, -1.5), torch.remainder(x, x.abs() + 0.5)),
    "remainders of large numbers": lambda x: (torch.fmod(x * 1e6, 0.7), torch.remainder(x * 1e6, x.abs() + 0.5)),
    "powers": lambda x: (
        2.0**x,
        torch.exp2(x),
        x.abs().add(1).log2(),
        x.abs().add(1).log10(),
        F.logsigmoid(x),
        F.rrelu(x),
    ),
    "angles": lambda x: (torch.atan2(x, x.flip(1)), torch.atan2(x.relu(), x.flip(2).relu())),
    "distances": lambda x: (
        torch.cdist(x[0], x[1] + 1),
        torch.cdist(x, x[:, :, ::2], p=1.0),
        torch.cdist(x[0].flatten(0, 1).tile(2, 1), x[1].flatten(0, 1), p=3.0),
        torch.cdist(x.view(2, 30, 4), x.view(2, 30, 4)[:, :7] * 2),
    ),
    "norms": lambda x: (torch.linalg.vector_norm(x, 3, 1), torch.linalg.vector_norm(x.relu(), 0, (1, 2))),
    "two tensors": lambda x: (torch.fmod(x * 9, x.flip(1)), torch.hypot(x * 1e30, x.flip(2) * 1e30)),
    "products of two": lambda x: F.bilinear(x[..., :4], x[..., 1:], W, x[0, 0, 0, :3]),
    "sums by place": lambda x: (
        x.index_add(1, ROWS, x[:, 2:4], alpha=2),
        x.index_add(-1, x[0, 0, :, 0].argsort(), x[..., 2:]),
        x.scatter_add(2, x.argsort(2)[:, :, :3], x.flip(2)),
        torch.zeros_like(x, dtype=torch.int64).scatter_add(2, x.argsort(2)[:, :, :3], x.flip(2).argsort(2) + 7),
        torch.arange(7).index_add(0, x[0, 0].argsort(0)[:, 0], x[0, 0].argsort(0)[:, 1]),
    ),
    "extremes by place": lambda x: (
        x.scatter_reduce(2, x.argsort(2)[:, :, :3] // 2, x.flip(2), "amax"),
        x.scatter_reduce(1, x.argsort(1) // 2, x.flip(1) * 2, "amin"),
        torch.zeros_like(x).scatter_reduce(-1, x.argsort(-1)[..., :2], x - 5, "amax", include_self=False),
        torch.full_like(x, -torch.inf).scatter_reduce(2, x.argsort(2), x.flip(2), "amax"),
        x.scatter_reduce(2, x.argsort(2), x.flip(2), "sum"),
        torch.arange(7).scatter_reduce(0, x[0, 0].argsort(0)[:, 0], x[0, 0].argsort(0)[:, 1] + 3, "amax"),
    ),
    "other reductions by place": lambda x: tuple(
        part
        for own in (True, False)
        for part in (
            x.scatter_reduce(2, x.argsort(2)[:, :, :3] // 2, x.flip(2), "mean", include_self=own),
            x.scatter_reduce(1, x.argsort(1) // 2, x.flip(1), "prod", include_self=own),
            x.scatter_reduce(-1, x.argsort(-1)[..., :2], x - 5, "sum", include_self=own),
            torch.arange(7).scatter_reduce(
                0, x[0, 0].argsort(0)[:, 0] // 2, x[0, 0].argsort(0)[:, 1] - 2, "mean", include_self=own
            ),
            torch.arange(7).scatter_reduce(
                0, x[0, 0].argsort(0)[:, 0] // 2, x[0, 0].argsort(0)[:, 1] - 2, "prod", include_self=own
            ),
        )
    ),
    "volumes": lambda x: (
        F.adaptive_avg_pool3d(x, (2, 3, 4)),
        F.conv_transpose3d(
            x[None], V, stride=(2, 1, 3), padding=(1, 0, 2), output_padding=(1, 0, 1), dilation=(1, 2, 1)
        ),
    ),
    "antialiased": lambda x: (
        F.interpolate(x, (3, 11), mode="bilinear", antialias=True),
        F.interpolate(x, scale_factor=0.4, mode="bicubic", antialias=True),
        F.interpolate(x, (2, 5), mode="bicubic", antialias=True, align_corners=True),
    ),
    "spread": lambda x: (x.var(1), x.std((2, 3), unbiased=False), torch.var_mean(x, (0, 2), keepdim=True)),
    "order": lambda x: (x.median(1), x.median(), x.kthvalue(2, -1, keepdim=True)),
    "running": lambda x: (x.cumprod(1), x.prod(), x.prod(2), x.prod(-1, keepdim=True)),
    "diagonals": lambda x: (x.diagonal(1, 2, 3), x.diagonal(-1, 1, 3), x[0, 0].trace()),
    "written": _written,
    "deep windows": lambda x: (
        F.local_response_norm(x, 3),
        F.max_pool3d(x, (2, 3, 2), padding=1),
        F.avg_pool3d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    ),
    "windows added up": lambda x: (
        F.fold(x.flatten().tile(5)[:1024].view(1, 256, 4), (32, 32), (16, 16), stride=16),
        torch.istft(_spectrum(x.flatten().tile(20)), 256, 64, window=WINDOW),
    ),
    "places": lambda x: (
        F.one_hot(x.argmax(1), 5),
        torch.zeros_like(x).scatter(1, x.topk(2, 1).indices, 1.0),
        torch.zeros_like(x).scatter(3, x.argsort(3), x),
        torch.bucketize(x, BOUNDS),
        torch.bucketize(x, BOUNDS, right=True),
        torch.searchsorted(x.sort(3)[0], x[..., :2].contiguous(), side="right"),
    ),
    "places in memory": lambda x: (
        x.as_strided((2, 4, 5), (120, 1, 6), 2),
        x.as_strided((40, 6), (6, 1)),
        x.as_strided((2, 110), (120, 1), 7),
        x.permute(0, 2, 3, 1).as_strided((3, 4, 6), (24, 6, 1), 48),
        x[0, 0].as_strided((3, 2, 6), (6, 6, 1)),
        F.adaptive_avg_pool3d(x, 1),
    ),
    "indices": lambda x: (
        x[ROWS, x[:, :, 0, 0].argmax(1)],
        x[:, :, x[0, 0].argmax(0), -x[0, 1].argmin(0)],
        x[x[:, 0, 0].argmax(0) - 1, :, x[0, 0].argmax(0) - 3],
    ),
    "integers": lambda x: (
        (x.argmax(1) * 3 + 1) // 2,
        (x > 0).sum(1),
        x.argmax().float() * x,
        (x * 3).long(),
        x.int() % 3,
        (x * 3).floor().long() % 3 + 1,
        (x * 1e8).long() // 1001 > 7,
        ((x * 1e6).long() * 1001).float(),
        ((x * 1e6).long() + 1).clamp(0, 9) * 7 % 5,
        x.gather(1, (x * 0).long() + 1),
        x.clamp(-9, 9).long().cumsum(1) * 1001 % 7,
        x.sigmoid().gt(0.5).float().long() * 5 - 2,
        (x > 0).long().prod(1),
        x.argmax(1) @ x.argmax(1).mT,
        x.argmax(1) * 9_999_999 - (x > 0).sum() * 8_888_887,
        (x.argmax(1) * 9_999_999) % (x.argmin(1) * 7 + 1_000_003),
        (x.argmax(1) * 20).cumprod(1).amax(2),
        F.pad(x.argmax(1) * 9_999_999, (1, 2), value=16_777_217) > 16_777_216,
        (x * 1e8).clamp(-2e9, 2e9).long() // (x.argmax(1, keepdim=True) - 77),
    ),
}


@pytest.fixture(scope="module")
def found() -> tuple[Tensor, Any]:
    x = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(0))
    model = imported(lambda x: {name: function(x) for name, function in FUNCTIONS.items()}, x)
    return x, q8.Session(model, "reference")(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_computes_it(name: str, found: tuple[Tensor, Any]) -> None:
    """Values, and dtypes as the user sees them."""
    x, outputs = found
    for ours, theirs in zip(flat(outputs[name]), flat(FUNCTIONS[name](x)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("function", "reached"),
    [
        (lambda x: x.argmax(1) * 999_999_999, "3999999996, .* 2147483647"),
        (lambda x: (x > 0).sum() * 100_000_000, "24000000000, .* 2147483647"),
        (lambda x: (5 - x.argmax(3)).abs() << 29, "2684354560, .* 2147483647"),
        (lambda x: x.argmax(1) ** 13, "67108864, .* 16777216"),
        (lambda x: x.max(1).indices * 999_999_999, "3999999996, .* 2147483647"),
        (lambda x: (x.argmax(1) * 99).prod(1), "24591257856, .* 2147483647"),
        (lambda x: x.argmax(1) @ (x.argmax(1).mT * 1_000_000), "96000000, .* 16777216"),
        (lambda x: (x.argmax(1) * 99).cumprod(1), "24591257856, .* 2147483647"),
    ],
)
def test_integers_beyond_those_computed_with_are_refused(function: Callable[[Tensor], Tensor], reached: str) -> None:
    """They would be rounded or wrap: the most they may reach is named."""
    with pytest.raises(q8.UnsupportedError, match=rf"integers may reach {reached} here"):
        imported(function, torch.randn(2, 5, 4, 6))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.long() * 1001 % 7,
        lambda x: x.long() * 1001,
        lambda x: (x.long() // 3 + 1).flip(0),
        lambda x: x.long().sum(1),
        lambda x: x.long().cumsum(1).clamp(0, 9),
        lambda x: x.long() @ x.long().mT,
        lambda x: x.long() + 1 == x.flip(0).long(),
        lambda x: (x.long() + 1).clamp(min=0).where(x > 0, 1) * 2,
        lambda x: (x.clamp(-1e10, 1e10).long() * 3).argmax(1),
    ],
)
def test_integers_of_floats_without_a_bound_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    """A float that is made an integer keeps its 24 bits; what is computed of it does not, whatever calibration met."""
    with pytest.raises(q8.UnsupportedError, match=r"bound them where they are made, x.clamp\(-n, n\).long\(\)"):
        imported(function, torch.randn(2, 5, 4, 6))


def test_floats_that_are_added_up_as_integers_are_refused() -> None:
    """torch cuts them first."""
    with pytest.raises(q8.UnsupportedError, match=r"write x.clamp\(-n, n\).long\(\).cumsum\("):
        imported(lambda x: x.clamp(-9, 9).cumsum(1, dtype=torch.int64), torch.randn(2, 5))


def test_a_program_of_nothing_but_sums_by_place() -> None:
    """What is put in places without being added up is of the table."""
    places = torch.tensor([1, 0, 1])
    module = Wrapped(lambda x: (x * 2).index_put((places,), torch.cat([x[:1], x]), accumulate=True)).eval()
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    model = q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False))
    np.testing.assert_allclose(q8.Session(model, "reference")(x), module(x), atol=0.1)


@pytest.mark.parametrize("reduce", ["amax", "mean"])
def test_what_is_written_to_a_place_is_reduced_in_int8(reduce: str, vulkan: Device) -> None:
    """As the attention of a graph has it, by edges to 6 nodes, of which one is met by none."""
    targets = torch.tensor([0, 1, 1, 3, 4, 5, 5, 5, 0])

    def attention(m: Any, x: Tensor) -> Tensor:
        scores = m.scores(x).repeat(1, 2)[:, :9]
        reduced = m.first(x).scatter_reduce(1, targets.expand(scores.shape), scores, reduce)
        found: Tensor = m.last(reduced)
        return found

    torch.manual_seed(0)
    layers = {name: torch.nn.Linear(8, count) for name, count in (("scores", 8), ("first", 6))}
    module = Plain(attention, **layers, last=torch.nn.Linear(6, 3)).eval()
    batches = [data(16, 8, seed=s) for s in range(8)]
    model = q8.compile(q8.quantize(module, (batches[0],), batches, progress=False))
    assert model.report().exact
    found, wanted = q8.Session(model, "reference")(batches[0]), module(batches[0]).detach().numpy()
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
    np.testing.assert_array_equal(q8.Session(model, vulkan)(batches[0]), found)


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 8)])
def test_a_product_with_a_vector_is_a_layer(shape: tuple[int, ...]) -> None:
    """Of one output, whose weight is int8."""
    torch.manual_seed(0)
    vector = torch.nn.Parameter(torch.randn(8))
    module = Plain(lambda m, x: m.first(x) @ m.vector, first=torch.nn.Linear(8, 8))
    module.register_parameter("vector", vector)
    batches = [data(*shape, seed=s) for s in range(4)]
    program = q8.quantize(module.eval(), (batches[0],), batches, progress=False)
    model = q8.compile(program)
    report = model.report()
    assert not report.float32 and report.macs[0] == report.macs[1]
    found = q8.Session(model, "reference")(batches[0].numpy())
    np.testing.assert_allclose(found, module(batches[0]).detach().numpy(), atol=0.1)
