"""bench compare: two commits in turns, ratios of each round, and a limit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import compare
from bench.__main__ import main

ROOT = Path(__file__).parents[2]
ROW = {"quantize": 1.0, "compile": 0.1, "open": 0.2, "call": 0.01, "result": "same"}


@pytest.mark.starts_python
def test_a_commit_runs_in_its_own_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The reference of a copy in which a result is another: it is measured, and seen to differ."""
    for name in ("q8ta_wgpu", "kernels", "passes"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    session = tmp_path / "q8ta_wgpu" / "session" / "session.py"
    text = session.read_text(encoding="utf-8")
    assert text.count("return self._begin(args, kwargs).result()") == 1
    changed = text.replace("self._begin(args, kwargs).result()", "1 + self._begin(args, kwargs).result()")
    session.write_text(changed, encoding="utf-8")
    theirs, ours = (compare.ran(tree, ["transformer"], "reference") for tree in (tmp_path, ROOT))
    assert all(ours["transformer"][step] > 0 for step in ("quantize", "compile", "open", "call"))
    text, slower = compare.report([theirs], [ours], None)
    assert text.endswith("results that differ: transformer") and not slower
    assert compare.report([ours], [ours], 1.0) == (compare.report([ours], [ours], None)[0], False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("call", "status"), [(0.011, 0), (0.013, 1)])
def test_a_slower_call_passes_the_limit(
    call: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first run of each side warms caches; the median of the others counts."""
    turns: list[Path] = []
    monkeypatch.setattr(compare, "unpacked", lambda commit, folder: None)

    def ran(tree: Path, names: list[str], adapter: str | None) -> compare.Run:
        turns.append(tree)
        slow = {} if tree != ROOT else {"call": 1.0 if len(turns) < 3 else call}
        return {"residual": {**ROW, **slow}}

    monkeypatch.setattr(compare, "ran", ran)
    with pytest.raises(SystemExit) as ended:
        main(["compare", "OTHER", "--rounds", "3", "--limit", "1.2"])
    assert ended.value.code == status
    assert [tree == ROOT for tree in turns] == [True, False, False, True] * 2
    out = capsys.readouterr().out
    assert bool(re.search(r"residual +call .* 1\.30 .*more than 1\.2", out)) == bool(status)
    assert "residual      quantize      1000.000    1000.000    1.00" in out


def test_a_commit_that_is_not_there_is_named(tmp_path: Path) -> None:
    if shutil.which("git") is None or subprocess.run(["git", "-C", ROOT, "rev-parse"], check=False).returncode:
        pytest.skip("this is no clone")
    with pytest.raises(SystemExit, match=r"compare: fatal: not a valid object name.*nothing"):
        compare.unpacked("nothing-of-this-name", tmp_path)
