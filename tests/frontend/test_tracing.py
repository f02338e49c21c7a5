"""Tracing answers some calls of torch in its own way: for its own thread, and one thread after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import transformer

import q8ta_wgpu as q8
from tests.quantizing import Plain, data

LAYERS = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input)


def state() -> Any:
    """What other versions of this library changed in torch."""
    return transformer._detect_is_causal_mask, [dict(layer.py_kernels) for layer in LAYERS]


def recurrent() -> nn.Module:
    return Plain(lambda s, x: s.linear(s.lstm(x)[0]), lstm=nn.LSTM(4, 6), linear=nn.Linear(6, 4)).eval()


def causal() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    return Plain(lambda s, x: s.encoder(x, mask=mask), encoder=nn.TransformerEncoder(layer, 1)).eval()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_threads_quantize_at_once() -> None:
    """torch ends in errors of its own where two threads trace at once."""
    before, x, started = state(), data(3, 5, 4), threading.Barrier(4)

    def quantized(module: nn.Module) -> Any:
        started.wait()
        program = q8.quantize(module, (x,), [x], progress=False)
        return q8.Session(q8.compile(program), "reference")(x), module(x).detach().numpy()

    with ThreadPoolExecutor(4) as pool:
        for found, exact in pool.map(quantized, [recurrent(), causal(), recurrent(), causal()]):
            np.testing.assert_allclose(found, exact, atol=0.05 * np.abs(exact).max())
    assert state() == before
    layer = recurrent()
    torch.testing.assert_close(torch.export.export(layer, (x,)).run_decompositions().module()(x), layer(x))


def test_other_threads_compute_while_one_traces() -> None:
    """A call is answered in another way in the thread that traces, and nowhere else."""
    lstm, x, found = nn.LSTM(4, 6).eval(), data(3, 5, 4), list[Tensor]()

    class Meanwhile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            other = threading.Thread(target=lambda: found.append(lstm(data(3, 5, 4))[0]))
            other.start()
            other.join()
            return x * 2

    q8.quantize(Meanwhile().eval(), (x,), [x], progress=False)
    for result in found:
        torch.testing.assert_close(result, lstm(x)[0])
    assert found
