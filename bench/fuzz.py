"""Fuzzes model files and tuning caches: `python -m bench fuzz`. Every input must load, or fail with an error of this
library, in little time and memory.

Inputs are made from valid files: a small network, also with a dynamic batch and with uint8 images, a call of every
operator in float32 and int8, every epilogue, int16 wherever it is possible, states, and token ids. A quarter of the
inputs have random bytes changed, which the checksum mostly detects. In the others the JSON and tensors are edited and
the checksum is recomputed (`mutations.py`). A model that still loads must be scheduled or refused, then run by the
reference or refused. One in RUNS of those also runs on a device, which must give the same bytes or refuse it. An
input's number determines its content.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.faults import Tried, record
from bench.mutations import edit_member, mutated, other_bytes
from bench.options import Options
from q8ta_wgpu import Session, load
from q8ta_wgpu.commands.arguments import random_inputs
from q8ta_wgpu.commands.case_graphs import graph_of
from q8ta_wgpu.errors import ModelFileError, Q8taError
from q8ta_wgpu.ir.graph import FLOAT32, INT8, INT8X4, INT32, UINT8, Array, Buffer, Graph, Node, TensorType
from q8ta_wgpu.ir.size import Dynamic, Size
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.passes import run_passes
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.passes.lower import lower
from q8ta_wgpu.program.build import build
from q8ta_wgpu.runtime import findings
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.tuning import tuner
from testbed import attention_graphs, epilogue_graphs, int16_graphs, op_graphs, rows_with_scales
from testbed.small import of_any_batch, small_model
from testbed.states import exchanged, written

SECONDS = 5.0
"""Limit of processor time for one input."""

MEMORY = 64
"""Limit of memory that reading a file may allocate, as a multiple of its size, besides WORKING bytes."""

WORKING = 16 << 20
MEASURED = 16
"""Allocations are counted, which is slow, for one input in so many."""

RUNS = 40
STEPS = 10**6
"""Models with more loop steps are not run: hours of numpy are no fault."""

Outcome = str


def corpus() -> list[bytes]:
    """The valid files that the head of this file lists; the small model is the first."""
    graphs = [small_model().graph, *_variants(), *(run_passes(graph) for _, _, graph, _ in int16_graphs.wide_graphs())]
    for op in OPS.values():
        for quantized in (False, True):
            if not op.cases or (quantized and (op.int8 is None or FLOAT32 not in op.operands[0].dtypes)):
                continue
            try:
                graphs.append(run_passes(graph_of(op, op.cases[0], quantized, False)))
            except Q8taError:  # operators that only passes make
                continue
    graphs += attention_graphs.fused_graphs()
    graphs += [graph for graph, _ in rows_with_scales.single_nodes()]
    linear = OPS["linear"]
    graphs += [run_passes(graph_of(linear, case, True, False)) for case in linear.cases if "bits" in case.values]
    graphs += [
        epilogue_graphs.epilogue_graph(linear, linear.cases[0], op_graphs.SETTINGS[0], e)[0]
        for e in epilogue_graphs.EPILOGUES
    ]
    structures = {2: small_model().structure, 1: Structure(0)}
    models = [Model(graph, structures[len(graph.outputs)]) for graph in graphs]
    models += [exchanged(), written(INT8X4), written(FLOAT32), _tokens()]
    files = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            path = Path(folder) / "net.q8ta"
            try:
                model.save(path)
            except ModelFileError:
                continue
            files.append(path.read_bytes())
    return files


def _variants() -> Iterator[Graph]:
    """The small model with a dynamic batch, and with dynamic height and width; a model with a uint8 image."""
    batched, image = small_model().graph.copy(), graph_of(OPS["relu"], OPS["relu"].cases[0], True, False)
    of_any_batch(batched)
    yield batched
    sized, (*_, height, width) = small_model().graph.copy(), batched.types["x"].shape
    here = {"H": height, "W": width}
    sizes = {("x", 2): Size({("H",): 1}, here), ("x", 3): Size({("W",): 1}, here)}
    sized.dynamic = Dynamic({"H": (1, 64), "W": (1, 64)}, sizes)
    yield sized
    (name,) = image.inputs
    image.types[name] = replace(image.types[name], q=UINT8)
    image.values.set(name, given="uint8")
    yield run_passes(image)


def _tokens() -> Model:
    """A model that gathers rows of a table by token ids, and adds them up in a state."""
    rng, graph = np.random.default_rng(0), Graph(["ids", "seen"], ["rows", "counted"])
    table = graph.add_constant("table", rng.integers(-127, 128, (11, 6)).astype(np.int8), INT8)
    scales = graph.add_constant("scales", rng.uniform(0.5, 1.5, 11).astype(np.float32))
    graph.types |= {"ids": TensorType((7, 1), INT32), "seen": TensorType((7, 6)), "counted": TensorType((7, 6))}
    graph.types["rows"] = TensorType((7, 6))
    graph.nodes = [
        Node("embedding", (table, scales, "ids"), "rows", {"from_end": False}),
        Node("add", ("rows", "seen"), "counted", {"alpha": 1.0}),
    ]
    graph.values.set("ids", bounds=(0, 10))
    seen = graph.add_constant("seen.initial", np.zeros((7, 6), np.float32))
    graph.buffers["seen"] = Buffer(seen, "int64")
    return Model(graph, Structure(0))


def tried(data: bytes, folder: Path, counted: bool) -> Model | None:
    """Loads a file; returns None if that raises ModelFileError. Other errors are passed on. Asserts the limit of time,
    and if `counted` that of memory."""
    path = folder / "fuzzed.q8ta"
    path.write_bytes(data)
    started = time.process_time()
    if counted:
        tracemalloc.start()
    try:
        return load(path)
    except ModelFileError as error:
        message = str(error)
    finally:
        if counted:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < MEMORY * len(data) + WORKING, f"{peak} bytes allocated for a file of {len(data)}"
        assert time.process_time() - started < SECONDS
    assert len(message) < 2000 and path.name in message, message
    return None


def used(model: Model, device: Device | None) -> Outcome:
    """Schedules a model and runs it; returns the outcome in words."""
    started = time.process_time()
    try:
        graph = lower(model.graph, BASELINE)
        build(graph, BASELINE, sync_layouts(graph, BASELINE))
    except Q8taError:
        return "loaded, refused for a device"
    work = sum(OPS[n.op].steps(model.graph.call(n)) for n in model.graph.nodes)
    if work + sum(t.numel for t in model.graph.types.values()) > STEPS:
        return "loaded, too large to run here"
    arrays = random_inputs(model)
    expected = Session(model, "reference")(**arrays)
    assert time.process_time() - started < SECONDS
    return "run by the reference" if device is None else _compared(model, arrays, expected, device)


def _compared(model: Model, arrays: dict[str, Array], expected: Any, device: Device) -> Outcome:
    try:
        with Session(model, device) as session:
            found = session(**arrays)
    except Q8taError:
        return "loaded, refused for a device"
    exact = not any(OPS[n.op].tolerance for n in model.graph.nodes)
    for array, wanted in zip(*map(model.structure.flatten, (found, expected)), strict=True):
        assert array.dtype == wanted.dtype and array.shape == wanted.shape
        if exact:
            np.testing.assert_array_equal(array, wanted)
    return "run, the same on the device" if exact else "run on the device"


def files_fuzzed(numbers: range, device: Device | None, runs: int = RUNS) -> Counter[Outcome]:
    """Counts outcomes of inputs. One in `runs` of those that the reference runs also runs on the device."""
    files, outcomes, run = corpus(), Counter[Outcome](), 0
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            try:
                model = tried(mutated(files, number), Path(folder), number % MEASURED == 0)
                outcome = "refused" if model is None else used(model, None)
                if model is not None and outcome.startswith("run"):
                    run += 1
                    outcome = used(model, device) if device is not None and run % runs == 0 else outcome
            except Exception as error:
                raise AssertionError(f"input {number}: {error!r}") from error
            outcomes[outcome] += 1
    return outcomes


def caches_fuzzed(numbers: range) -> Counter[Outcome]:
    """Counts outcomes of changed tuning caches: either all entries are times, or there is a note."""
    outcomes = Counter[Outcome]()
    original = findings.folder
    with tempfile.TemporaryDirectory() as folder:
        findings.folder = lambda: Path(folder)
        try:
            whole = tuner.times_of({})
            assert whole.path is not None
            whole.found = {f"kernel {i}": 1.5 * i + 1 for i in range(20)}
            whole.save()
            data = whole.path.read_bytes()
            for number in numbers:
                drawn = random.Random(number)
                document = json.loads(data)
                if drawn.random() < 0.5:
                    edit_member(document, drawn)
                    whole.path.write_text(json.dumps(document))
                else:
                    whole.path.write_bytes(other_bytes(data, drawn))
                found = tuner.times_of({})
                assert all(isinstance(us, float) and 0 < us < tuner.LONGEST for us in found.found.values())
                assert found.found or found.note or not document.get("found"), number
                outcomes["not used, with a note" if found.note else "used"] += 1
        finally:
            findings.folder = original
    return outcomes


def part_fuzz(options: Options) -> None:
    """Fuzzes `--count` model files, and as many tuning caches."""
    numbers = range(options.count)
    fuzzed: tuple[tuple[str, str, Callable[[], Counter[Outcome]]], ...] = (
        ("a model file is mutated", options.device.name, lambda: files_fuzzed(numbers, options.device)),
        ("a tuning cache is mutated", "host", lambda: caches_fuzzed(numbers)),
    )
    rows = []
    for what, where, does in fuzzed:
        outcomes = does()
        happened = "; ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items()))
        rows.append(Tried(what, where, options.count, happened))
    record(rows)
