"""What q8ta.js refuses, under Node: damaged files, wrong inputs, devices too small or lost; and what it leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from q8ta_wgpu.ir.graph import INT8X4, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.web import web_folder
from testbed.browsers import JavaScriptError
from testbed.browsers import Node as NodeJS
from tests.web.exports import RUN, copied

DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "a byte of the weights": (
        "cpu.bin",
        lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
        "damaged: .*SHA-256",
    ),
    "truncated weights": ("cpu.bin", lambda data: data[:-1], r"damaged: .*cpu.bin is damaged.*: \d+ bytes, expected"),
    "a letter of the program": ("cpu.json", lambda data: data.replace(b"main", b"mein"), "damaged: .*SHA-256"),
    "truncated net.json": ("net.json", lambda data: data[:-9], "damaged: .*is no JSON"),
    "another file": ("net.json", lambda data: b"[]", "damaged: .*is no net.json"),
    "a later version": ("net.json", lambda data: data.replace(b'"version":2', b'"version":3'), "version: .*export it"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_files_are_refused(kind: str, js: Any, folder: Path) -> None:
    name, change, message = DAMAGE[kind]
    made = copied(folder, "damaged")
    (made / name).write_bytes(change((folder / "small" / name).read_bytes()))
    with pytest.raises(JavaScriptError, match=message):
        js("", "damaged")
    shutil.rmtree(made)


def test_a_missing_file(js: Any) -> None:
    with pytest.raises(JavaScriptError, match=r"download: http://127.0.0.1:\d+/nowhere/net.json cannot be read: .*404"):
        js("", "nowhere")


INPUTS = {
    "{}": "input: the network takes x float32[2, 5, 6, 7]; missing: x",
    "{ x: inputs.x, z: inputs.x }": "input: the network has no input z: the network takes x float32[2, 5, 6, 7]",
    "{ x: inputs.x.slice(1) }": "input: input x must have 420 elements, shape (2, 5, 6, 7), found 419; model.reshape",
    "{ x: new Int32Array(420) }": "input: input x must be a Float32Array of shape (2, 5, 6, 7), found Int32Array: conv",
    "{ x: [1, 2] }": "input: input x must be a Float32Array of shape (2, 5, 6, 7), found Array",
    "{ x: null }": "input: input x must be a Float32Array of shape (2, 5, 6, 7), found object",
    "{ x: { width: 7, height: 6 } }": "input: input x takes no image: it is float32 (2, 5, 6, 7), images fill (1, 1 or",
}


def test_wrong_inputs(js: Any) -> None:
    """And the network works on afterwards; a Float64Array is taken."""
    code = """
        const found = [];
        for (const wrong of given.wrong) {
            found.push(await net.run(eval(`(${wrong})`)).then(() => "", (e) => `${e.code}: ${e.message}`));
        }
        const y = flat(await net.run(inputs)).map(text);
        return [found, y, flat(await net.run({ x: Float64Array.from(inputs.x) })).map(text)];
    """
    found, y, wide = js(RUN + code, wrong=list(INPUTS))
    for text, expected in zip(found, INPUTS.values(), strict=True):
        assert text.startswith(expected)
    assert y == wide


def test_a_limit_that_is_missing(js: Any, folder: Path) -> None:
    made = copied(folder, "large")
    net = json.loads((made / "net.json").read_text())
    net["programs"]["cpu"]["limits"]["maxStorageBuffersPerShaderStage"] = 1000
    (made / "net.json").write_text(json.dumps(net))
    with pytest.raises(
        JavaScriptError, match=r"limit: the network needs maxStorageBuffersPerShaderStage 1000, SwiftShader.*offers"
    ):
        js("", "large")


def test_no_webgpu(node: NodeJS, folder: Path, url: str) -> None:
    code = """
        const q8ta = await import(given.script), found = [];
        const { gpu } = navigator;
        const tried = () => q8ta.load(given.url).then(() => "", (e) => `${e.code}: ${e.message}`);
        const blocked = { requestAdapter: async () => null };
        for (const [there, secure] of [[undefined, true], [undefined, false], [blocked, true]]) {
            Object.defineProperty(navigator, "gpu", { value: there, configurable: true, writable: true });
            globalThis.isSecureContext = secure;
            found.push(await tried());
        }
        delete globalThis.isSecureContext;
        navigator.gpu = gpu;
        return found;
    """
    missing, plain, blocked = node.run(code, url=f"{url}small", script=str(folder / "small" / "q8ta.js"))
    assert missing.startswith("webgpu: this browser has no WebGPU")
    assert plain.startswith("webgpu: WebGPU needs a secure page: open this one by https, or from localhost")
    assert blocked.startswith("adapter: ")


def test_a_lost_device(js: Any) -> None:
    """Runs in flight and later ones say so; the network opens again, on a new device."""
    code = """
        const adapter = await navigator.gpu.requestAdapter();
        const device = await adapter.requestDevice();
        const own = await q8ta.load(given.url, { device });
        const before = flat(await own.run(inputs)).map(text);
        const flying = own.run(inputs).then(() => "came", (e) => e.code);
        device.destroy();
        const said = [await flying];
        said.push(await own.run(inputs).then(() => "", (e) => `${e.code}: ${e.message}`));
        await own.reopen();
        return [before, said, flat(await own.run(inputs)).map(text)];
    """
    before, (flying, later), after = js(RUN + code)
    assert flying in ("came", "lost")
    assert "lost: the GPU device was lost" in later and "await net.reopen()" in later
    assert before == after


def test_a_network_that_was_destroyed(js: Any) -> None:
    with pytest.raises(JavaScriptError, match="closed: this network was destroyed"):
        js(RUN + "net.destroy(); await net.run(inputs);")


def test_nothing_is_left_on_a_device(js: Any, folder: Path) -> None:
    """What was made on the page's own device is destroyed: after runs that fail, outputs drawn in turns on a canvas,
    and destroy, also while a run is in flight."""
    picture = TensorType((1, 3, 5, 7), INT8X4, QParams(0.01, 0))
    graph = Graph(inputs=["a", "b"], outputs=["y", "z"], types=dict.fromkeys(("a", "b", "y", "z"), picture))
    attrs = {"a_multiplier": 1 << 14, "b_multiplier": 1 << 13, "shift": 14, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_add", ("a", "b"), "y", attrs), Node("q8ta_add", ("b", "a"), "z", attrs)]
    web_folder.export_web(Model(graph, Structure({"list": [0, 1]})), folder / "pictures")
    code = """
        const device = await (await navigator.gpu.requestAdapter()).requestDevice();
        const live = new Set(), staging = new Set(), said = [];
        for (const name of ["createBuffer", "createTexture"]) {
            const make = device[name].bind(device);
            device[name] = (descriptor) => {
                const made = make(descriptor), destroy = made.destroy.bind(made);
                live.add(made);
                if (descriptor.usage & 1) staging.add(made);
                made.destroy = () => (live.delete(made), destroy());
                return made;
            };
        }
        const own = await q8ta.load(given.url, { device });
        const inputs = { a: new Int8Array(105), b: new Int8Array(105) };
        await own.run(inputs);
        const before = live.size;
        for (const made of staging) made.mapAsync = async () => { throw new Error("out of luck"); };
        said.push(await own.run(inputs).then(() => "", (e) => `${e.code}: ${e.message}`));
        await own.run(inputs);
        const failed = live.size;
        const context = {
            configure({ format }) { this.format = format; },
            unconfigure() {},
            getCurrentTexture: () => (context.texture ??= device.createTexture(
                { size: [7, 5], format: context.format, usage: GPUTextureUsage.RENDER_ATTACHMENT })),
        };
        const canvas = { width: 7, height: 5, getContext: () => context };
        const drawn = [];
        for (let i = 0; i < 4; i++) {
            await own.draw(inputs, canvas, { output: "yz"[i % 2] });
            drawn.push(live.size);
        }
        const flying = own.run(inputs).catch((e) => e.code);
        own.destroy();
        said.push(await flying);
        context.texture.destroy();
        return [before, failed, drawn, said, live.size];
    """
    before, failed, drawn, said, left = js(code, "pictures")
    assert failed == before
    assert drawn == drawn[:1] * 4
    assert said == ["device: out of luck", "closed"]
    assert left == 0
