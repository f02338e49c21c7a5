"""The folder of the demo's page, and its pages as a person sees them in Chromium."""

from __future__ import annotations

import io
import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

import q8ta_wgpu as q8
from demo import web
from q8ta_wgpu.commands import example
from q8ta_wgpu.commands.example import Sample
from q8ta_wgpu.ir.target import Target
from testbed.browsers import Chromium

SIZE = (22, 18)
"""Width and height of the small picture in these tests."""


def few(target: Target) -> Iterator[Sample]:
    """Kernels that stand for all, which compile for a minute."""
    return itertools.islice(example.samples(target), 4)


def written(model: q8.Model, made: Path) -> Path:
    """The folder, with the demo's pages of a model for pictures of SIZE, and a blank page."""
    web.write(model, made, SIZE, checked=SIZE, kernels=few)
    (made / "blank.html").write_text('<!doctype html><title>blank</title><link rel="icon" href="data:,">')
    return made


class Page:
    """The demo's page, as a person sees it."""

    def __init__(self, chromium: Chromium, url: str) -> None:
        self.chromium, self.driver = chromium, chromium.driver
        self.driver.get(url)

    def text(self, name: str) -> str:
        return str(self.driver.find_element("id", name).text)

    def status(self, start: str, seconds: float = 60) -> str:
        """Waits until the status begins so."""
        end = time.monotonic() + seconds
        while not (found := self.text("status")).startswith(start):
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    def size(self) -> list[int]:
        """Width and height of the small picture and of the enlarged one."""
        return [int(number) for number in re.findall(r"\d+", self.text("size"))]

    def choose(self, path: Path) -> None:
        self.driver.find_element("id", "file").send_keys(str(path))

    def shown(self) -> Image.Image:
        return Image.open(io.BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
