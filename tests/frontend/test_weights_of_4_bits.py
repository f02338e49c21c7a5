"""Weights of 4 bits: rounded with a factor for each group of inputs, stored in half the bytes, computed in integers."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import GraphError, InputError
from q8ta_wgpu.ir import bits
from q8ta_wgpu.ir.arithmetic import STEPS
from q8ta_wgpu.quantization.four_bits import grouped
from q8ta_wgpu.runtime.device import Device
from testbed.pt2e import by_torchao
from tests.quantizing import Plain, check_on, check_on_host, data, ops

BITS = q8.Quantizer(weights="int4", precision="int8")


class Block(nn.Module):
    """A transformer's block."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(nn.functional.gelu(self.up(self.second(x))))
        return result


def _small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 70), nn.ReLU(), nn.Linear(70, 33), nn.Hardswish(), nn.Linear(33, 8)).eval()


def _mixed(seed: int) -> Tensor:
    """Inputs that vary together, as those of trained networks do."""
    return data(3, 6, 96, seed=seed) @ (data(96, 12, seed=0) @ data(12, 96, seed=99) / 8 + 0.1 * torch.eye(96))


@functools.cache
def linears(group: int, rows: int) -> q8.Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(200, 50), nn.ReLU(), nn.Linear(50, 12))
    quantizer = q8.Quantizer(weights="int4", group=group, precision="int8")
    return check_on_host(module, (data(rows, 200),), quantizer)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_linears_of_any_rows_are_the_reference_and_a_step_from_torch(group: int, device: Device) -> None:
    """One row takes other kernels than many. The last group of an output has fewer inputs."""
    for rows in (1, 40):
        model = linears(group, rows)
        check_on(device, model, (data(rows, 200),))
        weight = next(a for name, a in model.graph.constants.items() if name.endswith("weight"))
        assert weight.shape == (50, -(-200 // group), 1 + group // 2)
        assert ops(model) == ["q8ta_linear", "q8ta_linear"]


@functools.cache
def block() -> q8.Model:
    torch.manual_seed(0)
    return check_on_host(Block(), (data(1, 9, 64),), q8.Quantizer(weights="int4"))


def test_a_transformers_block_with_a_stream_of_16_bits(device: Device) -> None:
    """Linears of int16 read 4 bits, too. The file has half the bytes, and is the same when loaded."""
    model = block()
    check_on(device, model, (data(1, 9, 64),))
    assert not model.report().float32


def test_half_the_bytes_saved_and_loaded(tmp_path: Path) -> None:
    module, x = _small(), _mixed(0)
    models = [
        q8.compile(q8.quantize(module, (x,), [_mixed(1)], quantizer=q8.Quantizer(weights=weights), progress=False))
        for weights in ("int8", "int4")
    ]
    sizes = [sum(a.nbytes for a in model.graph.constants.values() if a.dtype == np.int8) for model in models]
    assert sizes[1] < 0.6 * sizes[0]
    models[1].save(tmp_path / "bits.q8ta")
    loaded = q8.load(tmp_path / "bits.q8ta")
    np.testing.assert_array_equal(
        q8.Session(loaded, "reference")(x.numpy()), q8.Session(models[1], "reference")(x.numpy())
    )
    assert sum(loaded.report().int8.values()) == loaded.report().int8["q8ta_linear of 4 bits"] + 2, str(loaded.report())


def test_calibration_takes_most_of_the_error_out_of_4_bits() -> None:
    """What rounding changes in one weight is made up for by those that vary with it."""
    module, x, items = _small(), _mixed(0), [_mixed(seed) for seed in range(1, 12)]
    with torch.no_grad():
        exact = module(x)

    def noise(fit: bool) -> float:
        quantizer = q8.Quantizer(weights="int4", fit_weights=fit, precision="int8")
        program = q8.quantize(module, (x,), items, quantizer=quantizer, progress=False)
        found = program.module()(x).detach()
        return float(((found - exact) ** 2).sum() / (exact**2).sum())

    assert noise(True) < 0.5 * noise(False)


def test_the_factor_of_a_group_is_the_one_with_the_least_error() -> None:
    """The largest number of a group is -8 steps, whatever its sign. A group of zeros has a factor, too."""
    weight = np.zeros((2, 96))
    weight[0, :32] = np.linspace(-1, 7 / 8, 32)
    weight[0, 32:64] = -weight[0, :32] / 4
    found = grouped(weight, 32)
    assert found.factors[0, 0] > 0 > found.factors[0, 1]
    assert np.abs(found.factors).min() >= 1
    steps = found.steps(96)
    rounded = np.clip(np.rint(weight / steps), *STEPS) * steps
    assert np.abs(rounded - weight).max() <= 1 / 16 + 1e-6
    np.testing.assert_array_equal(np.clip(np.rint(rounded / steps), *STEPS) * steps, rounded)
    values = np.rint(rounded / found.scales[:, None]).astype(np.int16)
    packed = bits.pack(values)
    assert packed is not None
    np.testing.assert_array_equal(bits.values(packed, 96), values)


def test_torchaos_prepare_has_no_weights_of_4_bits() -> None:
    with pytest.raises(InputError, match=r"by q8ta_wgpu.quantize alone.*weights=\"int8\""):
        by_torchao(_small(), [(data(3, 96),)], BITS)


def test_weights_of_more_bits_stay_in_float32() -> None:
    """int16 weights are for whole numbers of 4 bits by a factor; others are none."""
    values = np.arange(-64, 64, dtype=np.int16).reshape(2, 64) * 7 + 1
    assert bits.pack(values) is None


def test_a_stored_weight_of_another_length_is_refused() -> None:
    with pytest.raises(GraphError, match=r"found \(5, 4, 17\) for 96 inputs"):
        bits.check((5, 4, 17), 96)
    with pytest.raises(GraphError, match="groups of 32, 64, 128 inputs"):
        bits.check((5, 6, 9), 96)


def test_columns_of_a_product_have_4_bits() -> None:
    """As GPT-2 writes its linears: a matrix of columns."""
    torch.manual_seed(0)
    layer = Plain(lambda m, x: torch.addmm(m.linear.bias, x, m.linear.weight.T.contiguous()), linear=nn.Linear(64, 24))
    program = q8.quantize(layer.eval(), (data(5, 64),), [data(5, 64, seed=2)], quantizer=BITS, progress=False)
    model = q8.compile(program)
    assert any(a.shape == (24, 2, 17) for a in model.graph.constants.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int2"}, "weights must be 'int8' or 'int4', found 'int2'"),
        ({"weights": "int4", "group": 16}, "group must be one of 32, 64, 128, found 16"),
        ({"weights": "int4", "group": True}, "group must be one of"),
        ({"weights": "int4", "group": 64.0}, "group must be one of"),
        ({"group": 64}, "group=64 with weights='int8': add weights=\"int4\", or leave group out"),
        ({"weights": "int4", "qat": True}, "are not trained"),
    ],
)
def test_what_the_quantizer_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        q8.Quantizer(**options)  # type: ignore[arg-type]


class Words(nn.Module):
    """Token numbers to numbers of the next."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.linear = nn.Embedding(50, 64), nn.Linear(64, 20)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.linear(self.table(ids))
        return result


def test_tables_of_embeddings_have_4_bits(device: Device) -> None:
    """A row of 64 in two groups of 32; the bytes are the reference's, the numbers torch's."""
    ids = torch.arange(0, 50, 3).reshape(1, -1)
    program = q8.quantize(Words().eval(), (ids,), [ids, ids + 1], quantizer=BITS, progress=False)
    model = q8.compile(program)
    (node,) = (node for node in model.graph.nodes if node.op == "embedding")
    assert model.graph.types[node.inputs[0]].shape == (50, 2, 17)
    with q8.Session(model, device) as session:
        found = session(ids.numpy())
    np.testing.assert_array_equal(found, q8.Session(model, "reference")(ids.numpy()))
    np.testing.assert_allclose(found, program.module()(ids).detach().numpy(), atol=0.02)
