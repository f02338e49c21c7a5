"""Networks that take token numbers run whole, with tables of learned rows in int8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.runtime.device import Device

TOKENS = 50


class Encoder(nn.Module):
    """A small BERT: tokens, positions and a mask of padding; scores, and the best token of each place."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(TOKENS, 16, padding_idx=0), nn.Embedding(12, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, TOKENS)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        scores = self.head(self.layer(x, src_key_padding_mask=ids == 0))
        return scores, scores.argmax(-1)


class Decoder(nn.Module):
    """A small GPT with tied embeddings: causal attention, the last place's scores and its five best tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.norm = nn.Embedding(TOKENS, 16), nn.LayerNorm(16)
        self.register_buffer("places", torch.linspace(0, 6, 192).sin().view(12, 16))
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, ids: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        places = nn.functional.embedding(torch.arange(ids.shape[1]) + offset, self.get_buffer("places"))
        x = self.words(ids) + places
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4).unbind()
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        scores = nn.functional.linear(x[:, -1], self.words.weight)
        return scores, scores.topk(5).indices


def tokens(seed: int) -> Tensor:
    return torch.randint(0, TOKENS, (2, 8), generator=torch.Generator().manual_seed(seed))


NETWORKS: dict[str, Callable[[int], tuple[Tensor, ...]]] = {
    "Encoder": lambda seed: (tokens(seed),),
    "Decoder": lambda seed: (tokens(seed), torch.tensor([seed % 4])),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[nn.Module, q8.Model, Any]:
    """A module, its model, saved and loaded, and what makes its inputs."""
    module, inputs = globals()[request.param]().eval(), NETWORKS[request.param]
    model = q8.compile(q8.quantize(module, inputs(0), [inputs(seed) for seed in range(4)], progress=False))
    file = tmp_path_factory.mktemp("models") / "net.q8ta"
    model.save(file)
    return module, q8.load(file), inputs


def test_a_network_of_tokens_runs_whole(network: tuple[nn.Module, q8.Model, Any], device: Device) -> None:
    """0 mismatches, near torch, integers as int64, in whatever dtype the tokens come."""
    module, model, inputs = network
    with q8.Session(model, device) as session:
        for seed in range(4):
            given = inputs(seed)
            found, expected = session(*given), q8.Session(model, "reference")(*given)
            for ours, theirs in zip(found, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            exact = module(*given)[0].detach().numpy()

            assert np.abs(found[0] - exact).max() < 0.02 * np.abs(exact).max()
            assert found[1].dtype == np.int64
        narrow = session(*(x.numpy().astype(np.int32) for x in given))
        np.testing.assert_array_equal(narrow[0], found[0])


def test_tables_that_were_learned_are_int8(network: tuple[nn.Module, q8.Model, Any]) -> None:
    _, model, _ = network
    made = {node.op: node.inputs[0] for node in model.graph.nodes if node.op in ("gather", "embedding")}
    assert model.graph.types[made.pop("embedding")].dtype == "int8"
    assert [model.graph.types[table].shape for table in made.values()] in ([], [(12, 16)])  # of sines


def test_a_token_outside_of_its_table_is_an_error_of_the_call(network: tuple[nn.Module, q8.Model, Any]) -> None:
    _, model, inputs = network
    session = q8.Session(model, "reference")
    for wrong in (TOKENS, -1, 2**40):
        given = [x.clone() for x in inputs(0)]
        given[0][1, 3] = wrong
        with pytest.raises(InputError, match=rf"input 'ids' holds {wrong}, and must be in \[0, 49\]"):
            session(*given)
    with pytest.raises(InputError, match="'ids' must be int64 or another integer, found float32"):
        session(inputs(0)[0].float(), *inputs(0)[1:])


class Counting(nn.Module):
    """Positions as RoBERTa has them, of tokens that are no padding, and types of tokens that positions choose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.kinds = nn.Embedding(TOKENS, 16), nn.Embedding(12, 16), nn.Embedding(2, 16)
        self.register_buffer("kind", torch.arange(12) % 2)

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 1).int()
        places = (mask.cumsum(1) * mask).long() + 1
        y: Tensor = self.words(ids) + self.places(places) + self.kinds(self.get_buffer("kind")[places])
        return y


def test_positions_that_are_counted_take_no_float(vulkan: Device) -> None:
    module, x = Counting().eval(), tokens(0).clamp(0, 5)
    model = q8.compile(q8.quantize(module, (x,), [x], progress=False))
    assert model.report().exact, model.report()
    assert not model.report().float32
    with q8.Session(model, vulkan) as session:
        np.testing.assert_array_equal(session(x), q8.Session(model, "reference")(x))
        np.testing.assert_allclose(session(x), module(x).detach(), atol=0.1)
