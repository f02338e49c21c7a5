"""Numbers that were tuned, and by which bits are decided, stand in one file. Each has a guard.

A number by which the quantizer decides is tuned if another one could be defended. Such numbers stand in
`q8ta_wgpu/quantization/tuned.py`, and `GUARDS` there names for each what fails without it: a test, or a network of
`bench/suite`. All other numbers that modules of `quantization/` and `frontend/` name are listed here, with their kind:
why they decide nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from q8ta_wgpu.quantization import tuned

ROOT = Path(__file__).parents[2]
ROOMS = ("q8ta_wgpu/quantization", "q8ta_wgpu/frontend")
TUNED = "q8ta_wgpu/quantization/tuned.py"
SUITE = ROOT / "bench/suite/tasks.py"
MOST = 15

KINDS = {
    "cost": "how long something takes on a device, measured or estimated",
    "effort": "how much is computed or tried: more takes longer, and finds the same more exactly",
    "format": "what float32, int8, a kernel or a file format holds",
    "memory": "bytes that are held at once",
    "published": "of the paper that the code names",
    "words": "what a message says of what was decided, or that it is said",
}
"""Why a number decides nothing, by kind."""

OTHERS = {
    "frontend/calibrate/equalize.py": {"_MOST": "memory", "_WHOLE": "format"},
    "frontend/calibrate/faults.py": {"_LAST_BITS": "words"},
    "frontend/calibrate/threads.py": {"_SMALL": "effort"},
    "frontend/export/decompose.py": {"MOST_WRITTEN": "effort", "MOST_COMPARED": "memory"},
    "frontend/export/modes.py": {"_users": "effort"},
    "frontend/export/rules.py": {"_ROWS_BY_DIFFERENCES": "format"},
    "frontend/export/states.py": {"_FAR": "format", "_NEAR": "format"},
    "frontend/importer/integer_ranges.py": {"EXACT": "format", "LARGEST": "format"},
    "frontend/kept.py": {"_KEPT": "memory", "_LARGEST": "memory", "_RUNS": "memory"},
    "frontend/pt2e/specs.py": {"_EPS_IN_TRAINING": "format"},
    "frontend/quantize_module.py": {"_STEPS": "words"},
    "frontend/rounded.py": {"_AT_ONCE": "memory"},
    "frontend/run.py": {"_SIGNS": "effort"},
    "quantization/comparison.py": {"LOSS": "words", "_NEAR": "words", "_LISTED": "words"},
    "quantization/four_bits.py": {"_ENDS": "effort", "_AT_ONCE": "memory"},
    "quantization/items.py": {"INPUTS": "effort", "ITEMS": "effort", "MANY": "effort", "_WORK": "effort"},
    "quantization/limits.py": {"SHORT": "words"},
    "quantization/parts.py": {"_NOTHING": "format", "_LARGE": "format", "_LEAST": "format"},
    "quantization/planned.py": {"SHORTEST_ROW": "memory"},
    "quantization/precision.py": {"RUNS": "effort"},
    "quantization/ranges.py": {
        **dict.fromkeys(("OF_ZEROS", "_FAR_BELOW", "LARGEST_WEIGHT"), "format"),
        **dict.fromkeys(("_CANDIDATES", "_TRIED", "_BINS", "_PARTS", "_FARTHEST"), "effort"),
        "_AT_ONCE": "memory",
    },
    "quantization/recurrent.py": {"_HIDDEN": "format", "_STATE": "format"},
    "quantization/runner.py": {"_KEPT": "memory"},
    "quantization/simulated.py": {"_MANY": "effort"},
    "quantization/steps.py": {"_PARTS": "cost", "_LITTLE": "cost"},
    "quantization/transforms.py": {"_NEAR": "format"},
    "quantization/weight_rounding.py": {
        **dict.fromkeys(("LARGEST", "LARGEST_OF_4_BITS", "_SAMPLES", "_LEAST", "_CALLS"), "effort"),
        **dict.fromkeys(("DAMPING", "_GOLDEN"), "published"),
        "_LOST": "format",
        "_BLOCK": "effort",
    },
}
"""By file and name, the kind of every other number."""


def numbers(path: Path) -> list[str]:
    """The names that a module gives to numbers, or to tuples of numbers, in the order of the file. What is computed
    from named numbers is none."""
    found = []
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.Assign(targets=targets, value=value) if _is_number(value):
                found += [node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if _is_number(value):
                found.append(name)
    return found


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant():
            return type(value.value) in (int, float)
        case ast.UnaryOp():
            return _is_number(value.operand)
        case ast.BinOp():
            return _is_number(value.left) and _is_number(value.right)
        case ast.Tuple():
            return bool(value.elts) and all(map(_is_number, value.elts))
    return False


def _files() -> Iterator[str]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT))


def test_tuned_numbers_are_few_and_each_has_a_guard() -> None:
    found = numbers(ROOT / TUNED)
    assert len(found) <= MOST, found
    assert list(tuned.GUARDS) == found


@pytest.mark.parametrize("name", tuned.GUARDS)
def test_a_guard_exists(name: str) -> None:
    file, _, test = tuned.GUARDS[name].partition("::")
    text, line = ((ROOT / file).read_text(), f"def {test}(") if test else (SUITE.read_text(), f'    "{file}": Task(')
    assert re.search(f"^{re.escape(line)}", text, re.MULTILINE), tuned.GUARDS[name]


@pytest.mark.parametrize("file", [file for file in _files() if file != TUNED])
def test_no_other_number_decides(file: str) -> None:
    listed = OTHERS.get(file.removeprefix("q8ta_wgpu/"), {})
    found = numbers(ROOT / file)
    assert set(found) == set(listed), f"{file}: a tuned number belongs to {TUNED}, with a guard; others are listed here"
    assert set(listed.values()) <= set(KINDS)


def test_numbers_of_all_forms_are_found(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        'A = 10**0.05\nB, C = 1e-3, -2\nD: int = 3\nE = A * 2\nF = (1.5, 2)\nG = ("a", 1)\nH = 1 << 20\n'
    )
    assert numbers(tmp_path / "some.py") == ["A", "B", "C", "D", "F", "H"]
