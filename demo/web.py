"""`make web`: pages that enlarge photographs and write text by int8 networks in the browser, built and served."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import sys
from collections.abc import Callable, Iterable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import q8ta_wgpu as q8
from demo import photos
from demo.__main__ import build
from demo.decoder import CONTEXT
from demo.network import trained
from demo.text import Tokenizer
from examples import generate
from q8ta_wgpu.commands.example import Sample, samples
from q8ta_wgpu.commands.export_web import write_check
from q8ta_wgpu.ir.target import Target

PAGE, TEXT_PAGE = Path(__file__).with_name("page"), Path(__file__).with_name("text_page")
OUT = Path("out/web")
SIZE = (320, 240)
"""Width and height of the small picture; a portrait has them turned."""

CHECKED = (128, 96)
"""Width and height of the picture that the page of checks runs the network on."""


def write(
    model: q8.Model,
    folder: Path,
    size: tuple[int, int] = SIZE,
    checked: tuple[int, int] = CHECKED,
    kernels: Callable[[Target], Iterable[Sample]] = samples,
) -> None:
    """The page in a folder: its own files, the network for both ways to hold a picture, an example, and the page that
    checks a browser by the network for pictures of a size, and by kernels."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in PAGE.iterdir():
        shutil.copy(file, folder)
    for name, (width, height) in (("landscape", size), ("portrait", size[::-1])):
        q8.export_web(model.reshape((1, 1, height, width)), folder / name)
    photos.load("coffee.png").convert("RGB").save(folder / "photo.png")
    width, height = checked
    networks = {f"the demo's network, {width}x{height}": model.reshape((1, 1, height, width))}
    write_check(networks, folder / "check", q8.__version__, kernels)


def write_text(model: q8.Model, tokenizer: Tokenizer, folder: Path) -> None:
    """The page that writes text in a folder: its own files, the decoder for one token, and the pairs of its tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*TEXT_PAGE.iterdir(), PAGE / "style.css"):
        shutil.copy(file, folder)
    q8.export_web(model.reshape((1,), (1,)), folder / "step")
    (folder / "tokens.json").write_text(json.dumps({"merges": tokenizer.merges, "context": CONTEXT}))


def main() -> None:
    """Builds the pages and serves them to this machine until it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m demo.web", description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--build", action="store_true", help=f"write {OUT} and serve nothing")
    options = parser.parse_args()
    write(build(trained()), OUT)
    write_text(*generate.build(), OUT / "text")
    print(f"{OUT}: for any static server")
    if options.build:
        return
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(OUT))
    try:
        server = ThreadingHTTPServer(("127.0.0.1", options.port), handler)
    except OSError as error:
        sys.exit(f"cannot serve at port {options.port}: {error.strerror}; python -m demo.web --port 8001 takes another")
    print(f"http://localhost:{server.server_port}/ (Ctrl+C ends)", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
