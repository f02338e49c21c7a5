"""Runs all node tests of the package onnx on the reference, also as files of older opsets, and counts those that pass,
are refused, or fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from testbed.onnx.node_cases import FAILED, PASSED, REFUSED, cases, has_form, is_counted, operator_of, outcome
from testbed.onnx.old_opsets import ELSEWHERE, OPSETS, at_opset


def test_all_node_cases() -> None:
    _run(filter(is_counted, cases()))


@pytest.mark.parametrize("version", OPSETS)
def test_all_node_cases_at_an_older_opset(version: int) -> None:
    found = (at_opset(case, version) for case in cases() if is_counted(case) and case.name not in ELSEWHERE)
    _run(case for case in found if case is not None)


def _run(chosen: Iterable[Any]) -> None:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for case in chosen:
        found.setdefault(operator_of(case), []).append((str(case.name), *outcome(case)))
    print()
    total = dict.fromkeys((PASSED, REFUSED, FAILED), 0)
    for name, rows in sorted(found.items()):
        counts = {kind: sum(row[1] == kind for row in rows) for kind in total}
        print(f"{name:30s}", *(f"{count:4d} {kind}" for kind, count in counts.items()))
        if has_form(name):
            total = {kind: total[kind] + count for kind, count in counts.items()}
    print("of operators that have a form:", *(f"{count} {kind}" for kind, count in total.items()))
    assert [row for rows in found.values() for row in rows if row[1] == FAILED] == []
    assert total[PASSED] >= 0.8 * sum(total.values())
