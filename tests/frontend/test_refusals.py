"""What `quantize` cannot take: each case ends in our error with cause and way out, and nothing given changes."""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._library.effects import EffectType

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError, Q8taError, UnsupportedError
from tests.quantizing import Plain, around_conv, data

X = data(1, 3, 5, 5)


def with_weight(value: float) -> nn.Module:
    made = around_conv()
    with torch.no_grad():
        made.conv.weight[0, 0, 0, 0] = value  # type: ignore[operator, union-attr]
    return made


def autocast(s: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return s.conv(x)


def rescaled(s: Any, x: Tensor) -> Any:
    with torch.no_grad():
        s.conv.weight.div_(2.0)
    return s.conv(x)


def written_at(y: Tensor, place: Tensor) -> Tensor:
    y = y.clone()
    y[:, place % 2] = 0.5
    return y


class Assigned(nn.Module):
    """Makes a table contiguous that is so already."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.table: Tensor
        self.register_buffer("table", torch.ones(4, 1, 1))

    def forward(self, x: Tensor) -> Any:
        """An image → an image."""
        self.table = self.table.contiguous()
        return self.conv(x) * self.table


class KeywordOnly(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
        return x * scale


class Scripted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Constant(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(3)


@dataclass
class Result:
    y: Tensor


PROGRAM = torch.export.export(around_conv(), (X,))

double, pointwise = torch.ones(1, dtype=torch.float64), nn.Conv2d(4, 4, 1)

CASES: dict[str, tuple[type[Q8taError], str, dict[str, Any]]] = {
    "bfloat16": (InputError, "conv.weight is torch.bfloat16.*module.float", {"module": around_conv().bfloat16()}),
    "float64": (InputError, "conv.weight is torch.float64.*module.float", {"module": around_conv().double()}),
    "half": (InputError, "conv.weight is torch.float16.*module.float", {"module": around_conv().half()}),
    "meta": (InputError, "conv.weight is on the meta device", {"module": around_conv().to("meta")}),
    "float64 inside": (
        UnsupportedError,
        r"aten.mul.Tensor at .*py:\d+.* computes in torch.float64.*\.float\(\)",
        {"module": around_conv(lambda s, x: s.conv(x) * double)},
    ),
    "NaN weight": (InputError, "conv.weight holds NaN or infinity", {"module": with_weight(float("nan"))}),
    "inf weight": (InputError, "conv.weight holds NaN or infinity", {"module": with_weight(float("inf"))}),
    "NaN activation": (
        InputError,
        r"value of log .*py:\d+.* is NaN or infinite on calibration item 0.*clamp\), also for elements that a",
        {"module": around_conv(lambda s, x: s.last(torch.log(s.conv(x) - 100)), last=pointwise)},
    ),
    "inf activation": (
        InputError,
        "value of exp .* is NaN or infinite on calibration item 0",
        {"module": around_conv(lambda s, x: s.last(torch.exp(s.conv(x) * 1e6)), last=pointwise)},
    ),
    "a calibration that does not run": (
        InputError,
        r"calibration item 1 does not run: index out of range in self at .*py:\d+",
        {
            "module": around_conv(
                lambda s, x: s.conv(x) + s.table((x[0, 0] > 50).sum().view(1)).sum(), table=nn.Embedding(9, 2)
            ),
            "calibration": [X, X + 100],
        },
    ),
    "index of bools": (
        UnsupportedError,
        "depends on the values of a tensor.*mask.nonzero",
        {"module": around_conv(lambda s, x: s.conv(x)[:, torch.tensor([True, False, True, True])])},
    ),
    "control flow": (
        UnsupportedError,
        r"cannot trace the module at test_refusals.py:\d+: .*must not depend on the data.*torch.where",
        {"module": around_conv(lambda s, x: s.conv(x) if x.sum() > 0 else -s.conv(x))},
    ),
    "buffer assigned to itself": (
        UnsupportedError,
        "assign no buffer to itself in forward",
        {"module": Assigned().eval()},
    ),
    "keyword-only": (InputError, "'scale'.*wrap a module", {"module": KeywordOnly().eval()}),
    "no example": (InputError, r"found NoneType: write \(x,\)", {"example": None}),
    "empty example": (InputError, "of which there are none.*missing 1 required", {"example": ()}),
    "empty tensor": (InputError, "example input 0 is empty", {"example": (torch.zeros(0, 3, 5, 5),)}),
    "nested tensor": (
        InputError,
        "input 0 is nested",
        {"example": (torch.nested.nested_tensor([X[0], X[0]], layout=torch.jagged),)},
    ),
    "complex tensor": (
        InputError,
        "input 0 must be float32, bool, or int64, int32, int16, int8 or uint8, found torch.complex64",
        {"example": (X + 0j,)},
    ),
    "meta calibration": (InputError, "item 0 is on the meta device", {"calibration": [X.to("meta")]}),
    "calibration of float64": (InputError, r"write x.to\(torch.float32\)", {"calibration": [X.double()]}),
    "empty calibration": (InputError, "item 0 is empty", {"calibration": [X[:0]]}),
    "lazy": (InputError, "weight has no shape yet", {"module": around_conv(conv=nn.LazyConv2d(4, 3))}),
    "a program": (InputError, "found ExportedProgram: .*exported from", {"module": PROGRAM}),
    "its module": (InputError, "found GraphModule: .*exported from", {"module": PROGRAM.module()}),
    "autocast": (
        UnsupportedError,
        "computes in torch.bfloat16.*leave out torch.autocast",
        {"module": around_conv(autocast)},
    ),
    "half inside": (
        UnsupportedError,
        "computes in torch.float16.*leave out torch.autocast",
        {"module": around_conv(lambda s, x: s.conv(x).half().float())},
    ),
    "no result": (UnsupportedError, "returns no tensor", {"module": around_conv(lambda s, x: None)}),
    "sparse tensor": (InputError, "example input 0 is torch.sparse_coo", {"example": (X.to_sparse(),)}),
    "no calibration": (InputError, "iterable of inputs, found NoneType", {"calibration": None}),
    "images with labels": (InputError, r"2 arguments.*image for image, _ in", {"calibration": [(X, X[0])]}),
    "a larger batch": (
        InputError,
        r"is torch.float32 \(4, 3, 5, 5\).*for x in batch.split\(1\)",
        {"calibration": [torch.cat([X] * 4)]},
    ),
    "an item None": (InputError, "item 0 is NoneType", {"calibration": [None]}),
    "an item (None,)": (InputError, "item 0 is NoneType", {"calibration": [(None,)]}),
    "dataclass": (UnsupportedError, "tuples, lists or dicts", {"module": around_conv(lambda s, x: Result(s.conv(x)))}),
    "text result": (
        UnsupportedError,
        "outputs must be tensors",
        {"module": around_conv(lambda s, x: (s.conv(x), "a"))},
    ),
    "scripted": (
        InputError,
        "RecursiveScriptModule.*scripted or traced from",
        {"module": torch.jit.script(Scripted())},
    ),
    "a scripted part": (
        InputError,
        "RecursiveScriptModule at part, which torch.export cannot trace",
        {"module": around_conv(lambda s, x: s.part(s.conv(x)), part=torch.jit.script(Scripted().eval()))},
    ),
    "a result by number": (
        UnsupportedError,
        "keys of a dict of outputs must be strings, found 0: use names",
        {"module": around_conv(lambda s, x: {0: s.conv(x)})},
    ),
    "a deque": (
        UnsupportedError,
        "found deque: return one of these",
        {"module": around_conv(lambda s, x: deque([s.conv(x)]))},
    ),
    "no inputs": (
        InputError,
        "takes no inputs, found example_inputs=()",
        {"module": Constant().eval(), "example": ()},
    ),
    "no inputs of any number": (
        InputError,
        "takes no inputs, found example_inputs=()",
        {"module": Plain(lambda _, *inputs: sum(inputs, X)).eval(), "example": ()},
    ),
    "a quantizer's name": (InputError, r"found 'int8': write q8ta_wgpu.Quantizer\(\)", {"quantizer": "int8"}),
    "a quantizer's class": (InputError, "found the class Quantizer", {"quantizer": q8.Quantizer}),
    "in place": (UnsupportedError, "changes its inputs", {"module": around_conv(lambda s, x: s.conv(x.mul_(2)))}),
    "in place of a view": (
        UnsupportedError,
        "changes its inputs",
        {"module": around_conv(lambda s, x: (x[:, 0].zero_(), s.conv(x))[1])},
    ),
    "a number as index": (
        UnsupportedError,
        r"an index without dimensions\): index by a list of one, x\[:, place.reshape\(1\)\]",
        {"module": around_conv(lambda s, x: written_at(s.conv(x), x[0, 0, 0].argmax()))},
    ),
    "a parameter": (
        UnsupportedError,
        r"changes its parameters conv.weight: if it does that in its first call only, call it once before",
        {"module": around_conv(rescaled)},
    ),
    "random": (
        UnsupportedError,
        r"randn_like.default at .* draws random numbers.*make them an input",
        {"module": around_conv(lambda s, x: s.conv(x + torch.randn_like(x)))},
    ),
    "dropout": (
        UnsupportedError,
        r"dropout in training mode: call module.eval\(\), and give F.dropout training=self.training",
        {"module": around_conv(lambda s, x: F.dropout(s.conv(x), 0.5, True))},
    ),
    "an error in forward": (InputError, "does not run.*division by zero", {"module": around_conv(lambda s, x: 1 / 0)}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_what_quantize_cannot_take(case: str) -> None:
    kind, message, changed = CASES[case]
    x = X.clone()
    arguments = {"module": around_conv(), "example": (x,), "calibration": [x], "quantizer": None, **changed}
    with pytest.raises(kind, match=re.compile(message, re.DOTALL)) as caught:
        q8.quantize(
            arguments["module"],
            arguments["example"],
            calibration=arguments["calibration"],
            quantizer=arguments["quantizer"],
            progress=False,
        )
    assert torch.equal(x, X)
    assert len(str(caught.value)) < 700


def test_a_refusal_is_all_that_is_said_of_control_flow(caplog: pytest.LogCaptureFixture) -> None:
    """torch says to the log, too, that it found no user code."""
    with pytest.raises(UnsupportedError, match="must not depend on the data"):
        q8.quantize(around_conv(lambda s, x: s.conv(x) if x.sum() > 0 else -s.conv(x)), (X,), [X], progress=False)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_only_prints_changes_no_result(capfd: pytest.CaptureFixture[str]) -> None:
    """torch makes a call of its own around such an operator where it decomposes a program."""
    show, x = torch.ops.higher_order.print, data(64, 8)
    module = Plain(lambda s, x: (show("at {}", 3), s.linear(x))[1], linear=nn.Linear(8, 8)).eval()
    found = q8.Session(q8.compile(q8.quantize(module, (x,), [x], progress=False)), "reference")(x)
    assert "at 3" in capfd.readouterr().out
    torch.testing.assert_close(torch.from_numpy(found), module(x), atol=0.05, rtol=0)


def test_an_operator_with_effects_is_named() -> None:
    """Not the call that torch makes around it."""

    @torch.library.custom_op("q8ta_tests::logged", mutates_args=())
    def logged(x: Tensor) -> Tensor:
        return x * 2

    logged.register_fake(torch.empty_like)
    torch.library._register_effectful_op("q8ta_tests::logged", EffectType.ORDERED)
    module = around_conv(lambda s, x: s.conv(torch.ops.q8ta_tests.logged(x)))
    with pytest.raises(UnsupportedError, match=r"\n  q8ta_tests.logged.default at quantizing.py:\d+: this operator is"):
        q8.quantize(module, (X,), [X], progress=False)
