"""The demo's decoder: its tokens, its weights, and its cache."""

from __future__ import annotations

import pytest
import torch

from demo import text
from demo.decoder import CONTEXT, TOKENS, WEIGHTS, Decoder, Step, trained
from demo.train_text import fit, perplexity


@pytest.fixture(scope="module")
def known() -> tuple[Decoder, text.Tokenizer]:
    return trained()


def test_tokens_are_text_again(known: tuple[Decoder, text.Tokenizer]) -> None:
    _, tokenizer = known
    assert len(tokenizer.strings) == TOKENS
    for name in (*text.HELD_OUT, *text.CALIBRATION):
        source = text.read(name)
        tokens = tokenizer.encode(source)
        assert tokenizer.decode(tokens) == source
        assert max(tokens) < TOKENS and len(source) > 2 * len(tokens)
    assert tokenizer.decode(tokenizer.encode("grüße")) == "gr??e"


def test_the_most_frequent_pairs_become_tokens() -> None:
    merges = text.learn_merges(["abab"] * 9, text.CHARACTERS + 2)
    a, b = map(ord, "ab")
    assert merges == [(a, b), (128, 128)]
    assert text.Tokenizer(merges).encode("ababab") == [129, 128]


def test_held_out_files_are_not_trained_on() -> None:
    assert set(text.training()).isdisjoint(text.HELD_OUT)
    assert {*text.CALIBRATION} < set(text.training())


def test_weights_are_small_and_know_python(known: tuple[Decoder, text.Tokenizer]) -> None:
    decoder, tokenizer = known
    assert WEIGHTS.stat().st_size < 2e6
    assert perplexity(decoder, torch.tensor(tokenizer.encode(text.read("textwrap.py")))) < 45


@torch.inference_mode()
def test_a_cache_gives_what_the_whole_sequence_does(known: tuple[Decoder, text.Tokenizer]) -> None:
    """In chunks, one of them filled up, then token by token."""
    decoder, tokenizer = known
    tokens = torch.tensor([tokenizer.encode(text.read("bisect.py"))[:40]])
    step, places = Step(decoder), torch.arange(CONTEXT)
    filled = torch.cat([tokens[:, 16:30], torch.zeros(1, 2, dtype=torch.int64)], dim=1)
    found = [step(tokens[:, :16], places[:16]), step(filled, places[16:32])[:, :14]]
    found += [step(tokens[:, i : i + 1], places[i : i + 1]) for i in range(30, 40)]
    torch.testing.assert_close(torch.cat(found, dim=1), decoder(tokens), atol=1e-4, rtol=1e-4)


def test_training_repeats() -> None:
    tokens = torch.arange(2000, dtype=torch.int16) % 7

    def after() -> list[torch.Tensor]:
        torch.manual_seed(0)
        decoder = Decoder()
        fit(decoder, tokens, 1)
        return list(decoder.parameters())

    assert all(map(torch.equal, after(), after()))
