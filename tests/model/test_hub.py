"""Files on the Hugging Face Hub, from a server on this machine: each test runs huggingface_hub in a process of its own,
with a cache of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import q8ta_wgpu as q8
from q8ta_wgpu.hub import address_of
from q8ta_wgpu.model.push import with_section
from testbed.onnx.networks import quantized
from testbed.small import small_model
from tests.model.hub_server import Hub, served

ROOT = Path(__file__).parents[2]
REPO = "owner/small"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A server with a model in two versions, of which the first is called v1."""
    with served() as found:
        small_model().save(tmp_path / "net.q8ta")
        data = (tmp_path / "net.q8ta").read_bytes()
        found.repos[REPO] = [{"nets/net.q8ta": data, "README.md": b"by hand"}, {"net.q8ta": data}]
        found.tags[REPO, "v1"] = 0
        yield found


def run(hub: Hub, folder: Path, *arguments: str, offline: bool = False) -> subprocess.CompletedProcess[str]:
    """Runs Python with the server in place of the Hub."""
    own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_any"}
    own |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": str(int(offline)), "PYTHONPATH": str(ROOT)}
    own |= {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=120
    )


def printed(hub: Hub, folder: Path, code: str, offline: bool = False) -> str:
    """What code prints that has imported the library as q8; the error's class and text where it raises one of ours."""
    caught = "except q8.Q8taError as error:\n    print(type(error).__name__, error)"
    done = run(hub, folder, "-c", f"import q8ta_wgpu as q8\ntry:\n    {code}\n{caught}", offline=offline)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_is_loaded_and_stays_in_the_cache(hub: Hub, tmp_path: Path) -> None:
    code = "print(q8.load('hf://owner/small/net.q8ta').inputs)"
    first = printed(hub, tmp_path, code)
    assert first == f"{small_model().inputs}\n"
    asked = len(hub.requests)
    assert printed(hub, tmp_path, code, offline=True) == first
    assert len(hub.requests) == asked


def test_a_revision_is_named_in_either_way(hub: Hub, tmp_path: Path) -> None:
    expected = f"{small_model().inputs}\n"
    for call in ("'hf://owner/small@v1/nets/net.q8ta'", "'hf://owner/small/nets/net.q8ta', revision='v1'"):
        assert printed(hub, tmp_path, f"print(q8.load({call}).inputs)") == expected
    commit = hub.commit(REPO, 0)
    assert printed(hub, tmp_path, f"print(q8.load('hf://owner/small@{commit}/nets/net.q8ta').inputs)") == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("hf://owner/small/nte.q8ta", "its main branch has no file nte.q8ta; it has net.q8ta"),
        ("hf://owner/small@v1/net.q8ta", "revision 'v1' has no file net.q8ta; it has nets/net.q8ta"),
        ("hf://owner/small@v9/net.q8ta", "owner/small has no revision 'v9': give a branch, a tag or a commit"),
        ("hf://owner/other/net.q8ta", "there is no repository owner/other, or it is private: log in"),
        ("hf://owner/gated/net.q8ta", "owner/gated is given on request: ask for it on its page"),
    ],
)
def test_what_cannot_be_had_is_named(hub: Hub, tmp_path: Path, address: str, expected: str) -> None:
    hub.repos["owner/gated"], hub.gated = [{"net.q8ta": b""}], {"owner/gated"}
    found = printed(hub, tmp_path, f"q8.load({address!r})")
    assert found.startswith(f"ModelFileError cannot read {address}: ") and expected in found


def test_without_a_connection_the_cache_is_named(hub: Hub, tmp_path: Path) -> None:
    found = printed(hub, tmp_path, "q8.load('hf://owner/small/net.q8ta')", offline=True)
    assert "net.q8ta at its main branch is not in the cache, and the Hub cannot be reached" in found
    assert "load it once while connected, or give a path" in found


def test_a_damaged_file_is_a_model_file_error(hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO].append({"net.q8ta": hub.repos[REPO][1]["net.q8ta"][:-5]})
    assert printed(hub, tmp_path, "q8.load('hf://owner/small/net.q8ta')").startswith("ModelFileError")


@pytest.mark.parametrize("text", ["hf://small/net.q8ta", "hf://owner/small", "hf://owner/small/", "hf:///a/b/c"])
def test_an_address_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(q8.InputError, match="a file on the Hub is called hf://owner/name/file"):
        q8.load(text)


def test_a_revision_needs_an_address_and_is_one() -> None:
    with pytest.raises(q8.InputError, match="revision='v1' is for files on the Hub"):
        q8.load("net.q8ta", revision="v1")
    with pytest.raises(q8.InputError, match="names revision 'v1', revision= names 'v2'"):
        q8.load("hf://owner/small@v1/net.q8ta", revision="v2")
    with pytest.raises(q8.InputError, match="must be the name of a branch"):
        q8.load("hf://owner/small/net.q8ta", revision=2)  # type: ignore[arg-type]


def test_without_huggingface_hub_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(q8.UnsupportedError, match=r'pip install "q8ta-wgpu\[hub\]"'):
        q8.load("hf://owner/small/net.q8ta")


