"""Masks that are inputs of a network: bools given as bools, and attention in which they leave elements out, in int8."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.importer.importer import import_float
from q8ta_wgpu.ir.graph import INT8X4, INT16X4
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.plan.masks import gather_masks
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.attention_graphs import masked_softmax
from tests.quantizing import INT8, Plain

LOW = torch.finfo(torch.float32).min
CAUSAL = torch.ones(11, 11).tril()
BIAS = torch.randn(2, 11, 11, generator=torch.Generator().manual_seed(2))

FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda s, m: s.masked_fill(~m, float("-inf")),
    "where": lambda s, m: torch.where(m, s, LOW),
    "two in a row": lambda s, m: s.masked_fill(CAUSAL == 0, float("-inf")).masked_fill(m == 0, -1e9),
    "causal sum, then padding": lambda s, m: (s + torch.log(CAUSAL)).masked_fill(~m, float("-inf")),
    "bools combined": lambda s, m: s.masked_fill(~(CAUSAL.bool() & m), float("-inf")),
    "two that are given": lambda s, m: s.masked_fill(~m, LOW) + torch.where(m.roll(1, 3) | m, 0.0, -1e4),
    "extended": lambda s, m: s + (1.0 - m.float()) * LOW,
    "extended and causal": lambda s, m: s + (1.0 - m * CAUSAL) * -10000.0,
    "difference": lambda s, m: s - torch.where(m, 0.0, 1e4),
    "with a bias": lambda s, m: s + (BIAS + (1.0 - m.float()) * LOW),
    "inverted": lambda s, m: s + (1.0 - m.float()).masked_fill(~m, LOW),
    "moved": lambda s, m: (s.flatten(0, 1) + ((1.0 - m.float()) * LOW).expand(3, 2, 1, 11).flatten(0, 1)).view(s.shape),
}
"""Scores of (3, 2, 11, 11) and bools of (3, 1, 1, 11): what softmax reads, as people write it."""


class Masked(nn.Module):
    """Attention to the tokens that a mask names, with the mask written in one way or in all."""

    def __init__(self, forms: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.qkv, self.forms = nn.Linear(16, 48), forms

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        mask = mask[:, None, None, :]
        if not self.forms:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-2, -1) / 8**0.5
        return {form: FORMS[form](scores, mask).softmax(-1) @ v for form in self.forms}


class Added(nn.Module):
    """A softmax of scores to which a choice is added: one that is 0 for some of the elements it takes, one that is
    larger than the bools by which it is made, and moved, or one behind which zeros are put."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear, self.form = nn.Linear(16, 11), form
        values = {"partial": torch.tensor([0.0, -3.0] * 5 + [0.0]), "moved": torch.zeros(11, 11)}
        self.bias = nn.Parameter(values.get(form, torch.zeros(11)))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        choice = torch.where(mask[:, None], self.bias, float("-inf"))
        if self.form == "padded":
            choice = F.pad(choice[:, :, :8], (0, 3))
        scores = self.linear(x)[:, None]
        y: Tensor = (scores + (choice.view(3, 1, 11, 11) if self.form == "moved" else choice[:, None])).softmax(-1)
        return y


def example() -> tuple[Tensor, Tensor]:
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, 7:] = mask[1, 2::3] = False
    return torch.randn(3, 11, 16, generator=torch.Generator().manual_seed(0)), mask


@functools.cache
def quantized(forms: tuple[str, ...] = ()) -> tuple[nn.Module, q8.Model]:
    torch.manual_seed(1)
    module = Masked(forms).eval()
    return module, q8.compile(q8.quantize(module, example(), [example()], quantizer=INT8, progress=False))


