"""The page that checks a browser, in headless Chromium on SwiftShader."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.commands import export_web
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.web import web_folder
from testbed.browsers import Chromium
from tests.web.demo_page import Page, few, written


@pytest.fixture(scope="module")
def folder(model: q8.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(model, tmp_path_factory.mktemp("page"))


def report(page: Page) -> str:
    """What the button copies, when all is checked."""
    deadline = time.monotonic() + 60
    while not page.driver.find_element("id", "copy").is_enabled():
        assert time.monotonic() < deadline, page.text("status")
        time.sleep(0.1)
    return str(page.driver.find_element("id", "report").get_property("value"))


def test_a_right_browser(chromium: Chromium, url: str) -> None:
    page = Page(chromium, f"{url}check/")
    text = report(page)
    assert page.text("status") == "right bytes from all 5 kernels and networks"
    assert text.startswith(
        f"q8ta_wgpu {q8.__version__}: right bytes from all 5 kernels and networks\nbrowser: Mozilla/"
    )
    for line in ("adapter: SwiftShader.*, software", "features: .*timestamp-query.*", "limits: .*maxBufferSize \\d+.*"):
        assert re.search(f"^{line}$", text, re.MULTILINE), text
    number = r"\d+\.\d+"
    assert re.search(
        rf"^the demo's network, .* kB: right bytes, {number} ms a call, {number} ms on the GPU$", text, re.M
    )
    page.driver.find_element("id", "copy").click()
    assert page.status("right") and page.text("copied") == "Copied"
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 360
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert [entry for entry in page.chromium.messages() if entry["level"] == "SEVERE"] == []


def test_faults_are_found(
    chromium: Chromium, url: str, folder: Path, model: q8.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four kernels one computes nothing and one does not compile; of the network one weight is another."""
    original, made = web_folder._program, itertools.count()

    def faulty(*arguments: Any) -> dict[str, Any]:
        program, number = original(*arguments), next(made)
        change = {1: ("{", "{ if (true) { return; } "), 2: ("{", "{ nonsense; ")}.get(number, ("", ""))
        texts = [re.sub(r"(fn main\([^{]*)\{", lambda m: m[1] + change[1], t) for t in program["shaders"]]
        return {**program, "shaders": texts if change[0] else program["shaders"]}

    monkeypatch.setattr(web_folder, "_program", faulty)
    weights = web_folder._weights
    last = itertools.count()

    def other(program: Any) -> Any:
        data, places = weights(program)
        return (data if next(last) < 4 else bytes([data[0] ^ 64]) + data[1:]), places

    monkeypatch.setattr(web_folder, "_weights", other)
    export_web.write_check({"small": model}, folder / "faulty", "0", few)
    names = [sample.kernel for sample in few(BASELINE)]
    page = Page(chromium, f"{url}faulty/")
    text = report(page)
    assert page.text("status") == "WRONG bytes from 2 of 4 kernels and networks"
    assert f"\nWRONG bytes: {names[1]}\nWRONG bytes: small\n" in text
    assert f"\ndid not run: {names[2]}: " in text
    assert re.search(r"^small, .*: WRONG bytes, ", text, re.M)


def test_a_check_without_webgpu(chromium: Chromium, url: str) -> None:
    hide = "Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined })"
    added = chromium.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hide})
    try:
        assert "not checked: this browser has no WebGPU" in report(Page(chromium, f"{url}check/"))
    finally:
        chromium.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
