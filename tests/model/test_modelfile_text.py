"""The JSON of model files: what is no JSON, or would cost much to read, is refused; the checksum comes first."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.errors import ModelFileError
from q8ta_wgpu.model import encoding
from q8ta_wgpu.model import file as modelfile
from testbed.modelfiles import MODEL, read, refused, same, sealed, unpacked
from testbed.standins import failing


def test_json_that_is_not_json(saved: bytes, tmp_path: Path) -> None:
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    for old, new, expected in (
        ('"zero":3', '"zero":NaN', "NaN"),
        ('"scale":0.05', '"scale":Infinity', "Infinity"),
        ('"scale":0.05', '"scale":1e999', "a scale must be"),
        ('"scale":0.05', '"scale":' + "1" * 5000, ""),
        ('"zero":3', '"zero":3,"zero":4', "twice"),
        ('"notes":[]', '"notes":' + "[" * 100_000, ""),
        ('"notes":[]', '"notes":["\\ud800"]', "printable"),
    ):
        assert old in text
        message = refused(sealed(text.replace(old, new, 1), constants), tmp_path)
        assert expected in message, message
    assert same(read(sealed(text, constants), tmp_path), MODEL)


def test_checksum_is_checked_first(saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, constants = unpacked(saved)
    good = sealed(json.dumps(data, separators=(",", ":")), constants)
    assert same(read(good, tmp_path), MODEL)
    failing(monkeypatch, modelfile, "decode", AssertionError("the text was parsed"))
    message = refused(good.replace(b"small.y", b"small.z"), tmp_path)
    assert "has changed since model.save wrote it, as its checksum is of other contents: copy it again" in message


COSTLY = {
    "keys given twice": ('"notes":[]', '"notes":{' + ",".join(f'"{i}":0' for i in range(25_000)) + ',"24999":0}'),
    "empty objects": ('"notes":[]', '"notes":[' + "{}," * 3_000_000 + "{}]"),
    "empty lists": ('"notes":[]', '"more":[' + "[]," * 3_000_000 + "[]]"),
    "short texts": ('"notes":[]', '"notes":[' + '"ab",' * 2_000_000 + '"ab"]'),
    "many keys": ('"notes":[]', '"notes":{' + ",".join(f'"{i:x}":0' for i in range(1_000_000)) + "}"),
    "a long name": ('"notes":[]', '"' + "a" * (modelfile.MAX_TEXT + 1) + '":[]'),
}


@pytest.mark.parametrize("name", COSTLY)
def test_text_that_would_cost_much(name: str, saved: bytes, tmp_path: Path) -> None:
    """Refused within the time, and no more than a few copies of the file's bytes are held."""
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    old, new = COSTLY[name]
    assert old in text
    forged = sealed(text.replace(old, new, 1), constants)
    message = refused(forged, tmp_path)
    assert "checksum" not in message
    path = tmp_path / "read.q8ta"
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            q8.load(path)
        assert tracemalloc.get_traced_memory()[1] < 5 * len(forged) + (16 << 20)
    finally:
        tracemalloc.stop()


def test_text_as_large_as_allowed(saved: bytes, tmp_path: Path) -> None:
    """What parsing itself may cost, at its worst."""
    data, constants = unpacked(saved)
    text = json.dumps(data, separators=(",", ":"))
    members = ",".join(f'"{i:x}":0' for i in range(encoding.MAX_PARTS - 2000))
    path = tmp_path / "read.q8ta"
    path.write_bytes(sealed(text.replace('"notes":[]', f'"notes":{{{members}}}', 1), constants))
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="'notes' must be a list"):
            q8.load(path)
        assert tracemalloc.get_traced_memory()[1] < 80 << 20
    finally:
        tracemalloc.stop()
