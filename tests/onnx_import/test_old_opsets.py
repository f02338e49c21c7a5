"""Files of opsets 7 and later: operators whose inputs were attributes, where they run and where they are computed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.onnx_import.fold import COMPUTED, Folder
from testbed.onnx.networks import Net
from testbed.onnx.node_cases import FAILED, PASSED, cases, has_form, is_counted, operator_of, outcome
from testbed.onnx.old_opsets import ELSEWHERE, OPSETS, OldCase, at_opset

EVERY = 7
"""Every seventh case is taken, and all of operators whose form changed since opset 7. bench/bench_onnx.py runs all."""

CHANGED = (
    "Clip",
    "Pad",
    "Slice",
    "Split",
    "Squeeze",
    "Unsqueeze",
    "TopK",
    "ReduceSum",
    "ReduceMax",
    "Softmax",
    "LogSoftmax",
)


def chosen(version: int, counted: bool) -> list[OldCase]:
    found = sorted(cases(), key=lambda case: str(case.name))
    found = [c for c in found if not counted or is_counted(c)]
    found = [c for i, c in enumerate(found) if i % EVERY == 0 or operator_of(c) in CHANGED]
    old = (at_opset(c, version) for c in found if c.name not in ELSEWHERE)
    return [case for case in old if case is not None]


@pytest.mark.parametrize("version", OPSETS)
def test_cases_of_onnx_at_older_opsets_pass_or_are_refused_by_name(version: int) -> None:
    found = [(c, *outcome(c)) for c in chosen(version, True) if has_form(operator_of(c))]
    assert [(case.name, why) for case, kind, why in found if kind == FAILED] == []
    assert sum(kind == PASSED for _, kind, _ in found) >= 0.75 * len(found) > 10


@pytest.mark.parametrize("version", OPSETS)
def test_constants_are_computed_as_the_opset_of_the_file_says(version: int) -> None:
    """The evaluator of the package ignored the opset, so that Unsqueeze of a shape was refused below 13."""
    count = 0
    for case in chosen(version, False):
        node = case.model.graph.node[0]
        feeds, expected = case.data_sets[0]
        if node.op_type not in COMPUTED or not all(isinstance(a, np.ndarray | np.generic) for a in (*feeds, *expected)):
            continue
        names = (port.name for port in case.model.graph.input)
        arrays: dict[str, Any] = dict(zip(names, map(np.asarray, feeds), strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the package's Mod
            given = [arrays[name] if name else None for name in node.input]
            found = Folder().run(node, given, {"": version})
        for y, e in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, e, 1e-3, 1e-5, err_msg=case.name)
        count += 1
    assert count > 20


def flatten(opset: int) -> bytes:
    """torch's x.view(x.size(0), -1)."""
    net = Net((2, 3, 4))
    batch = net.add("Gather", net.add("Shape", "x"), net.constant(np.array(0)))
    if opset < 13:
        wide = net.add("Unsqueeze", batch, axes=[0])
    else:
        wide = net.add("Unsqueeze", batch, net.constant(np.array([0])))
    shape = net.add("Concat", wide, net.constant(np.array([-1])), axis=0)
    return bytes(net.model(net.add("Reshape", "x", shape), opset=opset).SerializeToString())


@pytest.mark.parametrize("opset", [11, 13])
def test_a_size_becomes_part_of_a_shape(opset: int) -> None:
    assert q8.from_onnx(flatten(opset)).outputs[0].shape == (2, 12)


def test_resize_of_opset_10_takes_the_element_before() -> None:
    """Its coordinates were those of opset 11."""
    import onnxruntime

    net = Net((1, 1, 1, 4))
    y = net.add("Resize", "x", net.constant(np.array([1, 1, 1, 1.75], np.float32)), mode="nearest")
    model = net.model(y, opset=10)
    model.ir_version = 7
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    found = q8.Session(q8.from_onnx(model.SerializeToString()), device="reference")(x)
    np.testing.assert_array_equal(found, expected)
