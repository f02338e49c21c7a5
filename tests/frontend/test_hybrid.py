"""Programs of which a part stays in PyTorch: what runs where, and that results are those of PT2E's simulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import q8ta_wgpu as q8
from q8ta_wgpu.frontend import checks
from q8ta_wgpu.frontend.hybrid.hybrid import Hybrid
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, conv, data


class Parts(nn.Module):
    """Two convolutions and what is around and between them."""

    def __init__(self, start: Any = None, middle: Any = None, end: Any = None) -> None:
        super().__init__()
        self.start, self.middle, self.end = start, middle, end
        self.first, self.second = conv(3, 8), conv(8, 8)

    def forward(self, x: Tensor) -> Any:
        """(n, 3, 6, 8) -> what `end` makes of (n, 8, 6, 8)."""
        x = self.start(x) if self.start else x
        x = self.first(x).relu()
        x = self.middle(x) if self.middle else x
        x = self.second(x)
        return self.end(x) if self.end else x


def summed(x: Tensor) -> Tensor:
    return torch.logcumsumexp(x, dim=1)


def spectrum(x: Tensor) -> Tensor:
    y: Tensor = torch.fft.fft(x, dim=-1).sqrt().abs()
    return y


def beside(x: Tensor) -> Tensor:
    """Reads a stored value in PyTorch and in int8: it crosses as it is stored."""
    y: Tensor = x.logcumsumexp(dim=1) + x
    return y


def named(x: Tensor) -> dict[str, Any]:
    return {"summed": x.mode(dim=1), "plain": [x]}


def quantized(module: nn.Module, *inputs: Tensor, **options: Any) -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return q8.quantize(module.eval(), inputs, [inputs], progress=False, unsupported="torch", **options)


def leaves(nested: Any) -> list[Tensor]:
    found: list[Tensor] = pytree.tree_leaves(nested)
    return found


def check(program: torch.export.ExportedProgram, made: Hybrid, *inputs: Tensor) -> None:
    """As near to the simulation as a few values that are rounded the other way make it, and in its structure."""
    with torch.no_grad():
        found, expected = made(*inputs), program.module(check_guards=False)(*inputs)
    assert pytree.tree_structure(found) == pytree.tree_structure(expected)
    for mine, simulated in zip(leaves(found), leaves(expected), strict=True):
        assert mine.dtype == simulated.dtype and mine.shape == simulated.shape
        if simulated.is_floating_point():
            apart = (mine - simulated).abs() / simulated.abs().max()
            assert apart.max() < 0.02 and apart.mean() < 5e-4


PARTS = [
    {"start": spectrum, "middle": summed, "end": named},
    {"middle": beside},
]


@pytest.mark.parametrize("parts", PARTS)
def test_what_is_not_supported_stays_in_torch(parts: dict[str, Any]) -> None:
    x = data(2, 3, 6, 8)
    program = quantized(Parts(**parts), x)
    with q8.compile(program, unsupported="torch", device="reference") as made:
        assert len(made.pieces) == 2
        check(program, made, x)
        assert made.report().macs[0] == made.report().macs[1] == 2 * 48 * 9 * 8 * (3 + 8)
        assert all(report.exact and report.int8 for report in made.report().pieces)
        assert not made.state_dict()
        assert not {"int8x4", "int16x4"}.isdisjoint(crossing(made)) or parts.get("middle") is not beside


def crossing(made: Hybrid) -> list[str]:
    """Dtypes of what goes into the last piece."""
    return [t.dtype for t in made.pieces[-1].model.inputs.values()]


@pytest.mark.parametrize(("dtype", "low"), [(torch.int8, -128), (torch.uint8, 0), (torch.int16, -(2**15))])
def test_what_crosses_as_it_is_stored(dtype: torch.dtype, low: int) -> None:
    """A value that PyTorch reads and an operator behind it as well: the pieces agree on its scale and zero point."""
    ops = torch.ops.quantized_decomposed
    given = (0.02 if low > -200 else 1e-4, low + 100, low, low + (255 if low > -200 else 2**16 - 1), dtype)

    def forward(s: Any, x: Tensor) -> Tensor:
        stored = ops.quantize_per_tensor(s.a(x), *given)
        summed = ops.dequantize_per_tensor(stored, *given).logcumsumexp(1)
        y: Tensor = s.b(summed - ops.dequantize_per_tensor(stored, *given))
        return y

    x = data(1, 3, 4, 4)
    program = torch.export.export(Plain(forward, a=conv(3, 4), b=conv(4, 4)), (x,))
    made = q8.compile(program, unsupported="torch", device="reference")
    assert set(crossing(made)) == {"float32", "int16x4" if dtype == torch.int16 else "int8x4"}
    check(program, made, x)


class Words(nn.Module):
    """Integers in: what they choose is looked up in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(9, 16), nn.Linear(16, 8)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(self.table(words)).relu()
        return y, y.double() @ y.double().mT


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return quantized(Words(), words(2))


def words(batch: int) -> Tensor:
    return torch.arange(batch * 5).reshape(batch, 5) % 9


def test_doubles_stay_in_torch(program: torch.export.ExportedProgram, vulkan: Device) -> None:
    """On the device."""
    with q8.compile(program, unsupported="torch", device=vulkan) as made:
        assert made.pieces[0].session.device is vulkan
        assert not made.state_dict()
        check(program, made, words(2))
        text = str(made.report())
        assert text.startswith("1 piece on the GPU") and "sym_size" not in text
        assert "aten.embedding.default" not in text and "it computes in torch.float64" in text
        assert made.report().macs == (2 * 5 * 16 * 8, 2 * 5 * (16 * 8 + 5 * 8))
        for wrong in (words(2)[:, :4], words(2).float(), "words"):
            with pytest.raises(q8.InputError, match=r"argument 0 must be torch.int64 \(2, 5\), found"):
                made(wrong)
        with pytest.raises(q8.InputError, match=r"found a numpy array int64 \(2, 5\): write torch.from_numpy\(x\)$"):
            made(words(2).numpy())
        with pytest.raises(q8.InputError, match=r"for arguments \(Tensor\), found \(Tensor, also=\['int', 'str'\]\)$"):
            made(words(2), also=[1, "two"])
    with pytest.raises(q8.InputError, match="closed"), made:
        pass


def test_nothing_or_everything_on_the_gpu() -> None:
    x = data(2, 3, 4)
    with pytest.raises(
        q8.UnsupportedError, match=r"nothing of this program(.|\n)*aten.logcumsumexp.default(.|\n)*not support"
    ):
        q8.compile(torch.export.export(Plain(lambda _, x: x.logcumsumexp(1)), (x,)), unsupported="torch")
    whole = torch.export.export(Plain(lambda _, x: x.relu()), (x,))
    made = q8.compile(whole, unsupported="torch", device="reference")
    assert torch.equal(made(x), x.relu()) and "in PyTorch:\n  nothing" in str(made.report())


def test_what_does_not_go_together() -> None:
    with pytest.raises(q8.InputError, match="'error' or 'torch', found 'cuda'"):
        q8.compile(None, unsupported="cuda")  # type: ignore[call-overload]
    with pytest.raises(q8.InputError, match="int8_outputs"):
        q8.compile(None, int8_outputs=True, unsupported="torch")  # type: ignore[call-overload]
    with pytest.raises(q8.InputError, match=r"Session\(model, device\)"):
        q8.compile(None, device="reference")  # type: ignore[call-overload]


def test_an_array_in_the_place_of_a_number() -> None:
    with pytest.raises(q8.InputError, match="argument 0 must be 2, found"):
        checks.check_arguments([torch.ones(2)], [2])
