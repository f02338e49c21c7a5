"""What is said of the bits that were chosen: in reports, comparisons and files, as predictions and warnings."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.frontend.notes import PRECISION
from q8ta_wgpu.ir.graph import INT16X4
from q8ta_wgpu.quantization.stored import Choice, Edge, Stored, Width
from testbed.noise import decibels
from testbed.pt2e import by_torchao
from tests.frontend.test_quantizers import xnnpack_quantizer
from tests.precision_networks import NETWORKS, quantized
from tests.quantizing import Plain, conv, data


def test_the_choice_is_reported_compared_and_saved(tmp_path: Path) -> None:
    build, given = NETWORKS["a table's columns"]
    torch.manual_seed(0)
    module, batches = build().eval(), [given(s) for s in range(8)]
    program = quantized(module, batches)
    torch.export.save(program, tmp_path / "net.pt2")
    program = torch.export.load(tmp_path / "net.pt2")
    model = q8.compile(program)
    model.save(tmp_path / "net.q8ta")
    note = (
        r": is stored in int16 since 8 bits are too few: here alone they would make [\d.,]+ (% of|times) the noise "
        r"that the outputs should have at most, for "
    )
    for text in (str(each.report(details=True)) for each in (model, q8.load(tmp_path / "net.q8ta"))):
        assert re.search(note, text), text
    comparison = q8.compare(module, program, (batches[0],))
    measured = next(layer.snr for layer in comparison.layers if layer.output)
    assert comparison.predicted is not None
    assert comparison.predicted == pytest.approx(measured, abs=4)
    assert "dB were predicted for the outputs on the inputs of the calibration" in str(comparison)


def test_a_network_that_makes_noise_larger_is_named() -> None:
    module = Plain(lambda m, x: torch.sin(3000 * m.head(x)) + m.other(x), head=nn.Linear(8, 4), other=nn.Linear(8, 4))
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="on the inputs of the calibration, .* the network makes noise larger"):
        quantized(module.eval(), [data(16, 8, seed=s) for s in range(4)])


def test_of_several_outputs_the_one_is_named_that_a_prediction_is_of() -> None:
    module = Plain(
        lambda m, x: (m.other(x), torch.sin(3000 * m.head(x)) + m.other(x)),
        head=nn.Linear(8, 4),
        other=nn.Linear(8, 4),
    )
    torch.manual_seed(0)
    batches = [data(16, 8, seed=s) for s in range(4)]
    with pytest.warns(UserWarning, match=r"^output 1 \(add, \S+:\d+\) is predicted to keep .* leaves"):
        program = quantized(module.eval(), batches)
    assert re.search(r"dB were predicted for output 1 \(add, ", str(q8.compare(module, program, (batches[0],))))


def test_no_warning_where_all_is_well() -> None:
    build, given = NETWORKS["a table's columns"]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(build().eval(), [given(s) for s in range(4)])


def test_no_warning_of_the_4_bits_that_were_asked_for() -> None:
    torch.manual_seed(0)
    module = Plain(
        lambda m, ids: m.norm(m.table(ids) + 0.01 * m.layer(m.table(ids))),
        table=nn.Embedding(64, 64),
        layer=nn.Linear(64, 64),
        norm=nn.LayerNorm(64),
    )
    batches = [torch.arange(s, s + 16)[None] for s in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        q8.quantize(module.eval(), (batches[0],), batches, q8.Quantizer(weights="int4"), progress=False)


def test_a_wrong_precision_is_refused() -> None:
    with pytest.raises(InputError, match="precision must be 'auto', 'int8' or 'int16', found 'int4'"):
        q8.Quantizer(precision="int4")


def test_amounts_in_whole_numbers_are_as_far_off_as_predicted() -> None:
    """One byte in ten is off by one: that is no noise of 10 dB. Of labels it is how many differ that counts."""
    layer, given = conv(3, 5), [torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8) for _ in range(8)]
    amounts = Plain(lambda m, x: (m.layer(x.float() / 255) * 255).round().clamp(0, 255).to(torch.uint8).flip(3))
    labels = Plain(lambda m, x: m.layer(x.float() / 255).argmax(1).to(torch.uint8))
    for module in (amounts, labels):
        module.layer = layer
        program = quantized(module.eval(), given)
        *_, predicted = program.graph_module.meta["custom"][PRECISION]
        reference = q8.Session(q8.compile(program), "reference")
        pairs = [(module(x).numpy().astype(float), reference(x.numpy()).astype(float)) for x in given[:4]]
        wanted, found = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        share = -10 * math.log10(max(np.mean(wanted != found), 1e-12))
        measured = (decibels(wanted, found) or 120.0) if module is amounts else min(share, 120.0)
        assert predicted == pytest.approx(measured, abs=1.5), module


@pytest.mark.parametrize("precision", ["auto", "int8"])
def test_a_module_is_explained_value_by_value(tmp_path: Path, precision: str) -> None:
    build, given = NETWORKS["shares of next to nothing"]
    torch.manual_seed(0)
    module, batches = build().eval(), [given(s) for s in range(8)]
    q8.compile(quantized(module, batches, precision)).save(tmp_path / "net.q8ta")
    model = q8.load(tmp_path / "net.q8ta")
    said = model.explain("add")
    if precision == "int8":
        assert said.startswith("add is stored in int8 for other readers\n  decided by the operators around it\n")
        return
    assert said.splitlines()[:3] == [
        "add is not rounded for other readers",
        "  decided by the rule 'divisors', since what is divided by comes near zero",
        "  rules that matched: divisors",
    ]


def test_a_record_is_of_the_graph_that_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a network whose values never had 16 bits, whatever was decided, it said int16: it was made of the steps."""
    build, given = NETWORKS["a table's columns"]
    torch.manual_seed(0)
    module, batches = build().eval(), [given(s) for s in range(8)]
    free = q8.compile(quantized(module, batches))
    width_for = Stored.width_for

    def never_16_bits(self: Stored, edge: Edge, chosen: Choice) -> Width:
        return "int8" if (width := width_for(self, edge, chosen)) == "int16" else width

    monkeypatch.setattr(Stored, "width_for", never_16_bits)
    banned = q8.compile(quantized(module, batches))
    for model, wide in ((free, True), (banned, False)):
        assert (INT16X4 in {known.dtype for known in model.graph.types.values()}) == wide
        assert ("is stored in int16" in model.explain()) == wide
        assert ("is stored in int16" in str(model.report(details=True))) == wide


def test_noise_is_said_of_the_bits_that_make_it() -> None:
    """Of a residual stream, which has 16 bits in any case, the noise of 16 bits was said to be that of 8."""
    module = Plain(lambda m, x: m.last(m.norm(x + m.first(x))), first=nn.Linear(8, 8), last=nn.Linear(8, 4))
    module.norm = nn.LayerNorm(8)
    torch.manual_seed(0)
    model = q8.compile(quantized(module.eval(), [100 * data(16, 8, seed=s) for s in range(4)]))
    for decision in model.graph.decisions:
        bits = "16 bits" if decision.values == ("add",) else "8 bits"
        assert f"\n  {bits} alone would make " in str(decision), str(decision)


def test_what_another_quantizer_chose_has_no_record() -> None:
    module, x = nn.Sequential(nn.Linear(8, 4), nn.ReLU()).eval(), data(2, 8)
    model = q8.compile(by_torchao(module, [(x,)], xnnpack_quantizer()))
    with pytest.raises(InputError, match=r"no record of what was decided: q8ta_wgpu\.quantize writes one"):
        model.explain()
