"""Attention that is simulated some heads and rows at a time gives what it gives at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.calibrate import heads, need, simulated_noise
from q8ta_wgpu.frontend.calibrate.precision import Precision, Precisions
from q8ta_wgpu.frontend.calibrate.rounder import shares_in_steps
from q8ta_wgpu.kernels.attention.attention import COARSE, powers
from tests.quantizing import Plain, choosing, data

BATCH, HEADS, TOKENS, WIDE = 2, 3, 20, 8
BIAS = data(HEADS, TOKENS, TOKENS, seed=7)
SEEN = torch.rand(BATCH, 1, 1, TOKENS, generator=torch.Generator().manual_seed(3)) > 0.3

Scores = Callable[[Tensor, Tensor, Tensor], Tensor]


def _with_a_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, BIAS)


def _masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(2, 3) * 0.3).masked_fill(~SEEN, -1e9).softmax(-1) @ v


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _mask_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (BIAS[:1] + q @ k.transpose(2, 3)).softmax(-1) @ v


def _network(attend: Scores) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        q, k, v = m.qkv(x).reshape(BATCH, TOKENS, 3, HEADS, WIDE).permute(2, 0, 3, 1, 4).unbind(0)
        found: Tensor = m.head(attend(q, k, v).transpose(1, 2).flatten(2))
        return found

    torch.manual_seed(0)
    wide = HEADS * WIDE
    return Plain(forward, qkv=nn.Linear(wide, 3 * wide), head=nn.Linear(wide, wide)).eval()


def _at_once(monkeypatch: pytest.MonkeyPatch, scores: int) -> None:
    """So many scores are computed at once, at most."""
    for limit in ("_MANY", "CACHED"):
        monkeypatch.setattr(heads, limit, scores)


@pytest.mark.parametrize("attend", [_with_a_bias, _masked, _causal, _mask_first], ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("rows", [5, TOKENS, HEADS * TOKENS])
def test_some_rows_of_scores_at_a_time(attend: Scores, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise, and the same need of every value, with no more scores at once than asked for."""
    found: list[tuple[list[float], list[float]]] = []
    sizes: set[int] = set()

    def shares(x: Tensor) -> Tensor:
        sizes.add(x.numel())
        return shares_in_steps(x)

    def choose(self: Precisions) -> Precision:
        found.append((self._noise({}), list(self.simulated.needs([0]).values())))
        return Precision()

    choosing(monkeypatch, choose)
    for module in (need, simulated_noise):
        monkeypatch.setattr(module, "shares_in_steps", shares)
    batches = [data(BATCH, TOKENS, HEADS * WIDE, seed=s) for s in range(4)]
    for cached in (heads.CACHED, rows * TOKENS):
        _at_once(monkeypatch, cached)
        sizes.clear()
        q8.quantize(_network(attend), (batches[0],), batches, progress=False)
    assert sizes == {rows * TOKENS}
    (noise, need_at_once), (noise_by_rows, need_by_rows) = found
    assert noise_by_rows == pytest.approx(noise, rel=1e-3)
    assert min(need_at_once) > 0
    assert need_by_rows == pytest.approx(need_at_once, rel=1e-3)


def _two_attentions(attend: Scores) -> nn.Module:
    return nn.Sequential(_network(attend), _network(attend)).eval()


@pytest.mark.parametrize("held", [0, 1, 2])
def test_shares_that_fit_are_computed_once(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of later attentions are computed again for each vector of signs; the need of every value is the same."""
    found: list[list[float]] = []
    computed: list[int] = []

    def shares(x: Tensor) -> Tensor:
        computed.append(x.numel())
        return shares_in_steps(x)

    def choose(self: Precisions) -> Precision:
        computed.clear()
        found.append(list(self.simulated.needs([0]).values()))
        return Precision()

    choosing(monkeypatch, choose)
    monkeypatch.setattr(need, "shares_in_steps", shares)
    whole, item = BATCH * HEADS * TOKENS * TOKENS, data(BATCH, TOKENS, HEADS * WIDE)
    for cached in (heads.CACHED, 5 * TOKENS):
        _at_once(monkeypatch, cached)
        monkeypatch.setattr(heads, "_HELD", 4 * held * whole)
        q8.quantize(_two_attentions(_with_a_bias), (item,), [item] * 4, progress=False)
    assert sum(computed) / whole == 2 * (held + (2 - held) * (1 + need.SIGNS))  # of two items
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_calibration_meets_some_rows_of_scores_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And int8 programs are the same, with the same numbers."""
    sizes: list[int] = []
    finished = heads.InParts.finished

    def noted(self: heads.InParts, n: Node, result: Any) -> Any:
        sizes.extend([result.numel()] if "softmax" in str(n.target) else [])
        return finished(self, n, result)

    monkeypatch.setattr(heads.InParts, "finished", noted)
    batches = [data(BATCH, TOKENS, HEADS * WIDE, seed=s) for s in range(4)]
    programs = []
    for cached in (heads.CACHED, 5 * TOKENS):
        _at_once(monkeypatch, cached)
        quantizer = q8.Quantizer(precision="int8")
        programs.append(q8.quantize(_network(_with_a_bias), (batches[0],), batches, quantizer, progress=False))
    assert set(sizes) == {5 * TOKENS}
    first, second = (str(program.graph_module.code) for program in programs)
    assert first == second


def test_shares_are_simulated_as_kernels_compute_them() -> None:
    """Scores in whole steps make most of the error where keys have similar weight."""
    scores = torch.randn(64, 100, generator=torch.Generator().manual_seed(0))
    exact, simulated = scores.softmax(-1), shares_in_steps(scores)
    steps = (COARSE.steps * scores).round()
    distances = (steps.amax(-1, keepdim=True) - steps).int().clamp(max=COARSE.distances - 1)
    weights = torch.from_numpy(powers(COARSE).astype(np.float32))[distances.long()]
    computed = weights / weights.sum(-1, keepdim=True)
    assert float((simulated - exact).norm()) == pytest.approx(float((computed - exact).norm()), rel=0.1)


def test_shares_of_rows_without_elements() -> None:
    low = torch.finfo(torch.float32).min
    rows = torch.tensor([[-math.inf, -math.inf], [low, low], [low, 0.0], [-math.inf, 0.0]])
    assert shares_in_steps(rows).tolist() == [[0.0, 0.0], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0]]
