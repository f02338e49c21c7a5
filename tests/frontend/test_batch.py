"""Models with a symbolic batch dimension: scheduled for the batch that arrives."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.session import by_shape
from q8ta_wgpu.session.by_shape import ByShape
from testbed import insides
from testbed.modelfiles import forge
from tests.quantizing import INT8, Plain, conv, data


@pytest.fixture(scope="module")
def model() -> q8.Model:
    """Calibrated with batches of another size than the example's."""
    module = nn.Sequential(conv(3, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)).eval()
    x = data(1, 3, 6, 7)
    batches = [torch.cat([x, x, x]), torch.cat([x, x])]
    return q8.compile(q8.quantize(module, (x,), batches, quantizer=INT8, progress=False, dynamic_batch=True))


def test_any_batch(model: q8.Model, vulkan: Device, tmp_path: Path) -> None:
    """Each size is scheduled once and gives the reference's bytes, and those of its images one by one."""
    model.save(tmp_path / "net.q8ta")
    loaded = q8.load(tmp_path / "net.q8ta")
    reference = q8.Session(loaded, "reference")
    with q8.Session(loaded, vulkan) as session:
        batches = [data(size, 3, 6, 7, seed=size).numpy() for size in (1, 3, 2, 3)]
        found = [*map(session, batches[:2]), *session.run_many(batches[2:])]
        assert [shapes[0][0] for shapes in insides.other_sizes(session).shapes] == [2, 3]
    for x, y in zip(batches, found, strict=True):
        assert int((y != reference(x)).sum()) == 0
        np.testing.assert_array_equal(y, np.concatenate([reference(image[None]) for image in x]))


def test_the_batch_that_arrives_is_timed(model: q8.Model, vulkan: Device) -> None:
    """A call and its timing take the same inputs."""
    with q8.Session(model, vulkan) as session:
        timing = session.time(data(3, 3, 6, 7), repeats=1, warmup=0)
        assert [shapes[0][0] for shapes in insides.other_sizes(session).shapes] == [3]
        assert timing.program.outputs[0].shape == (3, 5)


def test_threads_with_batches_of_many_sizes(model: q8.Model, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """More sizes than are kept, each called by several threads at a time: every byte is right, and nothing is left."""
    monkeypatch.setattr(by_shape, "KEPT", 2)
    sizes = (2, 3, 4, 5)
    inputs = {size: data(size, 3, 6, 7, seed=size).numpy() for size in sizes}
    expected = {size: q8.Session(model, "reference")(x) for size, x in inputs.items()}
    with q8.Session(model, vulkan) as session, ThreadPoolExecutor(6) as pool:
        turns = [sizes[(i * i) % 4 if i < 30 else i % 4] for i in range(36)]
        for size, found in zip(turns, pool.map(lambda size: session(inputs[size]), turns), strict=True):
            np.testing.assert_array_equal(found, expected[size])
        assert len(insides.other_sizes(session).shapes) == 2
    assert insides.other_sizes(session).shapes == []


class Slow:
    """A value that is made when it is let, and says whether it was closed."""

    def __init__(self, size: int, let: threading.Event) -> None:
        assert let.wait(10)
        self.size, self.closed = size, False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


def test_other_batches_go_on_while_one_is_made() -> None:
    """Who wants the same waits for it, and it is made once; what is used is closed when nobody uses it any more."""
    let, free = threading.Event(), threading.Event()
    free.set()
    made = []

    def make(size: int) -> Slow:
        made.append(size)
        return Slow(size, let if size == 1 else free)

    def size_of(size: int) -> int:
        with kept.using(size, make) as value:
            assert not value.closed
            return value.size

    kept = ByShape[int, Slow]()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(size_of, 1) for _ in range(2)]
        while not made:
            pass
        with kept.using(2, make) as two:
            assert [size_of(size) for size in range(2, 30)] == list(range(2, 30))
            assert two.size == 2 and not two.closed
        assert size_of(30) == 30 and two.closed
        assert not any(call.done() for call in waiting)
        let.set()
        assert [call.result(60) for call in waiting] == [1, 1]
    assert sorted(made) == list(range(1, 31))
    assert kept.shapes == [1, *range(24, 31)]
    with kept.using(30, make) as last:
        kept.close()
        assert not last.closed
    assert last.closed and kept.shapes == []


