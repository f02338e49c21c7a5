"""Compares q8ta.js with onnxruntime-web's WebGPU and WASM in one page of Chromium, on the same ONNX file and input.

Networks are quantized by onnxruntime's static quantization (QDQ, int8, weights by channel). Needs torch, onnx,
onnxruntime, and `npm install onnxruntime-web` where `.ci/browser` puts its packages. Runs are timed in turns, from
typed array to typed array.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.options import Options
from q8ta_wgpu.ir.graph import Array

Made = tuple[Callable[[], Any], tuple[int, ...]]

_CODE = """
    const ort = await import(`${given.url}ort/ort.all.min.mjs`);
    const q8ta = await import(`${given.url}${given.name}/q8ta.js`);
    ort.env.wasm.wasmPaths = `${given.url}ort/`;
    ort.env.logLevel = "error";
    const read = async (file) => await (await fetch(`${given.url}${given.name}/${file}`)).arrayBuffer();
    const x = new Float32Array(await read("x.bin")), found = { threads: crossOriginIsolated }, runs = {};
    const net = await q8ta.load(`${given.url}${given.name}`);
    runs["q8ta.js"] = async () => Object.values({ y: await net.run(x) })[0];
    for (const provider of ["webgpu", "wasm"]) {
        try {
            const model = new Uint8Array(await read("int8.onnx"));
            const session = await ort.InferenceSession.create(model, { executionProviders: [provider] });
            const feeds = () => ({ [session.inputNames[0]]: new ort.Tensor("float32", x, given.shape) });
            runs[provider] = async () => (await session.run(feeds()))[session.outputNames[0]].data;
        } catch (error) {
            found[provider] = String(error).slice(0, 300);
        }
    }
    const first = {}, times = Object.fromEntries(Object.keys(runs).map((name) => [name, []]));
    for (const [name, run] of Object.entries(runs)) {
        try {
            first[name] = Array.from((await run()).slice(0, 2000));
        } catch (error) {
            found[name] = String(error).slice(0, 300);
            delete runs[name];
        }
    }
    for (let i = 0; i < given.repeats; i++) {
        for (const [name, run] of Object.entries(runs)) {
            const start = performance.now();
            await run();
            times[name].push(performance.now() - start);
        }
    }
    net.destroy();
    return { ...found, adapter: net.adapter, times, first };
"""


def networks() -> dict[str, Made]:
    """The networks: the demo's on a small picture, and MobileNetV2 at its usual size."""
    from demo.network import trained
    from testbed.networks import mobilenet_v2

    return {"demo": (trained, (1, 1, 48, 64)), "mobilenet_v2": (mobilenet_v2, (1, 3, 224, 224))}


def part_web(options: Options) -> None:
    """Prints median milliseconds, the signal-to-noise ratio of results against the float network's, and how many
    elements of q8ta.js differ from Python's."""
    from testbed import browsers as web

    package = web.PACKAGES / "node_modules" / "onnxruntime-web" / "dist"
    if lacking := web.missing_chromium() or ("" if package.is_dir() else f"npm's onnxruntime-web in {web.PACKAGES}"):
        sys.exit(f"{lacking} is missing: .ci/browser installs what the tests need, npm the rest")
    with tempfile.TemporaryDirectory() as name, contextlib.closing(web.Chromium()) as chromium:
        folder = Path(name)
        (folder / "blank.html").write_text("<!doctype html><title>blank</title>")
        shutil.copytree(package, folder / "ort", ignore=shutil.ignore_patterns("*.map", "*.js"))
        with web.served(folder) as url:
            chromium.driver.set_script_timeout(580)
            rows: list[dict[str, Any]] = []
            for title, (factory, shape) in networks().items():
                if options.names and title not in options.names:
                    continue
                expected, ours = _written(factory(), shape, folder / title)
                chromium.driver.get(f"{url}blank.html")
                found = chromium.run(_CODE, url=url, name=title, shape=shape, repeats=min(options.count, 5))
                differ = np.count_nonzero(np.array(found["first"]["q8ta.js"], np.float32) != ours[:2000])
                print(f"{title} {list(shape)} on {found['adapter']}, {differ} of q8ta.js differ from the reference")
                rows.append({"network": title, "shape": shape, "error": {}})
                for run in ("q8ta.js", "webgpu", "wasm"):
                    if run in found:
                        print(f"  {run:<8} fails: {found[run]}")
                        continue
                    error = np.abs(np.array(found["first"][run]) - expected[: len(found["first"][run])]).mean()
                    ms = float(np.median(found["times"][run]))
                    print(f"  {run:<8} {ms:9.1f} ms, mean error {error / np.abs(expected).mean():.4f}", flush=True)
                    rows[-1][run] = round(ms)
                    rows[-1]["error"][run] = round(float(error / np.abs(expected).mean()), 3)
            versions = {"onnxruntime-web": json.loads((package.parent / "package.json").read_text("utf-8"))["version"]}
            now = origin("python -m bench web", f"{found['adapter']} through Chromium", ("onnxruntime",))
            now["versions"] |= versions
            write(Path("docs/web.json"), {**now, "unit": "ms", "rows": rows}, "rows")


def _written(module: Any, shape: tuple[int, ...], folder: Path) -> tuple[Array, Array]:
    """Writes a network as an ONNX file and exported for q8ta.js, and an input. Returns the flat results of the float
    network and of the reference."""
    import torch
    from onnxruntime import quantization  # type: ignore[import-not-found, unused-ignore]

    from testbed.networks import example_input

    batches = [example_input(shape, seed) for seed in range(3)]
    if shape[1] == 1:  # luma
        batches = [(x - x.min()) / (x.max() - x.min()) for x in batches]
    x, *calibration = batches
    folder.mkdir()
    (folder / "x.bin").write_bytes(x.numpy().tobytes())
    torch.onnx.export(module, (x,), str(folder / "float.onnx"), dynamo=False, input_names=["x"], output_names=["y"])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self.left = iter([{"x": batch.numpy()} for batch in calibration])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantization.quantize_static(
        str(folder / "float.onnx"),
        str(folder / "int8.onnx"),
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
    )
    model = q8.from_onnx(folder / "int8.onnx")
    exported = folder.with_name("exported")
    q8.export_web(model, exported)
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    shutil.rmtree(exported)
    with torch.no_grad():
        found: Array = module(x).numpy().reshape(-1)
    return found, np.asarray(q8.Session(model, device="reference")(x.numpy())).reshape(-1)
