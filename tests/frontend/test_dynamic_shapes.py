"""Inputs of any length, height and width: `quantize(dynamic_shapes=...)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import INT16X4
from q8ta_wgpu.ir.size import Size, fitted
from q8ta_wgpu.runtime.device import Device
from testbed.harness import flat
from testbed.noise import decibels
from tests.quantizing import Plain, conv, data

Shapes = tuple[tuple[int, ...], ...]


def _unet(self: Any, x: Tensor) -> Any:
    fine = F.relu(self.first(x))
    coarse = F.interpolate(F.relu(self.second(F.max_pool2d(fine, 2))), size=fine.shape[2:], mode="bilinear")
    return self.last(torch.cat([fine, coarse], 1))


def _heads(self: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = self.joint(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
    return q, k, v


def _rotated(self: Any, x: Tensor) -> Any:
    """Causal attention with rotary positions."""
    q, k, v = _heads(self, x)
    phases = torch.arange(x.shape[1])[:, None] * (10.0 ** -torch.arange(4))[None]

    def turned(z: Tensor) -> Tensor:
        a, b = z[..., :4], z[..., 4:]
        return torch.cat([a * phases.cos() - b * phases.sin(), a * phases.sin() + b * phases.cos()], -1)

    y = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
    return y.transpose(1, 2).reshape(x.shape)


def _relative(self: Any, x: Tensor) -> Any:
    """Attention with a bias by distance."""
    q, k, v = _heads(self, x)
    places = torch.arange(x.shape[1])
    bias = self.bias((places[:, None] - places[None]).clamp(-8, 8) + 8).permute(2, 0, 1)
    return ((q @ k.transpose(-1, -2) / 8**0.5 + bias).softmax(-1) @ v).transpose(1, 2).reshape(x.shape)


def _causal(self: Any, x: Tensor) -> Any:
    """Causal attention whose mask is made for each item of the batch, as transformers makes it."""
    q, k, v = _heads(self, x)
    places, items = torch.arange(x.shape[1]), torch.arange(x.shape[0])
    mask = (places[:, None] >= places[None]) & (items >= 0)[:, None, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


T = Dim("T", max=20)
ROWS: dict[str, tuple[Callable[[], nn.Module], Sequence[Tensor], Any, Sequence[Shapes]]] = {
    "height and width": (
        lambda: Plain(_unet, first=conv(3, 8), second=conv(8, 16), last=conv(24, 4)),
        (data(1, 3, 12, 16),),
        [{2: 2 * Dim("H", max=9), 3: 2 * Dim("W", max=12)}],
        [((1, 3, 18, 6),), ((1, 3, 8, 24),)],
    ),
    "time, strided": (
        lambda: Plain(
            lambda self, x: self.b(F.gelu(self.a(x))).mean(-1), a=nn.Conv1d(4, 8, 5, 2, 2), b=nn.Conv1d(8, 8, 3)
        ),
        (data(2, 4, 40),),
        [{2: 4 * Dim("L", max=16)}],
        [((2, 4, 64),), ((2, 4, 12),)],
    ),
    "lstm": (
        lambda: Plain(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(8, 16, batch_first=True)),
        (data(1, 12, 8),),
        [{1: T}],
        [((1, 5, 8),), ((1, 20, 8),)],
    ),
    "padding mask, with a batch": (
        lambda: Plain(lambda self, x, m: self.encoder(x, src_key_padding_mask=m), encoder=_encoder()),
        (data(2, 12, 32), data(2, 12) < -0.5),
        [{0: Dim("B", min=1, max=4), 1: T}] * 2,
        [((1, 7, 32), (1, 7)), ((3, 20, 32), (3, 20))],
    ),
    "rotary, causal": (
        lambda: Plain(_rotated, joint=nn.Linear(32, 96)),
        (data(1, 20, 32),),
        [{1: Dim("T")}],
        [((1, 7, 32),), ((1, 16, 32),)],
    ),
    "a mask for each item of the batch": (
        lambda: Plain(_causal, joint=nn.Linear(32, 96)),
        (data(2, 12, 32),),
        [{0: Dim("B", min=1, max=9), 1: Dim("T", max=12)}],
        [((5, 7, 32),), ((1, 12, 32),), ((9, 3, 32),)],
    ),
    "relative positions": (
        lambda: Plain(_relative, joint=nn.Linear(32, 96), bias=nn.Embedding(17, 4)),
        (data(1, 20, 32),),
        [{1: T}],
        [((1, 7, 32),), ((1, 13, 32),)],
    ),
    "a token of each item, as CLIP's text": (
        lambda: Plain(
            lambda self, x, m: self.linear(x)[torch.arange(x.shape[0]), m.long().argmax(1)], linear=nn.Linear(32, 8)
        ),
        (data(4, 12, 32), data(4, 12) < -0.5),
        [{0: Dim("B", min=1, max=4), 1: T}] * 2,
        [((1, 7, 32), (1, 7)), ((3, 20, 32), (3, 20))],
    ),
    "equal sizes, found": (
        lambda: Plain(lambda self, x, y: self.linear(x)[:, -1:] + y, linear=nn.Linear(8, 8)),
        (data(1, 10, 8), data(1, 10, 8)),
        [{1: Dim.AUTO}, {1: Dim.DYNAMIC}],
        [((1, 33, 8), (1, 33, 8))],
    ),
}


def like(example: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    found = data(*shape, seed=seed)
    return found < -0.8 if example.dtype == torch.bool else found


@pytest.mark.parametrize("name", ROWS)
def test_any_size_gives_what_the_module_gives(name: str, vulkan: Device, tmp_path: Path) -> None:
    """As near to float as at the example's size, the reference's bytes on a device, from a file, too, calibrated at any
    of the sizes."""
    make, example, dynamic, others = ROWS[name]
    torch.manual_seed(0)
    module = make().eval()
    sizes = [[x.shape for x in example], *others]
    items = [
        tuple(like(x, s, seed) for x, s in zip(example, sizes[seed % len(sizes)], strict=True)) for seed in range(6)
    ]
    program = q8.quantize(module, tuple(example), items, dynamic_shapes=dynamic, progress=False)
    q8.compile(program).save(tmp_path / "net.q8ta")
    model = q8.load(tmp_path / "net.q8ta")
    with q8.Session(model, vulkan) as session, q8.Session(model, "reference") as reference:
        for shapes in (tuple(tuple(x.shape) for x in example), *others):
            inputs = [like(x, shape, 9) for x, shape in zip(example, shapes, strict=True)]
            found, expected = session(*inputs), reference(*inputs)
            assert all(int((a != b).sum()) == 0 for a, b in zip(flat(found), flat(expected), strict=True))
            with torch.no_grad():
                exact = module(*inputs).numpy()
            assert (decibels(exact, expected) or 100) > 30, shapes


def test_a_table_is_calibrated_whole_by_shorter_items() -> None:
    """Its last rows are the largest, and no item reads them."""
    table = torch.linspace(0.1, 4, 20)[:, None].expand(20, 8).contiguous()
    module = Plain(lambda self, x: self.linear(x) + table[: x.shape[1]], linear=nn.Linear(8, 8)).eval()
    program = q8.quantize(module, (data(1, 20, 8),), [data(1, 5, 8)] * 2, dynamic_shapes=[{1: T}], progress=False)
    (stored,) = (t for t in q8.compile(program).graph.types.values() if t.shape == (20, 8))
    assert stored.q is not None and stored.q.scale * (2**15 - 1) > 4


@pytest.mark.parametrize("last", [0, 128])
def test_calibration_items_of_sizes_that_no_session_takes(last: int) -> None:
    """Those that are held until the module is traced and those behind them: a table ends at the example's size."""
    module = Plain(lambda self, x: self.linear(x) + self.table[: x.shape[1]], linear=nn.Linear(2, 2))
    module.register_buffer("table", data(6, 2))
    items = [data(1, 4, 2)] * last + [data(1, 7, 2)]
    wrong = rf"calibration item {last} has other sizes .*: dimension 1 of input 0 is n6 with n6 from 1 to 6, found 7\."
    with pytest.raises(q8.InputError, match=wrong):
        q8.quantize(module.eval(), (data(1, 6, 2),), items, dynamic_shapes=[{1: Dim.AUTO}], progress=False)


