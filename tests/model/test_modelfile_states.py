"""Model files whose states were edited by hand: each is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.modelfiles import forge, refused
from testbed.states import exchanged

Edit = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d["buffers"].update({f"h{i}": "a.initial" for i in range(9)}), "states are read and written, found"),
        (lambda d: d["buffers"].update(a="nothing"), "begins with nothing, which is no constant"),
        (lambda d: d["buffers"].update(a="c.initial"), "state a is read as"),
        (lambda d: d["buffers"].update(a=7), "a name must be"),
        (lambda d: d.update(buffers=[]), "'buffers' must be a dict"),
        (lambda d: d["whole"].update(a="float64"), "buffer a is float64"),
        (lambda d: d["whole"].update(x="int64"), "buffer x is int64"),
        (lambda d: d["outputs"].reverse(), "is read as|positions"),
        (lambda d: d["inputs"].pop(), "nothing before it writes|is read as|neither input"),
        (lambda d: d.update(batched=["a"]), "dimension 0 of a must be one of an input"),
        (lambda d: d.pop("whole"), "'whole' is missing"),
    ],
)
def test_a_hostile_file_of_states_is_refused(edit: Edit, message: str, tmp_path: Path) -> None:
    exchanged().save(tmp_path / "net.q8ta")
    data = forge((tmp_path / "net.q8ta").read_bytes(), lambda found, _: edit(found))
    assert re.search(message, refused(data, tmp_path))
