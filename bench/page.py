"""Times the first load of a page: `python -m bench page --models DIR`, into docs/page.json.

Chromium with empty caches opens a page that loads a network by q8ta.js and runs it once. Then it opens the page again.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.models import read
from bench.options import Options

NAMES = ("demo", "mobilenet_v2")
DEMO = (1, 1, 48, 64)
"""The size of the demo's picture."""

_CODE = """
    const began = performance.now();
    const { load } = await import(`${given.url}${given.name}/q8ta.js`);
    const net = await load(`${given.url}${given.name}`);
    const loaded = performance.now();
    await net.run(new Float32Array(given.size));
    const ran = performance.now();
    const found = { load: loaded - began, first: ran - loaded, total: ran - began, adapter: net.adapter };
    net.destroy();
    return found;
"""


def part_page(options: Options) -> None:
    """Prints seconds of loading and of the first run, in a new browser and once more, and writes docs/page.json."""
    from testbed import browsers

    if lacking := browsers.missing_chromium():
        sys.exit(f"{lacking} is missing: .ci/browser installs what the tests need")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, browsers.served(Path(name)) as url:
        (Path(name) / "blank.html").write_text("<!doctype html><title>blank</title>", encoding="utf-8")
        for network in options.names or NAMES:
            model = read(options.models, network)
            model = model.reshape(DEMO) if network == "demo" else model
            q8.export_web(model, Path(name) / network)
            (size,) = (t.numel for t in model.inputs.values())
            with contextlib.closing(browsers.Chromium()) as chromium:
                chromium.driver.set_script_timeout(580)
                for state in ("cold", "again"):
                    chromium.driver.get(f"{url}blank.html")
                    found = chromium.run(_CODE, url=url, name=network, size=size)
                    times = {stage: round(found[stage] / 1e3, 2) for stage in ("load", "first", "total")}
                    print(f"{network}, {state}: " + ", ".join(f"{key} {s} s" for key, s in times.items()), flush=True)
                    rows.append({"page": f"{network}, {state}", **times})
    adapter = f"{found['adapter']} through Chromium"
    write(Path("docs/page.json"), {**origin("python -m bench page", adapter), "unit": "s", "rows": rows}, "rows")
