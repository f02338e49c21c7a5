"""In headless Chromium, on SwiftShader: exports byte for byte, and the demo's page driven as a person would."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import q8ta_wgpu as q8
from demo import photos
from q8ta_wgpu.ir.graph import Array
from testbed.browsers import Chromium
from tests.web.demo_page import SIZE, Page, written
from tests.web.exports import LOAD, equal, network, outputs, reads_parts


@pytest.fixture(scope="module")
def folder(model: q8.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(model, tmp_path_factory.mktemp("page"))


@pytest.fixture
def js(chromium: Chromium, url: str) -> Callable[..., Any]:
    """Runs code behind LOAD on the export of a name, in a blank page."""
    chromium.driver.get(f"{url}blank.html")

    def run(code: str, name: str, **given: Any) -> Any:
        return chromium.run(LOAD + code, url=f"{url}{name}", script=f"{url}landscape/q8ta.js", **given)

    return run


# --- networks ---


@pytest.mark.parametrize("name", ["mobilenet_v2", "image encoder", "unet", "onnx file"])
def test_bytes_of_networks(name: str, js: Callable[..., Any], folder: Path) -> None:
    model, inputs = network(name)
    equal(outputs(js, folder, name, model, inputs, verify=False), model, inputs)
    assert reads_parts(folder / name) == (name == "unet")


SOURCES = {
    "ImageBitmap": "bitmap",
    "ImageData": "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)",
    "canvas": "canvas",
    "OffscreenCanvas": "offscreen",
    "img": "await (async () => { const i = new Image(); i.src = given.picture; await i.decode(); return i; })()",
    "VideoFrame": "new VideoFrame(bitmap, { timestamp: 0 })",
}


def test_pictures_have_the_bytes_of_python(js: Callable[..., Any], folder: Path, url: str, model: q8.Model) -> None:
    """Read by the GPU from every kind of image, luma and scale as Pillow's and numpy's; and what is drawn of them."""
    small = photos.load("coffee.png").convert("RGB").resize(SIZE)
    small.save(folder / "small.png")
    x = photos.to_input(photos.luma(small))
    expected: Array = q8.Session(model.reshape(x.shape), "reference")(x)
    code = """
        const picture = await (await fetch(given.picture)).blob();
        const bitmap = await createImageBitmap(picture, { colorSpaceConversion: "none" });
        const canvas = document.createElement("canvas");
        const offscreen = new OffscreenCanvas(bitmap.width, bitmap.height);
        [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
        for (const target of [canvas, offscreen]) target.getContext("2d").drawImage(bitmap, 0, 0);
        const text = (y) => btoa(Array.from(new Uint8Array(y.buffer), (b) => String.fromCharCode(b)).join(""));
        const AsyncFunction = (async () => {}).constructor;
        const found = {};
        for (const [name, source] of Object.entries(given.sources)) {
            const image = await new AsyncFunction("bitmap", "canvas", "offscreen", "given", `return ${source}`)(
                bitmap, canvas, offscreen, given);
            found[name] = text(await net.run({ x: image }));
        }
        const drawn = [];
        const values = new Float32Array(bitmap.width * bitmap.height);
        for (const [image, colours] of [[bitmap, false], [bitmap, true], [values, true]]) {
            const shown = document.createElement("canvas");
            document.body.append(shown);
            await net.draw(image, shown, { colours });
            drawn.push(shown.toDataURL());
        }
        return [found, drawn];
    """
    found, drawn = js(code, "landscape", picture=f"{url}small.png", sources=SOURCES)
    values = {name: np.frombuffer(base64.b64decode(text), np.float32) for name, text in found.items()}
    wrong = {name: int((y.view(np.uint32) != expected.reshape(-1).view(np.uint32)).sum()) for name, y in values.items()}
    assert wrong == dict.fromkeys(SOURCES, 0)
    grey, coloured, array = (np.asarray(Image.open(io.BytesIO(base64.b64decode(d.split(",")[1])))) for d in drawn)
    luma = np.asarray(photos.to_image(expected)).astype(int)
    assert np.abs(grey[..., 0].astype(int) - luma).max() <= 1
    assert np.abs(coloured.astype(float)[..., :3] @ (0.299, 0.587, 0.114) - luma).mean() < 4
    assert np.ptp(coloured[..., :3].astype(int), axis=2).mean() > 40
    assert not np.ptp(array[..., :3].astype(int), axis=2).any(), "an array has no colours, whatever was drawn before"


def test_wrong_pictures(js: Callable[..., Any]) -> None:
    code = """
        const tried = (work) => work().then(() => "", (error) => `${error.code}: ${error.message}`);
        const shown = document.createElement("canvas");
        shown.getContext("2d");
        const right = new ImageData(...given.size);
        return [await tried(() => net.run(new ImageData(5, 4))), await tried(() => net.draw(right, shown))];
    """
    size, context = js(code, "landscape", size=SIZE)
    assert size.startswith("input: input x must be an image of 22 x 18 pixels, found 5 x 4; createImageBitmap(")
    assert context == "input: the canvas has a context of another kind than webgpu"


# --- the page ---


@pytest.fixture
def page(chromium: Chromium, url: str) -> Iterator[Page]:
    chromium.driver.set_window_size(1000, 900)
    opened = Page(chromium, url)
    opened.status("Move the slider")
    yield opened
    chromium.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_visit(page: Page, folder: Path, tmp_path: Path, url: str) -> None:
    """The example, a portrait, a file that is none, and the example again; nothing is asked of elsewhere."""
    assert page.size() == [22, 18, 66, 54]
    assert page.text("time").endswith(" ms") and float(page.text("time").split()[0]) > 0
    assert "SwiftShader" in page.text("adapter")
    assert page.text("bytes") == "equal to Python's"
    size = sum((folder / "landscape" / f"cpu.{end}").stat().st_size for end in ("json", "bin"))
    assert page.text("model") == f"{size / 1000:.0f} kB, int8"
    page.driver.execute_script("""
        globalThis.said = [];
        const status = document.getElementById("status");
        new MutationObserver(() => said.push(status.textContent)).observe(status, { childList: true });
    """)
    portrait = tmp_path / "portrait.jpg"
    photos.load("astronaut.png").convert("RGB").resize((300, 500)).save(portrait)
    page.choose(portrait)
    deadline = time.monotonic() + 60
    while page.size() != [18, 22, 54, 66]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    said = page.driver.execute_script("return said")
    assert said[0].startswith("Loading") and said[-2:] == ["Enlarging", "Move the slider to compare"]
    (tmp_path / "notes.txt").write_text("no picture")
    page.choose(tmp_path / "notes.txt")
    assert page.status("notes.txt") == "notes.txt is no picture that this browser can read"
    page.driver.find_element("id", "example").click()
    page.status("Move the slider")
    assert page.size() == [22, 18, 66, 54]
    asked = page.driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(asked) >= 8 and all(name.startswith(url) for name in asked)
    severe = [entry for entry in page.chromium.messages() if entry["level"] == "SEVERE"]
    assert severe == []


def test_the_keyboard_alone(page: Page) -> None:
    """Tab reaches slider and buttons in the order they are seen; arrows move the slider."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    reached = []
    for _ in range(4):
        ActionChains(page.driver).send_keys(Keys.TAB).perform()
        reached.append(page.driver.switch_to.active_element.get_attribute("id"))
    assert reached == ["split", "file", "camera", "example"]
    before = page.shown()
    split = page.driver.find_element("id", "split")
    split.send_keys(Keys.ARROW_LEFT * 30)
    style = "return getComputedStyle(document.getElementById('stage')).getPropertyValue('--split')"
    assert page.driver.execute_script(style) == "20%"
    assert np.abs(np.asarray(before, int) - np.asarray(page.shown(), int)).mean() > 0.3


def test_the_camera(page: Page) -> None:
    """Chromium's made-up one: pictures keep coming until it is switched off."""
    camera = page.driver.find_element("id", "camera")
    camera.click()
    page.status("Camera")
    assert camera.get_attribute("aria-pressed") == "true"
    times = {page.text("time")}
    deadline = time.monotonic() + 30
    while len(times) < 3:
        assert time.monotonic() < deadline
        times.add(page.text("time"))
    camera.click()
    assert camera.get_attribute("aria-pressed") == "false"


def test_light_and_dark_and_a_phone(page: Page) -> None:
    """Both schemes have legible text, and nothing is wider than a phone's screen."""
    levels = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        levels.append(np.asarray(page.shown().convert("L"))[5:20, 5:20].mean())
    assert levels[0] > 230 and levels[1] < 40
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    assert page.driver.execute_script("return document.documentElement.scrollWidth") <= 360
    buttons = page.driver.find_elements("css selector", "#controls > *")
    assert all(button.size["height"] >= 44 for button in buttons)


def test_without_webgpu(chromium: Chromium, url: str) -> None:
    hide = "Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined })"
    added = chromium.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hide})
    try:
        text = Page(chromium, url).status("this browser has no WebGPU")
        assert "take a current Chrome, Edge, Firefox or Safari" in text
    finally:
        chromium.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