@pytest.fixture(scope="module")
def written() -> tuple[q8.Model, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """All forms: the model, its results and torch's, and the results for other values of what is masked."""
    module, model = quantized(tuple(FORMS))
    x, mask = example()
    other = x.clone()
    other[0, 7:] = 100.0
    session = q8.Session(model, "reference")
    with torch.no_grad():
        return model, session(x, mask), module(x, mask), session(other, mask)


@pytest.mark.parametrize("form", FORMS)
def test_masked_attention_is_int8(form: str, written: Any) -> None:
    """However a mask is written: what is masked changes no byte of what is not, and no scale."""
    model, found, expected, changed = written
    assert model.report().exact
    assert {len(node.inputs) for node in model.graph.nodes if node.op == "q8ta_softmax"} == {3}
    assert np.abs(found[form] - expected[form].numpy()).max() < 0.04 * expected[form].abs().max()
    np.testing.assert_array_equal(changed[form][0, :, :7], found[form][0, :, :7])


@pytest.mark.parametrize("form", ["masked_fill", "where", "two that are given", "extended", "with a bias", "moved"])
def test_what_low_numbers_mask_as_a_whole_has_equal_shares(form: str, written: Any) -> None:
    """As in float32, where scores vanish beside such a number; torch has NaN for minus infinities, here zeros."""
    (x, mask), module = example(), quantized(tuple(FORMS))[0]
    mask[2] = False
    with torch.no_grad():
        expected = module(x, mask)[form][2]
        even = module.get_submodule("qkv")(x)[2, :, 32:].unflatten(-1, (2, 8)).mean(0)[:, None].expand_as(expected)
    found = torch.from_numpy(q8.Session(written[0], "reference")(x, mask)[form][2])
    assert (found - expected.nan_to_num(0)).abs().max() < 0.04 * even.abs().max(), form


def test_scores_of_16_bits_take_a_bias_beside_their_mask(vulkan: Device) -> None:
    """As T5's: none of them is float32."""
    torch.manual_seed(1)
    module, given = Masked(("with a bias",)).eval(), example()
    quantizer = q8.Quantizer(precision="int16")
    model = q8.compile(q8.quantize(module, given, [given], quantizer=quantizer, progress=False))
    assert "q8ta_softmax" in {node.op for node in model.graph.nodes}
    assert not {"add", "where", "softmax"} & set(model.report().float32)
    found, expected = q8.Session(model, "reference")(*given)["with a bias"], module(*given)["with a bias"].detach()
    assert np.abs(found - expected.numpy()).max() < 0.01 * expected.abs().max()
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(*given)["with a bias"], found)


