"""Networks in web pages: q8ta.js under Node (Dawn, SwiftShader), byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu import Session
from q8ta_wgpu.ir.arithmetic import dequantize
from q8ta_wgpu.ir.graph import BOOL, INT8X4, INT16X4, INT32, Graph, Node, QParams, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.web import web_folder
from testbed import int16_graphs, op_graphs, rows_with_scales
from testbed.browsers import JavaScriptError
from testbed.small import of_any_batch, small_input
from testbed.states import calls, compiled, written
from tests.passes.test_join_linears import compiled as of_parts
from tests.quantizing import data
from tests.session.test_row_indices import counting, items_of
from tests.web.exports import MODEL, RUN, copied, equal, network, outputs, reads_parts


@pytest.mark.parametrize(
    "options",
    [{}, {"packed": False}, {"kind": "gpu"}, {"kind": "gpu", "packed": False}],
    ids=["cpu", "cpu emulated", "gpu", "gpu emulated"],
)
def test_bytes_of_each_program(options: dict[str, Any], js: Any, folder: Path) -> None:
    inputs = {"x": small_input(3)}
    equal(outputs(js, folder, "bytes", MODEL, inputs, **options), MODEL, inputs)


@pytest.mark.parametrize("name", ["demo", "unet", "text encoder", "segmentation"])
def test_bytes_of_networks(name: str, js: Any, folder: Path) -> None:
    model, inputs = network(name)
    equal(outputs(js, folder, name, model, inputs, verify=False), model, inputs)
    assert reads_parts(folder / name) == (name in ("unet", "segmentation"))


def bordered(given: str) -> Model:
    """Two int8 inputs of odd sizes, added, the first given as int8, uint8 or bools: with nothing in float. The result
    is uint8 where the first is."""
    graph = Graph(inputs=["a", "b"], outputs=["y"])
    graph.values.set("a", given="" if given == "int8" else given)
    q = QParams(1.0, -128)
    graph.types = {name: TensorType((2, 5, 3, 7), INT8X4, q) for name in ("a", "b", "y")}
    graph.types["a"] = TensorType((2, 5, 3, 7), INT8X4, BOOL if given == "bool" else q)
    attrs = {"a_multiplier": 1 << 14, "b_multiplier": -(1 << 13), "shift": 14, "lo": -128, "hi": 127}
    graph.nodes = [Node("q8ta_add", ("a", "b"), "y", attrs)]
    return Model(graph, Structure({"list": [0]}, {0: "uint8"} if given == "uint8" else {}))


@pytest.mark.parametrize("given", ["int8", "uint8", "bool"])
def test_bytes_of_what_is_given(given: str, js: Any, folder: Path) -> None:
    model, generator = bordered(given), op_graphs.rng("web", given)
    inputs = {name: op_graphs.extremes(generator, (2, 5, 3, 7)) for name in model.graph.inputs}
    inputs["a"] = inputs["a"] > 0 if given == "bool" else inputs["a"].view(model.graph.array_dtype("a"))
    equal(outputs(js, folder, "bordered", model, inputs), model, inputs)


def test_bytes_of_integers(js: Any, folder: Path) -> None:
    """Given and made; a page refuses what is out of bounds."""
    graph = Graph(inputs=["a"], outputs=["y", "z"])
    graph.values.set("a", bounds=(-70_000_000, 2**31 - 1))
    graph.types = {name: TensorType((2, 5), INT32) for name in ("a", "y")} | {"z": TensorType((2, 5))}
    attrs = {"factor": -1.0, "term": 3.0}
    graph.nodes = [Node("affine", ("a",), "y", attrs), Node("gt_scalar", ("a",), "z", {"number": 16777217.0})]
    model = Model(graph, Structure({"list": [0, 1]}))
    inputs = {"a": np.array([[0, 1, -1, 2**24 + 1, 2**24 + 2], [2**31 - 1, -70_000_000, 5, 6, 7]], np.int32)}
    equal(outputs(js, folder, "integers", model, inputs), model, inputs)
    code = "return await net.run(BigInt64Array.from(new Array(10).fill(-70000001n))).catch((e) => e.message);"
    assert "input a holds -70000001, and must be in [-70000000, 2147483647]" in js(code, "integers")


def test_bytes_of_what_reads_a_part_of_a_buffer(js: Any, folder: Path) -> None:
    model, inputs = of_parts((256, 512), 1), {"x": data(1, 64).numpy()}
    found = outputs(js, folder, "parts", model, inputs)
    dispatches = json.loads((folder / "parts" / "gpu.json").read_bytes())["dispatches"]
    assert [d["offsets"][0] for d in dispatches if "offsets" in d] == [256]
    equal(found, model, inputs)


@pytest.mark.parametrize("name", ["permute 0", "requantize 0", "elu 0", "elu 2"])
def test_bytes_of_int16(name: str, js: Any, folder: Path) -> None:
    graph, inputs = next(
        (graph, inputs) for found, _, graph, inputs in int16_graphs.wide_graphs() if f"{found} ".startswith(f"{name} ")
    )
    assert graph.types[graph.inputs[0]].dtype == INT16X4
    model = Model(run_passes(graph), Structure({"list": [0]}))
    equal(outputs(js, folder, "wide", model, inputs), model, inputs)


STATES = """
    const array = async (i) => new Float32Array(await (await fetch(`${given.url}/x${i}.bin`)).arrayBuffer());
    const runs = async (...places) => {
        const found = [];
        for (const i of places) found.push([...(await net.run(await array(i)))]);
        return found;
    };
    const first = await runs(0, 1), saved = await net.state();
    const measured = net.verify && (await net.verify());
    const later = await runs(2, 3), last = await net.state();
    net.setState(saved);
    const again = await runs(2, 3);
    net.reset();
    const anew = await runs(0, 1);
    let refused = "";
    try { net.setState({ ...saved, d: saved.h }); } catch (error) { refused = error.message; }
    const shown = (state) => Object.entries(state).map(([name, values]) => [name, [...values]]);
    net.destroy();
    return { first, later, again, anew, measured, refused, last: shown(last), names: net.states.map((s) => s.name) };