def test_a_batch_that_cannot_be_made_is_tried_again() -> None:
    answers = iter([q8.DeviceError("no memory"), None])
    let = threading.Event()
    let.set()

    def make(size: int) -> Slow:
        if (error := next(answers)) is not None:
            raise error
        return Slow(size, let)

    kept = ByShape[int, Slow]()
    with pytest.raises(q8.DeviceError, match="no memory"), kept.using(1, make):
        pass
    assert kept.shapes == []
    with kept.using(1, make) as value:
        assert value.size == 1


def test_what_is_no_batch_of_the_inputs(model: q8.Model) -> None:
    session = q8.Session(model, "reference")
    for shape in ((0, 3, 6, 7), (2, 3, 6, 8), (3, 6, 7), ()):
        with pytest.raises(q8.InputError, match=r"must have shape \(batch, 3, 6, 7\), found"):
            session(np.zeros(shape, np.float32))
    with pytest.raises(q8.InputError, match="cannot become an array of numbers"):
        session([[1.0], [1.0, 2.0]])
    session(np.zeros((4, 3, 6, 7), np.float32))
    session.close()
    with pytest.raises(q8.InputError, match="was closed"):
        session(np.zeros((4, 3, 6, 7), np.float32))


def test_inputs_that_share_a_batch() -> None:
    """The input that does not fit is named, whatever the batch; then those whose batches differ."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z: torch.Tensor = self.first(x) + self.second(y)
            return z

    item = data(2, 4), data(2, 5)
    model = q8.compile(
        q8.quantize(Two().eval(), item, calibration=[item], quantizer=INT8, progress=False, dynamic_batch=True)
    )
    assert repr(model).startswith("Model(x float32[batch, 4], y float32[batch, 5] -> ")
    assert "float32[2, 3]; " in repr(model)
    session = q8.Session(model, "reference")
    assert session(data(3, 4), data(3, 5)).shape == (3, 3)
    with pytest.raises(q8.InputError, match=r"'y' must have shape \(batch, 5\), found shape \(3, 6\)"):
        session(data(3, 4), data(3, 6))
    with pytest.raises(q8.InputError, match="dimension 0 of input y is batch and batch is 2 elsewhere, found 3"):
        session(data(2, 4), data(3, 5))
    with pytest.raises(q8.InputError, match="dimension 0 of input y is batch and batch is 2 elsewhere, found 3"):
        session.time(data(2, 4), data(3, 5))


class Tokens(nn.Module):
    """What vision transformers do with a batch: a class token, looked up positions, masked windows, heads beside the
    batch in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.table = nn.Parameter(torch.ones(1, 1, 8)), nn.Embedding(16, 8)
        self.linear, self.heads = nn.Linear(8, 8), nn.Linear(8, 8)
        self.places = nn.Buffer(torch.arange(16)[None])
        self.mask = nn.Buffer(torch.zeros(4, 4, 4).index_fill(0, torch.tensor([1, 3]), -100.0).tril())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 15, 8) -> (16, n, 8)."""
        n = x.shape[0]
        places = self.table(self.places.expand(n, -1)) + torch.zeros(n, 16, 8)
        x = torch.cat([self.token.expand(n, -1, -1), self.linear(x)], 1) + places
        heads = self.heads(x.view(n * 4, 4, 8)).view(n * 4, 4, 2, 4).transpose(1, 2)
        scores = (heads @ heads.mT).view(n, 4, 2, 4, 4) + self.mask[None, :, None]
        y = (scores.view(-1, 2, 4, 4).softmax(-1) @ heads).transpose(1, 2).reshape(n, 16, 8)
        beside: torch.Tensor = y.transpose(0, 1).reshape(16, n * 2, 4).relu()
        return beside.view(16, n, 8)


def test_files_that_list_the_inputs_with_a_batch(model: q8.Model, tmp_path: Path) -> None:
    """As they once were written."""

    def edit(document: dict[str, Any]) -> None:
        assert document.pop("dynamic")["symbols"][0]["symbol"] == "batch"
        document["batched"] = document["inputs"]

    model.save(tmp_path / "net.q8ta")
    (tmp_path / "old.q8ta").write_bytes(forge((tmp_path / "net.q8ta").read_bytes(), lambda document, _: edit(document)))
    found, now = q8.load(tmp_path / "old.q8ta"), q8.load(tmp_path / "net.q8ta").graph
    assert str(found.graph) == str(now) and found.graph.dynamic.inputs == now.dynamic.inputs


def test_tokens_and_windows_of_any_batch(vulkan: Device) -> None:
    """All in int8; an image's result does not depend on those beside it."""
    torch.manual_seed(0)
    x = data(3, 15, 8)
    exported = q8.quantize(Tokens().eval(), (x,), [x], quantizer=INT8, progress=False, dynamic_batch=True)
    model = q8.compile(exported)
    assert model.report().exact
    reference = q8.Session(model, "reference")
    with q8.Session(model, vulkan) as session:
        for size in (1, 2, 3):
            found = session(x[:size])
            np.testing.assert_array_equal(found, reference(x[:size]))
            np.testing.assert_array_equal(found, np.concatenate([reference(image[None]) for image in x[:size]], 1))
    with torch.no_grad():
        simulated = exported.module(check_guards=False)(x).numpy()
    assert np.abs(reference(x) - simulated).max() < 0.02 * np.abs(simulated).max()


