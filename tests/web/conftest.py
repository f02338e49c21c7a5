"""What tests in browsers and under Node share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.web import web_folder
from testbed import browsers as engines
from testbed.browsers import Chromium, served
from testbed.browsers import Node as NodeJS
from testbed.devices import lacking, node_js
from testbed.small import small_input
from tests.web.exports import LOAD, MODEL, demo_model


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Where a module's folder is served."""
    with served(folder) as address:
        yield address


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    lacking(engines.missing_chromium())
    started = Chromium()
    yield started
    started.close()


@pytest.fixture(scope="module")
def node() -> Iterator[NodeJS]:
    with node_js() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server serves: the small model in `small`, of which tests copy."""
    made = tmp_path_factory.mktemp("web")
    (made / "package.json").write_text('{"type": "module"}')
    web_folder.export_web(MODEL, made / "small")
    (made / "small" / "x.bin").write_bytes(small_input().tobytes())
    return made


@pytest.fixture(scope="module")
def model() -> q8.Model:
    """The network of the demo's pages."""
    return demo_model()


@pytest.fixture
def js(node: NodeJS, folder: Path, url: str) -> Any:
    """Runs code behind LOAD on the export of a name."""

    def run(code: str, name: str = "small", **given: Any) -> Any:
        return node.run(LOAD + code, url=f"{url}{name}", script=str(folder / "small" / "q8ta.js"), **given)

    return run