"""


COUNTED = """
    const array = async (i) => new Float32Array(await (await fetch(`${given.url}/x${i}.bin`)).arrayBuffer());
    const found = [], refused = [];
    const tried = async (i) => {
        try { found.push([...(await net.run(await array(i)))]); } catch (error) { refused.push(error.message); }
    };
    for (const i of [0, 1, 2, 3]) await tried(i);
    const kept = [...(await net.state()).at];
    net.setState({ at: new Int32Array([5]) });
    await tried(3);
    await tried(3);
    net.reset();
    for (const i of [0, 1, 2, 3]) await tried(i);
    net.destroy();
    return { found, refused, kept };
"""


def test_a_full_cache_refuses_the_next_run_in_the_page(js: Any, folder: Path) -> None:
    model, items = counting(), items_of(4)
    web_folder.export_web(model, folder / "counting")
    for i, x in enumerate(items):
        (folder / "counting" / f"x{i}.bin").write_bytes(x.numpy().tobytes())
    found = js(COUNTED, "counting")
    session = Session(model, "reference")
    expected = [session(x) for x in items[:3]]
    first = list(expected)
    session.state["at"] = np.array(5)
    expected += [session(items[3]), *first]
    np.testing.assert_array_equal(np.float32(found["found"]), expected)
    row = "and the run takes row 7 of 'cache'"
    assert found["kept"] == [6]
    assert [f"state at holds {at}, {row}" in text for at, text in zip((6, 7, 6), found["refused"], strict=True)] == [
        True
    ] * 3


def test_bytes_of_rows_with_scales(js: Any, folder: Path) -> None:
    unfused, inputs = rows_with_scales.graph_of(1, *rows_with_scales.AFTER[3], INT16X4)
    model = Model(run_passes(unfused), Structure({"list": [0]}))
    equal(outputs(js, folder, "scales", model, inputs), model, inputs)


def test_rows_are_written_in_the_page(js: Any, folder: Path) -> None:
    model = written(INT8X4)
    inputs = {name: np.ones(t.shape, np.dtype(t.array_dtype)) for name, t in model.inputs.items()}
    inputs["place"] = np.array([2, -1, 0, 9, 4, 4], np.float32)
    equal(outputs(js, folder, "written", model, inputs), model, inputs)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_states_stay_in_the_page(kind: str, js: Any, folder: Path) -> None:
    model, items = compiled("cell"), [x.numpy() for (x,) in calls("cell", 0, 4)]
    web_folder.export_web(model, folder / "cell")
    for i, x in enumerate(items):
        (folder / "cell" / f"x{i}.bin").write_bytes(x.tobytes())
    found = js(STATES, "cell", options={"kind": kind})
    session = Session(model, "reference")
    expected = [session(x)[0] for x in items]
    np.testing.assert_array_equal(np.float32(found["first"] + found["later"]), expected)
    assert (found["again"], found["anew"]) == (found["later"], found["first"])
    assert found["measured"] is True and found["names"] == ["h", "c"]
    assert "no state d; its states are: h, c" in found["refused"]
    for (name, stored), state in zip(found["last"], model.graph.states, strict=True):
        q = model.graph.types[state.read].q
        assert q is not None
        np.testing.assert_array_equal(dequantize(np.array([stored]), q), session.state[name])


def test_a_dynamic_batch_is_fixed_by_the_export(js: Any, folder: Path) -> None:
    graph = MODEL.graph.copy()
    of_any_batch(graph)
    model = Model(graph, MODEL.structure).reshape((3, *graph.types["x"].shape[1:]))
    x = np.concatenate([small_input(1), small_input(2)[:1]])
    equal(outputs(js, folder, "three", model, {"x": x}), model, {"x": x})
    with pytest.raises(
        JavaScriptError, match=r"must have 630 elements, shape \(3, 5, 6, 7\), found 420; model.reshape"
    ):
        js("await net.run(new Float32Array(420));", "three")


def test_the_sample_is_verified(js: Any, folder: Path) -> None:
    """load runs a made-up input, and refuses a device whose outputs have another hash."""
    assert js("return await net.verify();") is True
    made = copied(folder, "unequal")
    text = json.loads((made / "cpu.json").read_text())
    text["sample"] = "0" * 64
    data = json.dumps(text).encode()
    (made / "cpu.json").write_bytes(data)
    net = json.loads((made / "net.json").read_text())
    net["programs"]["cpu"]["program"] = web_folder._described("cpu.json", data)
    (made / "net.json").write_text(json.dumps(net))
    with pytest.raises(JavaScriptError, match=r"bytes: .*SwiftShader.* computes other bytes than the reference"):
        js("", "unequal")
    assert js("return await net.verify();", "unequal", options={"verify": False}) is False


def test_runs_overlap_and_networks_share_a_device(js: Any) -> None:
    """Eight runs of two networks at once, one of which is destroyed afterwards."""
    code = """
        const other = await q8ta.load(given.url);
        const xs = [1, 2, 3, 4].map((i) => new Float32Array(net.inputs[0].shape.reduce((a, b) => a * b)).fill(i / 4));
        const alone = [];
        for (const x of xs) alone.push(flat(await net.run({ x })).map(text).join());
        const both = [net, other].flatMap((n) => xs.map((x) => n.run({ x })));
        const found = (await Promise.all(both)).map((y) => flat(y).map(text).join());
        other.destroy();
        const after = flat(await net.run(xs[0])).map(text).join();
        net.destroy();
        return [alone, found.slice(0, 4), found.slice(4), after];
    """
    alone, first, second, after = js(RUN + code)
    assert alone == first == second
    assert len(set(alone)) == 4
    assert after == alone[0]


def test_time(js: Any) -> None:
    timing = js(RUN + "return await net.time(inputs, { repeats: 2 });")
    assert timing["ms"] > 0 and len(timing["runs"]) == 2
    assert [d["kernel"] for d in timing["dispatches"]][:2] == ["quantize", "q8ta_conv2d.implicit_registers_8x16"]


def test_progress(js: Any, folder: Path) -> None:
    code = """
        const seen = [];
        await (await q8ta.load(given.url, { onprogress: (p) => seen.push(p) })).destroy();
        return seen;
    """
    seen = js(code)
    for stage, total in (("download", sum((folder / "small" / f"cpu.{end}").stat().st_size for end in ("json", "bin"))),
                         ("compile", 5)):  # fmt: skip
        done = [p["done"] for p in seen if p["stage"] == stage]
        assert done == sorted(done) and done[-1] == total == seen[-1 if stage == "compile" else 0]["total"]