class Decoder(nn.Module):
    """torch's decoder: a causal mask and padding in its own attention, padding in the one to its memory."""

    causal: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2, 24, batch_first=True), 1)
        self.register_buffer("causal", torch.ones(11, 11, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        masks = {"tgt_key_padding_mask": ~mask, "memory_key_padding_mask": ~mask[:, :9]}
        y: Tensor = self.layers(x, x.flip(2)[:, :9], tgt_mask=self.causal, **masks)
        return y


def test_a_decoder_of_torch() -> None:
    """No part of it is float32; reference, simulation and the module agree."""
    torch.manual_seed(0)
    module, (x, mask) = Decoder().eval(), example()
    program = q8.quantize(module, (x, mask), [(x, mask)], quantizer=INT8, progress=False)
    model = q8.compile(program)
    assert model.report().exact
    assert [len(node.inputs) for node in model.graph.nodes if node.op == "q8ta_attention"] == [6, 6]
    found = q8.Session(model, "reference")(x, mask)
    for expected in (program.module()(x, mask), module(x, mask)):
        assert np.abs(found - expected.detach().numpy()).max() < 0.05 * np.abs(found).max()


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "torch's attention": Masked,
    "torch's attention with a sum": lambda: Plain(
        lambda s, x, m: s.linear(F.scaled_dot_product_attention(x, x, x, torch.where(m, 0.0, -torch.inf)[:, None])),
        linear=nn.Linear(16, 16),
    ),
    "torch's encoder": lambda: Plain(
        lambda s, x, m: s.layer(x, src_key_padding_mask=~m),
        layer=nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_row_that_is_masked_as_a_whole_is_calibrated_as_it_runs(name: str) -> None:
    """torch's attention gives zeros for it. (Its softmax gives NaN, of which there is no range.)"""
    torch.manual_seed(1)
    module, (x, mask) = WHOLE[name]().eval(), example()
    mask[2] = False
    program = q8.quantize(module, (x, mask), [(x, mask)] * 2, progress=False)
    (output,) = (layer for layer in q8.compare(module, program, (x, mask)).layers if layer.output)
    assert output.snr > 30
    found = torch.from_numpy(q8.Session(q8.compile(program), "reference")(x, mask))
    expected = module(x, mask).detach()
    assert found.isfinite().all()
    assert (found - expected.where(expected.isfinite(), found)).abs().max() < 0.05 * found.abs().max()


def test_a_mask_of_numbers_says_what_to_give() -> None:
    """Their softmax is float32, as any number may be among them."""

    class Added(Masked):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y: Tensor = super().forward(x, (1.0 - mask) * LOW)
            return y

    x, mask = example()
    model = q8.compile(
        q8.quantize(Added().eval(), (x, mask.float()), [(x, mask.float())], quantizer=INT8, progress=False)
    )
    assert "softmax stays in float32: numbers that are known when" in str(model.report())


@pytest.mark.parametrize("form", ["partial", "moved", "padded"])
def test_a_choice_that_is_no_mask_is_added(form: str) -> None:
    x, mask = example()
    module = Added(form).eval()
    model = q8.compile(q8.quantize(module, (x, mask), [(x, mask)], quantizer=INT8, progress=False))
    found = torch.from_numpy(q8.Session(model, "reference")(x, mask))
    assert (found - module(x, mask)).abs().max() < 0.04


LOWS = torch.tensor([[-100.0, -1e9, -1e9], [0.0, -100.0, -1e9], [0.0, 0.0, -100.0]])
"""Of the first row what is least low takes part."""

FAINT = torch.tensor([[0.0, 0.0, 0.0], [-60.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
LARGE = torch.tensor([1.0, 1.0, 100.0])
"""Where -60 masks, and where it would not."""

GATHERED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "constant": lambda s, m: s + LOWS,
    "of several numbers": lambda s, m: s.abs() * LARGE + torch.where(m, 0.0, -1e9) + FAINT,
    "a part of what it widens": lambda s, m: (s[0] + torch.where(m, 0.0, -1e9))[:, 0],
    "a view of what it widens": lambda s, m: (s[:1] + torch.where(m, 0.0, -1e9)).reshape(6, 3, 3),
}
"""Scores of (2, 3, 3, 3) and bools as many."""


@pytest.mark.parametrize("form", GATHERED)
def test_gathered_masks_mask_what_they_did(form: str) -> None:
    """In float32: the shapes that sums widen, rows of nothing but low numbers, masks of different ones."""
    scores = torch.randn(2, 3, 3, 3, generator=torch.Generator().manual_seed(3)) * 2
    mask = torch.ones(3, 3, dtype=torch.bool).tril().expand(2, 3, 3, 3).contiguous()
    module = Plain(lambda _, s, m: GATHERED[form](s, m).softmax(-1)).eval()
    graph = import_float(Traceable(module, (scores, mask)).graph()).graph
    gather_masks(graph)
    arrays = (scores.numpy(), mask.numpy().astype(np.int8))
    found = reference.run(graph, dict(zip(graph.inputs, arrays, strict=True)))[graph.outputs[0]]
    torch.testing.assert_close(torch.from_numpy(found), module(scores, mask))


def test_bools_on_devices_and_in_files(device: Device, tmp_path: Path) -> None:
    """The reference's bytes; a row without a key is zeros, as torch has it. Files keep what an input is given as."""
    module, model = quantized()
    x, mask = example()
    mask[2] = False
    expected = q8.Session(model, "reference")(x, mask)
    assert (expected[2] == 0).all()
    assert not module(x, mask)[2].any()
    model.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    assert "mask bool[3, 11]" in repr(loaded)
    with q8.Session(loaded, device) as session:
        np.testing.assert_array_equal(session(x, mask=mask.numpy()), expected)
    with pytest.raises(InputError, match=r"input 'mask' must be bool, found float32: write mask.astype\(bool\)"):
        session(x, mask.float())


@pytest.mark.parametrize(
    ("shape", "masked", "dtype"),
    [((2, 3, 5, 7), (2, 1, 1, 7), INT8X4), ((6, 5, 18), (1, 5, 1), INT8X4), ((2, 3, 5, 7), (2, 1, 5, 7), INT16X4)],
)
def test_masked_rows(shape: tuple[int, ...], masked: tuple[int, ...], dtype: str, device: Device) -> None:
    """Kernels and layouts, masks that repeat along any dimension: the reference's bytes. What is masked is 0, but for
    equal shares in rows of nothing else where they are asked for."""
    even = masked[-1] > 1
    graph, inputs = masked_softmax(shape, masked, even, dtype)
    (result,) = graph.outputs
    expected, whole = reference.run(graph, inputs)[result], np.broadcast_to(inputs["mask"], shape)
    left = whole.any(-1, keepdims=True)
    q = graph.types[result].q
    assert q is not None
    shares = (expected[~left.repeat(shape[-1], -1)] - float(q.zero)) * q.scale
    assert (expected[(whole == 0) & (left | (not even))] == q.zero).all()
    assert np.abs(shares - (1 / shape[-1] if even else 0)).max() <= q.scale
    assert (expected[whole == 1] > q.zero).any()
    for name, plan in list(harness.plans(graph, 0))[::2]:
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        np.testing.assert_array_equal(found, expected, err_msg=name)