def test_a_model_of_any_size_is_saved_at_another_one(tmp_path: Path) -> None:
    """What it holds for larger sizes is kept; the program may be saved by torch before."""
    make, example, dynamic, _ = ROWS["rotary, causal"]
    module = make().eval()
    program = q8.quantize(module, tuple(example), [tuple(example)], dynamic_shapes=dynamic, progress=False)
    torch.export.save(program, tmp_path / "net.pt2")
    model = q8.compile(torch.export.load(tmp_path / "net.pt2"))
    model.reshape((1, 7, 32)).save(tmp_path / "net.q8ta")
    small = q8.load(tmp_path / "net.q8ta")
    assert "float32[1, T, 32]" in repr(small) and small.outputs[0].shape == (1, 7, 32)
    x = example[0].numpy()
    np.testing.assert_array_equal(q8.Session(small, "reference")(x), q8.Session(model, "reference")(x))


@pytest.mark.parametrize("dynamic", [[{1: T}], [[{1: T}]], ([[None, T, None]],)], ids=["flat", "nested", "lists"])
def test_sizes_of_a_module_of_any_number_of_inputs(dynamic: Any) -> None:
    """torch.export takes them as one entry, and a flat list is clear as well."""
    module, x = Plain(lambda self, x: self.linear(x).amax(1), linear=nn.Linear(8, 8)).eval(), data(1, 12, 8)
    model = q8.compile(q8.quantize(module, (x,), [x], dynamic_shapes=dynamic, progress=False))
    assert q8.Session(model, "reference")(data(1, 5, 8)).shape == (1, 8)


