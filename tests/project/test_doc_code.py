"""Every Python block of README and docs runs, the blocks of a page in order; pictures in docs are what draws them."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import wgpu
from torch import nn

import q8ta_wgpu as q8
from docs import draw_layouts
from examples.vision import declare_operators
from q8ta_wgpu.__main__ import main
from q8ta_wgpu.ir.layout import Layout
from q8ta_wgpu.runtime.device import Device
from testbed import browsers
from testbed.devices import BACKENDS, lacking
from testbed.onnx.networks import quantized

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if BLOCK.search(path.read_text(encoding="utf-8"))
]


class Net(nn.Module):
    """A network of the reader's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    """What a page may take for granted: a network of the reader's, its inputs, and what they make of it."""
    declare_operators()
    torch.manual_seed(0)
    module = Net().eval()
    batches = [torch.randn(1, 3, 12, 16) for _ in range(2)]
    example_inputs = (batches[0],)
    model = q8.compile(q8.quantize(module, example_inputs, calibration=batches))
    names = {"module": module, "example_inputs": example_inputs, "batches": batches, "model": model, "x": batches[1]}
    return {**names, "q8": q8, "np": np, "torch": torch, "__name__": "__main__"}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, given: dict[str, Any], vulkan: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = dict(given)
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if '"opengl"' in block and "opengl" not in BACKENDS:
            pytest.skip("this machine has no OpenGL compute")
        exec(compile(block, page, "exec"), names)


SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"check": "tests/commands/test_cli.py", "export-web --check": "tests/web/test_check_page.py"}
"""Commands that take every kernel, and the tests that run a part of them."""

COMMANDS = {
    f"{path.name} {line}": line
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for block in SHELL.findall(path.read_text(encoding="utf-8"))
    for line in re.findall(r"^python -m q8ta_wgpu (.*?)(?:\s+#.*)?$", block, re.MULTILINE)
}


@pytest.mark.parametrize("line", [pytest.param(line, id=name) for name, line in COMMANDS.items()])
@pytest.mark.usefixtures("quick_tuning")
def test_the_commands_of_a_page_run(
    line: str,
    given: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if any(line.startswith(slow) for slow in ELSEWHERE):
        assert all((ROOT / file).exists() for file in ELSEWHERE.values())
        return
    monkeypatch.chdir(tmp_path)
    model = given["model"]
    model.save("net.q8ta")
    np.save("x.npy", given["x"].numpy())
    Path("net.onnx").write_bytes(quantized("single", "QDQ", "s8s8"))
    value = "x" if line.startswith("explain") else model.graph.results[0]  # one that is stored, one that is dispatched
    words = shlex.split(line.replace("VALUE", value))
    assert main(words) == 0
    assert capsys.readouterr().out or Path("y.npy").exists()


def test_the_page_of_a_page_runs(given: dict[str, Any], tmp_path: Path) -> None:
    """The HTML of docs/web.md beside the folder that its Python writes, in Chromium."""
    lacking(browsers.missing_chromium())
    (page,) = re.findall(r"^```html\n(.*?)^```", (ROOT / "docs/web.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    q8.export_web(given["model"], tmp_path / "net")
    shown = page.replace("</script>", "window.y = y;\n</script>")
    code = """for (let turn = 0; !window.y && !window.failed && turn < 1000; turn++)
            await new Promise((go) => setTimeout(go, 20));
        return window.y ? [...window.y] : window.failed"""
    watched = (
        "<script>addEventListener('unhandledrejection', (event) => { window.failed = `${event.reason}` })</script>"
    )
    (tmp_path / "index.html").write_text(f"<!doctype html><title>page</title>\n{watched}\n{shown}", encoding="utf-8")
    expected = q8.Session(given["model"], "reference")(np.zeros((1, 3, 12, 16), np.float32))
    with browsers.served(tmp_path) as url, contextlib.closing(browsers.Chromium()) as chromium:
        chromium.driver.get(f"{url}index.html")
        found = chromium.run(code)
    assert isinstance(found, list), found
    np.testing.assert_array_equal(np.array(found, np.float32), expected.ravel())


PUBLIC = {name: getattr(q8, name) for name in q8.__all__}
DOCUMENTED = [
    (f"{name}.{attribute}".strip("."), inspect.getdoc(found) or "")
    for name, owner in PUBLIC.items()
    for attribute, found in [("", owner), *(vars(owner).items() if isinstance(owner, type) else ())]
    if callable(found)
]


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in DOCUMENTED if ">>>" in text])
def test_the_examples_of_a_docstring_run(
    text: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = onnx.ModelProto.FromString(quantized("single", "QDQ", "s8s8"))
    file.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(file, "net.onnx")
    with q8.Session(given["model"], "vulkan") as session:
        names = {**given, "session": session, "asyncio": asyncio, "wgpu": wgpu}
        shown = doctest.DocTestParser().get_examples(text)
        for example in (each for each in shown if not each.options.get(doctest.SKIP)):  # what needs the network
            exec(compile(example.source, "docstring", "exec"), names)


def test_the_picture_of_layouts_is_what_draws_it() -> None:
    assert draw_layouts.TARGET.read_text(encoding="utf-8") == draw_layouts.drawing()
    words = draw_layouts.words_of(Layout.PACKED_INT8_4C)
    assert (words[:4] == words[0]).all() and (words[4:] == words[0] + 1).all()
