"""model.reshape of imported networks: what torch gives at the other size, or a refusal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu import Session
from q8ta_wgpu.errors import InputError
from tests.importing import Function, data, flat, imported

RESHAPED: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "flatten_batch": (lambda x: x.flatten(1), (2, 5, 3, 7), (3, 5, 3, 7)),
    "flatten_size": (lambda x: x.flatten(2).transpose(1, 2), (2, 5, 3, 7), (1, 5, 4, 9)),
    "heads": (lambda x: x.view(x.shape[0], x.shape[1], 2, 3).transpose(1, 2), (2, 5, 6), (3, 4, 6)),
    "unsqueeze": (lambda x: x.unsqueeze(0), (2, 5), (3, 5)),
    "unsqueeze_one": (lambda x: x.unsqueeze(0), (1, 5), (3, 5)),
    "squeeze": (lambda x: x.squeeze(2).squeeze(-1), (1, 5, 1, 1), (3, 5, 1, 1)),
    "squeeze_dims": (lambda x: x.squeeze((1, 3)), (2, 1, 5, 1, 4), (3, 1, 6, 1, 7)),
    "unflatten": (lambda x: x.unflatten(1, (2, -1)), (2, 6, 5), (3, 6, 7)),
    "merge_batch": (lambda x: x.reshape(-1, 7), (2, 5, 7), (3, 4, 7)),
    "groups": (
        lambda x: x.unflatten(1, (2, 3)).transpose(1, 2).flatten(1, 2),
        (2, 6, 3, 7),
        (3, 6, 4, 9),
    ),
    "crop": (lambda x: x[:, :, 1:-1, 2:], (2, 5, 4, 7), (1, 5, 6, 9)),
    "select": (lambda x: x[:, 1] + x[:, -1], (2, 5, 3, 7), (3, 5, 4, 7)),
    "stack": (lambda x: torch.stack([x, x], 1), (2, 5, 3), (3, 7, 3)),
    "upsample": (lambda x: F.interpolate(x, scale_factor=1.5), (2, 5, 4, 6), (1, 5, 7, 9)),
    "pad_reflect": (lambda x: F.pad(x, (2, 2, 1, 1), mode="reflect"), (2, 5, 4, 6), (1, 5, 7, 9)),
    "upsample_bilinear": (
        lambda x: F.interpolate(F.avg_pool2d(x, 2), x.shape[-2:], mode="bilinear"),
        (2, 5, 4, 6),
        (1, 5, 8, 10),
    ),
    "upsample_as": (lambda x: F.interpolate(F.avg_pool2d(x, 2), size=x.shape[-2:]), (2, 5, 4, 6), (1, 5, 8, 10)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0)), (2, 5, 4, 6), (1, 5, 7, 9)),
    "shuffles": (lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), (2, 8, 4, 6), (1, 8, 7, 9)),
    "expand": (lambda x: x.expand(-1, 4, -1, -1), (2, 1, 4, 6), (3, 1, 7, 9)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (2, 5, 4, 9), (1, 5, 7, 10)),
    "conv1d": (lambda x: F.conv1d(x, torch.ones(3, 5, 3), padding=1), (2, 5, 7), (3, 5, 9)),
    "select_last": (lambda x: x[:, 3], (2, 4, 5), (2, 6, 5)),
    "sort": (lambda x: x.sort(1).values, (2, 4, 5), (3, 7, 6)),
    "argsort": (lambda x: x.argsort(-1, descending=True).float(), (2, 4, 5), (3, 7, 6)),
    "kthvalue": (lambda x: x.kthvalue(2, 1).values, (2, 4, 5), (3, 7, 6)),
    "cumsum": (lambda x: x.cumsum(1), (2, 4, 5), (3, 7, 6)),
    "variance": (lambda x: x.var(1, correction=0), (2, 4, 5), (3, 7, 6)),
    "five_dimensions": (lambda x: torch.where(x > 0, x[:, :1], x * x[..., :1]), (2, 3, 2, 4, 5), (3, 3, 2, 6, 5)),
}


def test_reshape_of_a_transposed_convolution() -> None:
    module = nn.ConvTranspose2d(4, 3, 3, 2, 1, 1)
    x = data(1, 4, 6, 2)
    (found,) = flat(Session(imported(module, data(2, 4, 3, 5)).reshape(x.shape), "reference")(x))
    np.testing.assert_allclose(found, flat(module(x))[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", RESHAPED)
def test_reshape(name: str) -> None:
    """model.reshape gives what torch gives at the other size, although the program was exported at one size."""
    function, old, new = RESHAPED[name]
    model = imported(function, data(*old)).reshape(new)
    x = data(*new)
    (found,) = flat(Session(model, "reference")(x))
    expected = flat(function(x))[0]
    largest = float(np.abs(expected).max())  # torch sums in an order that depends on the processor
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * max(1.0, largest))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, 1:4],
        lambda x: x.narrow(1, 2, 2),
        lambda x: x.split(2, 1)[1],
        lambda x: x.split([1, 3], 1)[0],
        lambda x: x.chunk(2, 1)[0],
        lambda x: x.unbind(1)[1],
        lambda x: x.median(1).values,
    ],
)
def test_reshape_refuses_what_may_be_counted_from_the_size(function: Function) -> None:
    """A part that ends where the dimension ends, and one of all its parts, may be other elements at another size."""
    model = imported(function, data(2, 4, 5))
    model.reshape((3, 4, 7))
    with pytest.raises(InputError, match="made for 4 elements"):
        model.reshape((2, 6, 5))


def test_reshape_repeats_no_constant_of_the_old_size() -> None:
    """One element beside a constant that was made for five would become five."""
    model = imported(lambda x: x + torch.arange(x.shape[1]), data(2, 5))
    with pytest.raises(InputError, match="an operand has 5 elements in dimension -1, made for 5; args_0 has 1"):
        model.reshape((2, 1))


def test_reshape_refuses_what_the_network_fixes() -> None:
    """Sizes written into the network stay: a flatten into a linear keeps its width."""
    model = imported(nn.Sequential(nn.Flatten(), nn.Linear(105, 4)), data(2, 5, 3, 7))
    with pytest.raises(InputError, match=r"cannot take inputs.*dynamic_shapes"):
        model.reshape((2, 5, 4, 7))


def test_reshape_keeps_rows_of_tokens_apart() -> None:
    """Rows of a table are gathered as one list: of other lengths it would be cut into rows of the old one."""
    module, ids = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4)).eval(), torch.zeros(1, 4, dtype=torch.long)
    model = q8.compile(q8.quantize(module, (ids,), [ids + 1], progress=False))
    assert model.reshape((3, 4)).outputs[0].shape == (3, 4, 4)
    for shape in ((2, 2), (1, 8)):
        with pytest.raises(InputError, match=r"dimension 1 of input .* must be 4.*dynamic_shapes"):
            model.reshape(shape)


def test_a_table_of_positions_may_end_at_the_length_of_the_example() -> None:
    """What the network is at other lengths is asked when it is quantized: a longer one has no rows."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(6, 8), nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.head(x + self.table(torch.arange(x.shape[1])))
            return y

    x = data(2, 6, 8)
    model = q8.compile(q8.quantize(Positions().eval(), (x,), [x], progress=False))
    assert model.reshape((3, 6, 8)).outputs[0].shape == (3, 6, 4)
    for length in (5, 7):
        with pytest.raises(InputError, match="cannot take inputs of"):
            model.reshape((2, length, 8))
