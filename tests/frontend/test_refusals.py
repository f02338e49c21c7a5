"""What `quantize` cannot take: each case ends in our error with cause and way out, and nothing given changes."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchao.quantization.pt2e import MinMaxObserver

import q8ta_wgpu as q8
from q8ta_wgpu.errors import InputError, Q8taError, UnsupportedError
from q8ta_wgpu.frontend.calibrate import faults, pt2e
from tests.quantizing import Plain, conv, data

X = data(1, 3, 5, 5)


def module(forward: Callable[..., Any] = lambda s, x: s.conv(x), **parts: nn.Module) -> nn.Module:
    return Plain(forward, **{"conv": conv(3, 4), **parts}).eval()


def with_weight(value: float) -> nn.Module:
    made = module()
    with torch.no_grad():
        made.conv.weight[0, 0, 0, 0] = value  # type: ignore[operator, union-attr]
    return made


def autocast(s: Any, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return s.conv(x)


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


class Stateful(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function, self.state, self.count, self.kept = function, torch.zeros(1), 0, [torch.zeros(1)]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def set_anew(s: Stateful, x: Tensor) -> Tensor:
    s.state = s.state + 1
    return x * s.state


def changed(s: Stateful, x: Tensor) -> Tensor:
    s.state.add_(1)
    return x * s.state


def counted(s: Stateful, x: Tensor) -> Tensor:
    s.count += 1
    return x * s.count


def listed(s: Stateful, x: Tensor) -> Tensor:
    s.kept[0] = s.kept[0] + 1
    return x * s.kept[0]


@dataclass
class Result:
    y: Tensor


PROGRAM = torch.export.export(module(), (X,))
double, pointwise = torch.ones(1, dtype=torch.float64), nn.Conv2d(4, 4, 1)
CASES: dict[str, tuple[type[Q8taError], str, dict[str, Any]]] = {
    "bfloat16": (InputError, "conv.weight is torch.bfloat16.*module.float", {"module": module().bfloat16()}),
    "float64": (InputError, "conv.weight is torch.float64.*module.float", {"module": module().double()}),
    "half": (InputError, "conv.weight is torch.float16.*module.float", {"module": module().half()}),
    "meta": (InputError, "conv.weight is on the meta device", {"module": module().to("meta")}),
    "float64 inside": (
        UnsupportedError,
        r"aten.mul.Tensor at .*py:\d+.* computes in torch.float64.*\.float\(\)",
        {"module": module(lambda s, x: s.conv(x) * double)},
    ),
    "NaN weight": (InputError, "conv.weight holds NaN or infinity", {"module": with_weight(float("nan"))}),
    "inf weight": (InputError, "conv.weight holds NaN or infinity", {"module": with_weight(float("inf"))}),
    "NaN activation": (
        InputError,
        r"value of log .*py:\d+.* is NaN or infinite on calibration item 0.*clamp\)$",
        {"module": module(lambda s, x: s.last(torch.log(s.conv(x) - 100)), last=pointwise)},
    ),
    "inf activation": (
        InputError,
        "value of exp .* is NaN or infinite on calibration item 0",
        {"module": module(lambda s, x: s.last(torch.exp(s.conv(x) * 1e6)), last=pointwise)},
    ),
    "a calibration that does not run": (
        InputError,
        r"calibration item 1 does not run: index out of range in self at .*py:\d+",
        {
            "module": module(
                lambda s, x: s.conv(x) + s.table((x[0, 0] > 50).sum().view(1)).sum(), table=nn.Embedding(9, 2)
            ),
            "calibration": [X, X + 100],
        },
    ),
    "index of bools": (
        UnsupportedError,
        "depends on the values of a tensor.*mask.nonzero",
        {"module": module(lambda s, x: s.conv(x)[:, torch.tensor([True, False, True, True])])},
    ),
    "control flow": (
        UnsupportedError,
        r"cannot trace the module at test_refusals.py:\d+: .*must not depend on the data.*torch.where",
        {"module": module(lambda s, x: s.conv(x) if x.sum() > 0 else -s.conv(x))},
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
    "lazy": (InputError, "weight has no shape yet", {"module": module(conv=nn.LazyConv2d(4, 3))}),
    "a program": (InputError, "found ExportedProgram: .*exported from", {"module": PROGRAM}),
    "its module": (InputError, "found GraphModule: .*exported from", {"module": PROGRAM.module()}),
    "autocast": (
        UnsupportedError,
        "converts torch.float32 to torch.bfloat16.*leave out torch.autocast",
        {"module": module(autocast)},
    ),
    "half inside": (
        UnsupportedError,
        "converts torch.float32 to torch.float16.*leave out torch.autocast",
        {"module": module(lambda s, x: s.conv(x).half().float())},
    ),
    "no result": (UnsupportedError, "returns no tensor", {"module": module(lambda s, x: None)}),
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
    "dataclass": (UnsupportedError, "tuples, lists or dicts", {"module": module(lambda s, x: Result(s.conv(x)))}),
    "text result": (UnsupportedError, "outputs must be tensors", {"module": module(lambda s, x: (s.conv(x), "a"))}),
    "scripted": (
        InputError,
        "RecursiveScriptModule.*scripted or traced from",
        {"module": torch.jit.script(Scripted())},
    ),
    "a scripted part": (
        InputError,
        "RecursiveScriptModule at part, which torch.export cannot trace",
        {"module": module(lambda s, x: s.part(s.conv(x)), part=torch.jit.script(Scripted().eval()))},
    ),
    "a result by number": (
        UnsupportedError,
        "keys of a dict of outputs must be strings, found 0: use names",
        {"module": module(lambda s, x: {0: s.conv(x)})},
    ),
    "a deque": (
        UnsupportedError,
        "found deque: return one of these",
        {"module": module(lambda s, x: deque([s.conv(x)]))},
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
    "a tensor set anew": (UnsupportedError, "changes its state while it runs", {"module": Stateful(set_anew).eval()}),
    "a tensor changed": (UnsupportedError, "changes its state while it runs", {"module": Stateful(changed).eval()}),
    "a number counted": (UnsupportedError, "changes its count while it runs", {"module": Stateful(counted).eval()}),
    "a list changed": (UnsupportedError, "changes its kept.0 while it runs", {"module": Stateful(listed).eval()}),
    "a quantizer's name": (InputError, r"found 'int8': write q8ta_wgpu.Quantizer\(\)", {"quantizer": "int8"}),
    "a quantizer's class": (InputError, "found the class Quantizer", {"quantizer": q8.Quantizer}),
    "in place": (UnsupportedError, "changes its inputs", {"module": module(lambda s, x: s.conv(x.mul_(2)))}),
    "in place of a view": (
        UnsupportedError,
        "changes its inputs",
        {"module": module(lambda s, x: (x[:, 0].zero_(), s.conv(x))[1])},
    ),
    "random": (
        UnsupportedError,
        r"randn_like.default at .* draws random numbers.*make them an input",
        {"module": module(lambda s, x: s.conv(x + torch.randn_like(x)))},
    ),
    "dropout": (
        UnsupportedError,
        r"dropout in training mode: call module.eval\(\), and give F.dropout training=self.training",
        {"module": module(lambda s, x: F.dropout(s.conv(x), 0.5, True))},
    ),
    "an error in forward": (InputError, "does not run.*division by zero", {"module": module(lambda s, x: 1 / 0)}),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_what_quantize_cannot_take(case: str) -> None:
    kind, message, changed = CASES[case]
    x = X.clone()
    arguments = {"module": module(), "example": (x,), "calibration": [x], "quantizer": None, **changed}
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


def test_what_calibration_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        q8.quantize(module(), (X,), calibration=(1 / i for i in range(1)), progress=False)  # type: ignore[misc]


def test_buffers_that_forward_changes_are_put_back() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(1)  # type: ignore[operator]
            return x * self.seen  # type: ignore[operator]

    counter = Counter().eval()
    model = q8.compile(q8.quantize(counter, (X,), calibration=[X, X], progress=False))
    assert counter.seen.item() == 0  # type: ignore[operator]
    assert list(model.graph.buffers) == ["seen"]
    for option in ({"dynamic_batch": True}, {"unsupported": "torch"}):
        with pytest.raises(UnsupportedError, match="changes its buffers seen, which stay on the device"):
            q8.quantize(counter, (X,), calibration=[X], progress=False, **option)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda kept, x: torch.cat([kept, x.reshape(-1)]),
            r"changes from shape \(1,\) to \(\d+,\): what stays .* one size",
        ),
        (lambda kept, x: (kept + 1).long(), r"buffer kept from torch.float32 to torch.int64"),
    ],
)
def test_buffers_that_cannot_stay(function: Callable[..., Tensor], message: str) -> None:
    class Kept(nn.Module):
        kept: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.kept = function(self.kept, x)
            return x * 2

    with pytest.raises(UnsupportedError, match=message):
        q8.quantize(Kept().eval(), (X,), calibration=[X], progress=False)


@pytest.mark.parametrize("function", [set_anew, changed, counted, listed])
def test_attributes_that_forward_changes_are_put_back(function: Callable[..., Tensor]) -> None:
    stateful = Stateful(function).eval()
    with pytest.raises(UnsupportedError, match=r"must be a buffer \(register_buffer\), or an input and a result"):
        q8.quantize(stateful, (X,), calibration=[X], progress=False)
    assert (stateful.count, stateful.state.item(), stateful.kept[0].item()) == (0, 0, 0)


def test_attributes_that_results_do_not_depend_on_may_change() -> None:
    """A cache of what depends on no input, and values that are kept to be looked at."""

    def cached(s: Stateful, x: Tensor) -> Tensor:
        if s.count == 0:
            s.count, s.state = 1, torch.arange(5.0)
        s.kept.append(x * s.state)
        return s.kept[-1]

    stateful = Stateful(cached).eval()
    with torch.inference_mode():  # tensors that nothing may write to, were it what they hold
        stateful.frozen = torch.ones(2)
    stateful.sparse = torch.eye(3).to_sparse()
    q8.quantize(stateful, (X,), calibration=[X], progress=False)
    assert (stateful.count, len(stateful.kept)) == (0, 1)


def test_a_dict_that_refuses_writes_is_left_alone() -> None:
    """diffusers' networks keep their configuration in one: it was emptied, then update raised."""

    class Frozen(dict[str, int]):
        def update(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("frozen")

    plain = module()
    plain.config = Frozen(size=3)  # type: ignore[assignment]
    q8.quantize(plain, (X,), calibration=[X], progress=False)
    assert plain.config == {"size": 3}


def test_a_calibration_of_zeros_is_told() -> None:
    with pytest.warns(UserWarning, match="every calibration input is zero"):
        q8.quantize(module(), (X,), calibration=[torch.zeros_like(X)] * 2, progress=False)


def test_an_observer_that_takes_nan() -> None:
    """Some fail on NaN, others give a scale that is none."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("seen", (x,)))
    observer = MinMaxObserver(dtype=torch.int8, qscheme=torch.per_tensor_affine)
    prepared = torch.fx.GraphModule({"seen": observer}, graph)
    faults.check_ranges(prepared)
    prepared(torch.full((2,), float("nan")))
    with pytest.raises(InputError, match=r"the value of x .* is NaN or infinite on the calibration"):
        faults.check_ranges(prepared)


def _scaled(factor: float) -> nn.Module:
    tiny = module(lambda s, x: F.relu(s.second(s.conv(x) * factor)), second=conv(4, 4))
    with torch.no_grad():
        tiny.second.bias.zero_()  # type: ignore[operator, union-attr]
    return tiny


def test_small_values_have_small_steps() -> None:
    tiny = _scaled(1e-6)
    compared = q8.compare(tiny, q8.quantize(tiny, (X,), calibration=[X], progress=False), (X,))
    assert min(layer.snr for layer in compared.layers) > 25, str(compared)


def test_values_that_int8_makes_constant_are_told() -> None:
    """An untrained network whose layers' results vanish, or vary little around something large, gives zeros: it must
    not do so silently."""
    tiny = _scaled(1e-10)
    with pytest.warns(UserWarning, match=r"int8 makes the values of .*\(and \d more\) constant: .* a step is 9.3e-10"):
        q8.quantize(tiny, (X,), calibration=[X], progress=False)
    flat = module(lambda s, x: s.second(s.conv(x) * 1e-3 + 50.0), second=conv(4, 4))
    with pytest.warns(UserWarning, match=r"constant: .* go from 50 to 50, where a step is 0.2.*skip=\["):
        q8.quantize(flat, (X,), calibration=[X], progress=False)


def test_torchao_is_imported_without_what_it_says_about_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Two messages and no others, and only meanwhile."""
    logger = logging.getLogger("torchao")
    with pt2e.quietly():
        logger.warning("Failed to load kernels.so: built for CUDA")
        logger.warning("something of interest")
    logger.warning("Failed to load later.so")
    assert caplog.messages == ["something of interest", "Failed to load later.so"]


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="needs a loader that binds symbols apart")
def test_triton_finds_its_own_symbols_first() -> None:
    """What is imported afterwards is loaded as ever."""
    before = sys.getdlopenflags()
    with pt2e.apart():
        assert sys.getdlopenflags() == before | os.RTLD_DEEPBIND
    assert sys.getdlopenflags() == before