def test_a_bound_of_int16_products_is_that_of_the_largest_sizes() -> None:
    """The step of a sum of int16 products follows from its longest. The attention of these modules has such sums."""
    make, example, dynamic, _ = ROWS["padding mask, with a batch"]
    torch.manual_seed(0)
    program = q8.quantize(make().eval(), tuple(example), [tuple(example)], dynamic_shapes=dynamic, progress=False)
    larger, here = (q8.compile(program).reshape((1, size, 32), (1, size)) for size in (20, 12))
    steps = [[n.attrs["multiplier"] for n in m.graph.nodes if n.op == "q8ta_matmul"] for m in (larger, here)]
    assert steps[0] == steps[1]


def test_inputs_of_sizes_that_do_not_fit_are_named() -> None:
    make, example, dynamic, _ = ROWS["padding mask, with a batch"]
    torch.manual_seed(0)
    program = q8.quantize(make().eval(), tuple(example), [tuple(example)], dynamic_shapes=dynamic, progress=False)
    with q8.Session(q8.compile(program), "reference") as session:
        for x, mask, why in (
            ((1, 21, 32), (1, 21), "T from 1 to 20, found 21"),
            ((1, 9, 32), (1, 8), "T is 9 elsewhere, found 8"),
            ((1, 9, 31), (1, 9), r"must have shape \(B, T, 32\)"),
        ):
            with pytest.raises(q8.InputError, match=why):
                session(np.zeros(x, np.float32), np.zeros(mask, bool))
    with pytest.raises(q8.InputError, match="dynamic_shapes is not for dynamic_batch"):
        q8.quantize(make().eval(), tuple(example), [], dynamic_shapes=dynamic, dynamic_batch=True)


@pytest.mark.parametrize("dynamic", [True, False], ids=["any size", "reshaped"])
def test_norms_of_groups_of_any_size(dynamic: bool, vulkan: Device) -> None:
    """How many bits a normalized number has for an int16 result follows from the size."""
    torch.manual_seed(0)
    module = Plain(lambda self, x: self.b(self.norm(self.a(x))), a=conv(8, 8), norm=nn.GroupNorm(2, 8), b=conv(8, 8))
    items = [(data(1, 8, 32, 6, seed=seed),) for seed in range(4)]
    sizes = [{2: Dim("H", min=3, max=32)}] if dynamic else None
    program = q8.quantize(module.eval(), items[0], items, q8.Quantizer(precision="int16"), dynamic_shapes=sizes)
    model = q8.compile(program)
    norms = [node.output for node in model.graph.nodes if node.op == "q8ta_group_norm"]
    assert [model.graph.types[name].dtype for name in norms] == [INT16X4]
    for height in (32, 16, 5):
        x = data(1, 8, height, 6, seed=9)
        resized = model if dynamic else model.reshape(x.shape)
        found = q8.Session(resized, vulkan)(x)
        np.testing.assert_array_equal(found, q8.Session(resized, "reference")(x))
        with torch.no_grad():
            assert (decibels(module(x).numpy(), found) or 100) > 35, height


@pytest.mark.parametrize("batch", [2, 3])
def test_sizes_at_which_two_operators_are_the_same_are_not_traced(batch: int) -> None:
    """Of 2 or 3 tokens beside as many items, `ids % batch` and `ids % tokens` are one operator."""
    module = Plain(
        lambda self, ids: self.table(ids)[ids % ids.shape[0], ids % ids.shape[1]].mean(2), table=nn.Embedding(20, 16)
    ).eval()
    ids = torch.arange(4 * batch).reshape(batch, 4)
    dynamic = [{1: Dim("T", max=4)}]
    model = q8.compile(q8.quantize(module, (ids,), [(ids,)], dynamic_shapes=dynamic, progress=False))
    for tokens in (4, 3, 2):
        found = q8.Session(model, "reference")(ids[:, :tokens])
        with torch.no_grad():
            np.testing.assert_allclose(found, module(ids[:, :tokens]), atol=0.05)


def test_sizes_are_sums_of_products() -> None:
    points = [{"a": a, "b": b} for a, b in ((3, 4), (2, 4), (3, 7), (2, 7), (5, 5))]
    size = fitted(points, [2 * p["a"] * p["b"] - p["a"] + 6 for p in points])
    assert isinstance(size, Size) and size == 27 and size.at({"a": 10, "b": 1}) == 16
    assert fitted(points, [p["a"] // 2 for p in points]) is None and fitted(points, [4] * 5) == 4