def test_an_onnx_file_comes_with_its_external_data(hub: Hub, tmp_path: Path) -> None:
    """Read as it is, by every command that takes a file, and quantized."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, c, 4, 4]) for name, c in (("x", 3), ("y", 4)))
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(weights, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "made").mkdir()
    whole = str(tmp_path / "made" / "net.onnx")
    onnx.save(made, whole, save_as_external_data=True, location="net.onnx_data", size_threshold=0)
    hub.repos["owner/onnx"] = [{f"onnx/{file.name}": file.read_bytes() for file in (tmp_path / "made").iterdir()}]
    address = "hf://owner/onnx/onnx/net.onnx"
    assert "Conv" not in printed(hub, tmp_path, f"print(q8.from_onnx({address!r}, revision='main'))")
    np.save(tmp_path / "x.npy", np.ones((1, 3, 4, 4), np.float32))
    files = ["--input", "x.npy", "--output", "y.npy", "--device", "reference"]
    commands = [["show", address], ["import", address, "-o", "made.q8ta"], ["run", address, *files]]
    code = f"from q8ta_wgpu.__main__ import main\nassert [main(words) for words in {commands}] == [0, 0, 0]"
    done = run(hub, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy")[0, :, 0, 0], weights.sum((1, 2, 3)), rtol=1e-5)
    quantized = (
        f"import numpy as np; x = np.ones((1, 3, 4, 4), np.float32); print(q8.quantize({address!r}, calibration=[x]))"
    )
    assert printed(hub, tmp_path, quantized).startswith("Model(")
    hub.repos["owner/onnx"].append({"onnx/net.onnx": (tmp_path / "made" / "net.onnx").read_bytes()})
    assert "has no file onnx/net.onnx_data" in printed(hub, tmp_path, f"q8.from_onnx({address!r})")


def test_a_model_is_pushed_with_a_card(hub: Hub, tmp_path: Path) -> None:
    """Into a new repository; again with other figures; into one whose card somebody wrote."""
    load = "model = q8.load('hf://owner/small/net.q8ta')"
    push = "print(q8.push(model, 'owner/new', accuracy={'top-1': '%s'}))"
    assert printed(hub, tmp_path, f"{load}; {push % '70.0 %'}") == "hf://owner/new/net.q8ta\n"
    files = hub.repos["owner/new"][-1]
    assert files["net.q8ta"] == hub.repos[REPO][1]["net.q8ta"]
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: q8ta-wgpu\n") and "| top-1 | 70.0 % |" in card
    assert f"An int8 network of {len(files['net.q8ta']):,} bytes" in card and str(small_model().report()) in card
    assert 'q8.load("hf://owner/new/net.q8ta")' in card
    assert printed(hub, tmp_path, "print(q8.load('hf://owner/new/net.q8ta').inputs)") == f"{small_model().inputs}\n"

    printed(hub, tmp_path, f"{load}; {push % '71.0 %'}; q8.push(model, 'owner/new', 'second.q8ta')")
    card = hub.repos["owner/new"][-1]["README.md"].decode()
    assert card.count("## net.q8ta") == card.count("## second.q8ta") == card.count("---\nlibrary_name") == 1
    assert "71.0 %" in card and "70.0 %" not in card

    hub.repos["owner/hand"] = [{"README.md": b"# Mine\n\nKeep this.\n"}]
    printed(hub, tmp_path, f"{load}; q8.push(model, 'owner/hand')")
    card = hub.repos["owner/hand"][-1]["README.md"].decode()
    assert card.startswith("# Mine\n\nKeep this.\n") and "## net.q8ta" in card


def test_a_push_that_is_refused_names_the_address(hub: Hub, tmp_path: Path) -> None:
    load = "model = q8.load('hf://owner/small/net.q8ta')"
    hub.url, alive = "http://127.0.0.1:9", hub.url
    net = tmp_path / "net.q8ta"
    found = printed(hub, tmp_path, f"q8.push(q8.load({str(net)!r}), 'owner/new')")
    assert found.startswith("InputError cannot reach hf://owner/new/net.q8ta at its main branch: ")
    hub.url = alive
    for call, expected in (
        ("model, 'new'", "a file on the Hub is called"),
        ("model, 'owner/new', 'net.bin'", "a model file is called .q8ta"),
        ("model, 'owner/new', 7", "a model file is called .q8ta, found 7"),
        ("1, 'owner/new'", "push takes a Model, found int"),
        ("model, 'owner/new', accuracy=70", "accuracy must be figures by name, found 70"),
    ):
        assert printed(hub, tmp_path, f"{load}; q8.push({call})").startswith(f"InputError {expected}")


def test_a_section_replaces_its_own_only() -> None:
    first, second = (address_of(f"hf://owner/name/{name}.q8ta") for name in ("a", "b"))
    card = with_section(with_section("mine", "A", first), "B", second)
    assert with_section(card, "C", first) == card.replace("\nA\n", "\nC\n")


def test_the_code_of_the_quick_start_runs(hub: Hub, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    files = {"net.q8ta": hub.repos[REPO][1]["net.q8ta"], "onnx/model_int8.onnx": quantized("single", "QDQ", "s8s8")}
    hub.repos["owner/name"] = [files]
    done = run(hub, tmp_path, "-c", f"import q8ta_wgpu as q8\n{code}")
    assert done.returncode == 0, done.stderr
    assert "| top-1 | 69.6 % |" in hub.repos["owner/name"][-1]["README.md"].decode()
