"""A value is called what made it in the user's program, wherever a person reads it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from tests.quantizing import data


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.relu = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(x + self.conv2(self.relu(self.conv1(x))))
        return y


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer1, self.fc = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Sequential(Block(), nn.SiLU()),
            nn.Linear(8, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(self.layer1(self.stem(x)).mean((2, 3)))
        return y


def made() -> tuple[nn.Module, Tensor, torch.export.ExportedProgram]:
    torch.manual_seed(0)
    module, x = Network().eval(), data(2, 3, 8, 8)
    return module, x, q8.quantize(module, (x,), [x], q8.Quantizer(skip=["layer1.1"]), progress=False)


def test_values_are_called_what_made_them(tmp_path: Path) -> None:
    """`layer1.0.relu`, and never `quantize_per_tensor_7`. Of a value that is stored in two ways one has the dtype."""
    *_, program = made()
    model = q8.compile(program)
    found = {node.output for node in model.graph.nodes}
    assert {"stem", "layer1.0.relu", "layer1.0.relu_1", "mean", "fc"} <= found
    assert not [name for name in found if "quantize_per_tensor" in name or "activation_post_process" in name]
    assert model.graph.results == ["fc"]
    assert any(note.startswith("layer1.1.silu: silu stays in float32") for note in model.report().notes)
    model.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    assert {node.output for node in loaded.graph.nodes} == found
    for text in (str(model.report(details=True)), str(q8.Session(model, "reference").program)):
        assert "quantize_per_tensor" not in text


def test_rows_of_a_comparison_have_the_same_names() -> None:
    module, x, program = made()
    compared = q8.compare(module, program, (x,))
    names = {layer.name for layer in compared.layers}
    assert {"x", "stem", "layer1.0.relu", "fc"} <= names
    assert "layer1.0.relu (test_user_names.py" in str(compared) or "layer1.0.relu\n" in str(compared)


def test_names_of_one_module_that_is_called_twice_differ() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, layer: Tensor) -> Tensor:
            y: Tensor = self.layer(self.layer(layer))
            return y

    torch.manual_seed(0)
    x = data(2, 4)
    model = q8.compile(q8.quantize(Twice().eval(), (x,), [x], progress=False))
    names = [node.output for node in model.graph.nodes]
    assert len(set(names)) == len(names)
    assert {"layer.linear", "layer.linear_1"} <= set(names)
    assert model.graph.arguments == ["layer"]
