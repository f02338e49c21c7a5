"""onnx's own node tests. All of them are in `python -m bench onnx`."""

from __future__ import annotations

from testbed.onnx.node_cases import FAILED, PASSED, cases, is_counted, operator_of, outcome

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger")

EVERY = 6
"""Of the cases, by name, each so manieth is taken, and all of quantized operators."""


def test_cases_of_onnx_pass_or_are_refused_by_name() -> None:
    chosen = sorted(filter(is_counted, cases()), key=lambda case: str(case.name))
    chosen = [c for i, c in enumerate(chosen) if i % EVERY == 0 or operator_of(c).startswith(QUANTIZED)]
    found = [(case, *outcome(case)) for case in chosen]
    assert [(case.name, why) for case, kind, why in found if kind == FAILED] == []
    quantized = [(c.name, why) for c, kind, why in found if operator_of(c).startswith(QUANTIZED) and kind != PASSED]
    assert quantized == []
    assert sum(kind == PASSED for _, kind, _ in found) >= 0.7 * len(found)
