"""Results of a network come back in the structure and dtypes of the module's own."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from tests.quantizing import Plain, conv, data


def quantize(module: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    return q8.quantize(module.eval(), inputs, calibration=[inputs], progress=False)


def test_outputs_keep_their_structure() -> None:
    def forward(s: Any, x: Tensor) -> object:
        y = s.a(x)
        return {"y": y, "both": (y, [torch.relu(y)]), "nothing": None}

    model = q8.compile(quantize(Plain(forward, a=conv(3, 4)), data(1, 3, 5, 5)))
    found = q8.Session(model, "reference")(data(1, 3, 5, 5).numpy())
    assert set(found) == {"y", "both", "nothing"}
    assert found["nothing"] is None
    assert isinstance(found["both"][1], list)
    assert found["y"].shape == (1, 4, 5, 5)


class Found(NamedTuple):
    scores: Any
    boxes: Any


def test_named_tuples_and_ordered_dicts_come_back(tmp_path: Path) -> None:
    """A file has the names of a named tuple, not its class."""

    def forward(s: Any, x: Tensor) -> object:
        y = s.a(x)
        return OrderedDict(b=Found(y, [y * 2, None]), a=y.relu())

    model = q8.compile(quantize(Plain(forward, a=conv(3, 4)), data(1, 3, 5, 5)))
    model.save(tmp_path / "net.q8ta")
    model = q8.load(tmp_path / "net.q8ta")
    found = q8.Session(model, "reference")(data(1, 3, 5, 5))
    assert type(found) is OrderedDict
    assert list(found) == ["b", "a"]
    assert type(found["b"]).__name__ == "Found"
    assert found["b"]._fields == ("scores", "boxes")
    assert found["b"].boxes[1] is None
    assert [y.shape for y in model.structure.flatten(found)] == [(1, 4, 5, 5)] * 3


def test_constants_are_results_of_their_own_dtypes(vulkan: Device) -> None:
    def forward(s: Any, x: Tensor) -> object:
        return s.a(x), torch.arange(3), torch.tensor([True, False]), torch.tensor(7), torch.tensor([1.5])

    module = Plain(forward, a=conv(3, 4))
    model = q8.compile(quantize(module, data(1, 3, 5, 5)))
    with q8.Session(model, vulkan) as session:
        found = session(data(1, 3, 5, 5))
    for ours, theirs in zip(found[1:], module(data(1, 3, 5, 5))[1:], strict=True):
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(q8.UnsupportedError, match="integers that float32 does not"):
        q8.compile(quantize(Plain(lambda s, x: (s.a(x), torch.tensor(2**24 + 1)), a=conv(3, 4)), data(1, 3, 5, 5)))


def test_an_input_that_is_also_an_output() -> None:
    model = q8.compile(quantize(Plain(lambda s, x: (s.a(x), x), a=conv(3, 4)), data(1, 3, 5, 5)))
    x = data(1, 3, 5, 5).numpy()
    with q8.Session(model) as session:
        _, same = session(x)
    assert (same == x).all()


def test_a_uint8_output_is_refused() -> None:
    qd = torch.ops.quantized_decomposed

    class Ends(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return qd.quantize_per_tensor(x, 0.1, 128, 0, 255, torch.uint8)

    program = torch.export.export(Ends(), (data(1, 3),))
    with pytest.raises(q8.UnsupportedError, match="uint8"):
        q8.compile(program)
