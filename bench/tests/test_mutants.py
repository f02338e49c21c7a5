"""Faults that `bench mutants` makes: what it says of one that is found and one that is not, and which tests it runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench import mutants
from bench.mutants import DATA, KINDS, ROOMS, ROOT, Mutant, another, arguments_of, drawn, is_there, run


@pytest.mark.starts_python
def test_a_fault_is_found_or_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sums.py").write_text("def total(a, b):\n    return a + b\n")
    tests = "@pytest.mark.parametrize('n', [1], ids=['a b'])\ndef test_it(n):\n    assert sums.total(n, 1) == 2\n"
    (tmp_path / "test_sums.py").write_text(f"import pytest, sums\n{tests}")
    fault = Mutant("model", "sign", "sums.py", 2, "    return a + b", "    return a - b")
    arguments = [["test_sums.py"]]
    assert (run(fault, arguments, tmp_path), fault.by) == ("found", "test_sums.py::test_it[a b]")
    assert run(replace(fault, new="    return b + a"), arguments, tmp_path) == "survived"
    with monkeypatch.context() as patched:
        patched.setattr(mutants, "LIMIT", 2)
        endless = replace(fault, new="    while True: a += b")
        assert run(endless, arguments, tmp_path) == "hangs"
        assert endless.by == "test_sums.py::test_it[a b]"
    assert run(replace(fault, harmless="the same"), arguments, tmp_path) == "harmless"
    assert (tmp_path / "sums.py").read_text() == "def total(a, b):\n    return a + b\n"
    renamed = replace(fault, by="test_sums.py::test_as_it_was_called")
    assert run(renamed, [[renamed.by], ["test_sums.py"]], tmp_path) == "found"
    with pytest.raises(AssertionError, match="selects nothing"):
        run(fault, [["test_nothing.py"]], tmp_path)


def test_the_rule_draws_ten_of_each_room() -> None:
    found = drawn()
    assert [m.room for m in found] == [room for room in ROOMS for _ in range(10)]
    assert {m.kind for m in found} <= set(KINDS)
    assert len({(m.path, m.old) for m in found}) == 60
    assert all(m.old != m.new for m in found)


def test_a_fault_whose_line_is_gone_gives_way_to_another_one() -> None:
    found = drawn()
    lost = replace(found[3], old=f"{found[3].old} # changed")
    assert is_there(found[3], ROOT) and not is_there(lost, ROOT)
    with_lost = [*found[:3], lost, *found[4:]]
    assert another(lost, with_lost) == found[3]
    assert another(lost, found) not in found


def test_every_fault_of_the_list_has_tests(tmp_path: Path) -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert len(data["mutants"]) == 60
    assert all(arguments_of(Mutant(**m), data["tests"], tmp_path) for m in data["mutants"])


def test_the_nearest_tests_of_a_fault_run_first(tmp_path: Path) -> None:
    """What found it, files with its name, files that import it from the smallest on, then the lists."""
    folder = tmp_path / "tests" / "runtime"
    folder.mkdir(parents=True)
    for name, text in {
        "test_dawn.py": "",
        "test_large.py": "from q8ta_wgpu.runtime import adapters, dawn\n" * 9,
        "test_small.py": "from q8ta_wgpu.runtime.dawn import Dawn\n",
        "test_other.py": "from q8ta_wgpu.runtime.dawned import x\nfrom q8ta_wgpu.session import dawn\n",
    }.items():
        (folder / name).write_text(text)
    fault = Mutant("runtime", "sign", "q8ta_wgpu/runtime/dawn.py", 1, "a + b", "a - b", by="tests/test_a.py::test_it")
    lists = {"": ["tests"], "q8ta_wgpu/runtime/": ["tests/runtime -k 'not slow'"], "kernels/": ["tests/kernels"]}
    assert arguments_of(fault, lists, tmp_path) == [
        ["tests/test_a.py::test_it"],
        ["tests/runtime/test_dawn.py"],
        ["tests/runtime/test_small.py", "tests/runtime/test_large.py"],
        ["tests/runtime", "-k", "not slow"],
        ["tests"],
    ]
