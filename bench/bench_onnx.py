"""Runs all node tests of the package onnx on the reference, and counts those that pass, are refused, or fail."""

from __future__ import annotations

from testbed.onnx.node_cases import FAILED, PASSED, REFUSED, cases, has_form, is_counted, operator_of, outcome


def test_all_node_cases() -> None:
    found: dict[str, list[tuple[str, str, str]]] = {}
    for case in filter(is_counted, cases()):
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
    assert total[PASSED] >= 0.85 * sum(total.values())