class Padded(nn.Module):
    """A transformer whose last tokens may be padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """(n, 6, 16), (n, 6) -> (n, 6, 16)."""
        y: torch.Tensor = self.encoder(x, src_key_padding_mask=padding)
        return y


def test_a_padding_mask_of_any_batch_is_part_of_attention() -> None:
    """All in int8, as with a fixed batch; an image's result does not depend on those beside it."""
    torch.manual_seed(0)
    module, item = Padded().eval(), (data(2, 6, 16), torch.arange(6) >= torch.tensor([[4], [6]]))
    model = q8.compile(q8.quantize(module, item, [item], quantizer=INT8, progress=False, dynamic_batch=True))
    assert model.report().exact and not model.report().islands
    session = q8.Session(model, "reference")
    found = session(*item)
    np.testing.assert_array_equal(found, np.concatenate([session(*(x[i : i + 1] for x in item)) for i in range(2)]))
    with torch.no_grad():
        np.testing.assert_allclose(found, module(*item), atol=0.1)


class FirstTwo(nn.Module):
    """Two of the batch, which is all of a batch of two."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 3, 6) -> (2, 3, 6)."""
        y: torch.Tensor = self.linear(x)[:2].relu()
        return y


class Both(nn.Module):
    """A linear of the sum of all arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """(n, 6) each -> (n, 6)."""
        y: torch.Tensor = self.linear(sum(args))
        return y


def test_any_number_of_arguments() -> None:
    x = data(1, 6)
    model = q8.compile(q8.quantize(Both().eval(), (x, x), [(x, x)], quantizer=INT8, progress=False, dynamic_batch=True))
    assert q8.Session(model, "reference")(data(3, 6), data(3, 6)).shape == (3, 6)


class Counted(nn.Module):
    """Numbers that depend on how many images there are."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        repeated = self.token.expand(x.shape[0], -1)
        return x + repeated.sum(0).expand(x.shape[0], -1) + repeated


def test_what_counts_the_batch_is_refused() -> None:
    """Of a program of torch's own, which names the batch by a symbol."""
    program = torch.export.export(Counted(), (data(2, 6),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    with pytest.raises(q8.UnsupportedError, match="does not follow the sizes"):
        q8.compile(program)


def test_a_batch_that_would_be_frozen_is_refused() -> None:
    x = data(1, 3, 6)
    with pytest.raises(q8.UnsupportedError, match="does not follow the sizes"):
        q8.quantize(FirstTwo().eval(), (x,), [x], quantizer=INT8, progress=False, dynamic_batch=True)


def test_numbers_of_the_batch_are_refused_by_name() -> None:
    x = data(2, 6)
    with pytest.raises(
        q8.UnsupportedError, match=r"aten\.div\.Tensor at .*the number 1\.0 at one size, 2\.0 at another"
    ):
        q8.quantize(
            Plain(lambda _, x: x.std(0)).eval(), (x,), [(x,)], quantizer=INT8, progress=False, dynamic_batch=True
        )


def test_volumes_of_another_batch_than_the_example_calibrate() -> None:
    """Convolutions of volumes read slices that no operator of the module gives: they are computed at an item's size."""
    module = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1)).eval()
    x = data(1, 2, 5, 5, 5)
    items = [x, data(3, 2, 5, 5, 5)]
    model = q8.compile(q8.quantize(module, (x,), items, progress=False, dynamic_batch=True))
    session = q8.Session(model, "reference")
    for item in items:
        np.testing.assert_allclose(session(item), module(item).detach(), atol=0.02)
    depth = torch.export.Dim("depth", min=4)
    with pytest.raises(q8.InputError, match=r"calibration item 1 has sizes that not every operator takes, conv3d"):
        q8.quantize(module, (x,), [x, data(1, 2, 9, 5, 5)], progress=False, dynamic_shapes=[{2: depth}])
