"""What the tests of web pages share: networks, their exports, and what JavaScript computes from them."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import q8ta_wgpu as q8
from demo.network import trained
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.model.model import Model
from tests.harness import flat
from tests.networks import NETWORKS, example_input

LOAD = """
    const q8ta = await import(given.script);
    const net = await q8ta.load(given.url, given.options ?? {});
"""
RUN = """
    const bytes = async (url) => await (await fetch(url)).arrayBuffer();
    const inputs = {};
    for (const { name, dtype, shape } of net.inputs) {
        const kind = { float32: Float32Array, int8: Int8Array, uint8: Uint8Array }[dtype];
        inputs[name] = new kind(await bytes(`${given.url}/${name}.bin`));
    }
    const flat = (y) => ArrayBuffer.isView(y) ? [y] : Object.values(y ?? {}).flatMap(flat);
    const text = (y) => btoa(Array.from(new Uint8Array(y.buffer), (b) => String.fromCharCode(b)).join(""));
"""


def lacking(what: str) -> None:
    """A failure in CI, elsewhere a skip that says what to install."""
    if what and os.environ.get("CI"):
        pytest.fail(f"CI must have {what}: .ci/browser installs it")
    if what:
        pytest.skip(f"{what} is missing: .ci/browser installs it")


def demo_model() -> Model:
    import torch

    x = torch.rand((1, 1, 18, 22), generator=torch.Generator().manual_seed(0))
    return q8.compile(q8.quantize(trained(), (x,), calibration=[x], progress=False))


def network(name: str) -> tuple[Model, dict[str, Array]]:
    if name == "demo":
        model = demo_model()
        return model, {"x": np.random.default_rng(5).random((1, 1, 18, 22), np.float32)}
    x = example_input((1, 3, 32, 32))
    model = q8.compile(q8.quantize(NETWORKS[name].factory(0.25), (x,), calibration=[x], progress=False))
    return model, {model.graph.inputs[0]: x.numpy()}


def outputs(js: Any, folder: Path, name: str, model: Model, inputs: dict[str, Array], **options: Any) -> list[Array]:
    """What JavaScript computes from arrays, flat, in the order of the model's outputs."""
    model.export_web(folder / name)
    for key, array in inputs.items():
        (folder / name / f"{key}.bin").write_bytes(array.tobytes())
    code = "const y = await net.run(inputs); net.destroy(); return flat(y).map(text);"
    found = js(RUN + code, name, options=options)
    types = [model.graph.types[output] for output in model.graph.outputs]
    dtypes = [model.graph.given(output) for output in model.graph.outputs]
    arrays = zip(found, dtypes, types, strict=True)
    return [np.frombuffer(base64.b64decode(text), dtype).reshape(t.shape) for text, dtype, t in arrays]


def equal(found: list[Array], model: Model, inputs: dict[str, Array]) -> None:
    expected = flat(q8.Session(model, "reference")(**inputs))
    for f, e in zip(found, expected, strict=True):
        assert (f.dtype, f.shape) == (e.dtype, e.shape)
        assert int((f.view(np.uint8) != e.view(np.uint8)).sum()) == 0
