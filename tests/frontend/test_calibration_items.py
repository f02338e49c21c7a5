"""What is made of a calibration does not depend on how it is given, and is the same at all sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

import q8ta_wgpu as q8
from q8ta_wgpu.frontend.float_program import Traceable
from q8ta_wgpu.frontend.notes import PRECISION, noted
from q8ta_wgpu.frontend.read_float import float_program
from q8ta_wgpu.ir.graph import Graph, QParams
from q8ta_wgpu.quantization.calibration import Calibration
from q8ta_wgpu.quantization.items import ITEMS, in_order
from testbed.blocks import data
from tests.quantizing import Plain, around_conv, conv


def places(count: int, simulated: int) -> list[tuple[int, int, bool]]:
    of = lambda total: min(simulated, total // 4)  # noqa: E731
    return list(in_order(iter(range(count)), lambda _: of, lambda item: item, lambda: None))


def test_the_number_of_items_need_not_be_known() -> None:
    for count in (1, 7, 24, 31, 100):
        for simulated in (0, 1, ITEMS):
            found, last = places(count, simulated), min(simulated, count // 4)
            assert sorted(found) == [(i, i, i < last) for i in range(count)]
            assert found[count - last :] == [(i, i, True) for i in range(last)]


def test_a_generator_gives_the_program_of_a_list() -> None:
    """Of 24 items six are simulated, of an unknown number it were four."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 40), nn.GELU(), nn.Linear(40, 32)).eval()
    items = [data(1, 8, seed=seed) for seed in range(24)]

    def generated() -> Iterator[Tensor]:
        yield from items

    quantizer = q8.Quantizer(fit_weights=False)
    one, other = (
        q8.quantize(module, (items[0],), calibration=given, quantizer=quantizer, progress=False)
        for given in (items, generated())
    )
    assert noted(one.graph_module, PRECISION) == noted(other.graph_module, PRECISION)


def scales(graph: Graph) -> list[QParams | None]:
    return [graph.types[node.output].q for node in graph.nodes if node.op == "quantize"]


def test_ranges_are_the_same_at_other_sizes() -> None:
    module = around_conv(lambda s, x: s.last(s.conv(x).relu()), last=conv(4, 3))
    programs = [float_program(Traceable(module, (data(1, 3, size, size),)).graph()) for size in (8, 12)]
    calibration = Calibration(programs[0], streams=True, fit_weights=False)
    met = np.append(np.random.default_rng(0).normal(size=1_000_000), 12.0).astype(np.float32)
    for stored in calibration.values.stored:
        stored.met.meet(met)
    found = scales(calibration.quantized())
    assert any(q is not None and q.scale < 12 / 255 for q in found)
    assert scales(calibration.quantized_like(programs[1])) == found


def test_what_is_only_moved_stays_as_it_was() -> None:
    module = Plain(lambda s, x: (s.conv(x), x.transpose(2, 3), x.flatten(1).reshape(-1)), conv=conv(3, 4)).eval()
    x = data(1, 3, 6, 5)
    model = q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False))
    _, turned, flat = q8.Session(model, "reference")(x.numpy())
    np.testing.assert_array_equal(turned, x.transpose(2, 3).numpy())
    np.testing.assert_array_equal(flat, x.reshape(-1).numpy())
    model = q8.compile(q8.quantize(Plain(lambda s, x: x.transpose(1, 2)).eval(), (x,), calibration=[x], progress=False))
    np.testing.assert_array_equal(q8.Session(model, "reference")(x.numpy()), x.transpose(1, 2).numpy())
