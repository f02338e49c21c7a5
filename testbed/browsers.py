"""Where the tests run JavaScript: Node with Dawn, and headless Chromium, both on SwiftShader; and a loopback server."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent
PACKAGES = Path(os.environ.get("Q8TA_NODE_PACKAGES", Path(sys.prefix) / "share" / "node"))
"""Where `.ci/browser` puts the packages of package.json."""

SLOW = "use_vulkan_zero_initialize_workgroup_memory_extension"
"""What Dawn clears workgroup memory by, for which SwiftShader compiles seconds."""

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    f"--disable-dawn-features={SLOW}",
    "--enable-webgpu-developer-features",  # timestamps as they are
    # The page is put together on SwiftShader, too: only there WebGPU draws to a canvas.
    "--enable-features=Vulkan",
    "--use-vulkan=swiftshader",
    "--use-angle=swiftshader",
    "--force-color-profile=srgb",
    # No traffic of its own.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-pings",
    "--dns-prefetch-disable",
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    # A camera that shows a moving picture, and nobody to ask.
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--disable-dev-shm-usage",
)


class JavaScriptError(Exception):
    """What JavaScript threw: `code: message`."""


class Engine(Protocol):
    """Something that runs the body of an async function, which sees what is given as `given`."""

    def run(self, code: str, **given: Any) -> Any: ...


class Node:
    """A process of Node with navigator.gpu from Dawn."""

    def __init__(self, icd: Path) -> None:
        environment = {**os.environ, "NODE_PACKAGES": str(PACKAGES), "VK_ADD_DRIVER_FILES": str(icd)}
        self._process = subprocess.Popen(
            [
                "node",
                str(HERE / "driver.mjs"),
                "backend=vulkan",
                "adapter=SwiftShader",
                f"disable-dawn-features={SLOW}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run(self, code: str, **given: Any) -> Any:
        process = self._process
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps({"code": code, "given": given}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        assert line, "Node has ended"
        answer = json.loads(line)
        if "error" in answer:
            raise JavaScriptError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


class Chromium:
    """A page of headless Chromium, by WebDriver."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        for flag in FLAGS:
            options.add_argument(flag)
        options.binary_location = str(chromium())
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(120)

    def run(self, code: str, **given: Any) -> Any:
        body = f"""
            const [given, done] = arguments;
            (async () => {{ {code} }})().then(
                (value) => done({{ value: value ?? null }}),
                (error) => done({{ error: `${{error.code ?? error.name}}: ${{error.message}}` }}),
            );"""
        answer = self.driver.execute_async_script(body, given)
        if "error" in answer:
            raise JavaScriptError(answer["error"])
        return answer["value"]

    def messages(self) -> list[dict[str, Any]]:
        """What the console and the network said since the last call."""
        return list(self.driver.get_log("browser"))  # type: ignore[no-untyped-call, unused-ignore]

    def close(self) -> None:
        self.driver.quit()


def chromium() -> str | None:
    """Chromium's or Chrome's command."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def missing_node() -> str:
    """What running Node with WebGPU lacks; empty if nothing."""
    if shutil.which("node") is None:
        return "node"
    return "" if (PACKAGES / "node_modules" / "webgpu").is_dir() else f"npm's webgpu in {PACKAGES}"


def missing_chromium() -> str:
    """What driving Chromium lacks; empty if nothing."""
    import importlib.util

    lacking = [name for name, there in (
        ("chromium", chromium()),
        ("chromedriver", shutil.which("chromedriver")),
        ("selenium", importlib.util.find_spec("selenium")),
    ) if not there]  # fmt: skip
    return ", ".join(lacking)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        # Isolated pages have shared memory, and so threads.
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A loopback server of a folder: its URL, with a slash at the end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
