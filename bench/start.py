"""Times what a user does first, with default options, each in a process of its own: `python -m bench start`.

Every network starts with empty cache folders, of the driver's shaders and of this library: cold. Then a new process
starts with what those folders hold: warm. Seconds of each stage:

 import    Python's modules, with numpy and, for a module, torch
 quantize  a module with eight random inputs; compile: of the result. Without torch, both are left out
 load      reading and verifying the saved model instead
 open      `q8.Session(model)`: the engine, the adapter and its probes, planning, pipelines, weights
 first     the first call; total: all of these from the start of Python on
 second    another session in the same process
 timed     the milliseconds of the first and of the third `session.time`, where there are timestamps
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # a process that is measured imports this file, and then what a user would
    from bench.options import Options

FILES = ("resnet50", "resnet50:32", "mobilenet_v2", "vit_b16", "decoder")
"""Names of saved models, with a batch. Those that are not in the folder are left out."""

MODULES = ("mobilenet_v2", "resnet50")
STAGES = ("import", "quantize", "compile", "load", "open", "first", "total", "second", "timed", "third")
FIGURES = Path("docs/start.json")


class _Laps:
    """Seconds of stages that follow each other. The first one began with the process."""

    def __init__(self, began: float) -> None:
        self.stages: dict[str, float] = {}
        self._before = self._began = began

    def lap(self, stage: str) -> None:
        """Ends a stage."""
        now = time.time()
        self.stages[stage], self._before = now - self._before, now
        self.stages["total"] = now - self._began


def of_file(laps: _Laps, file: str, batch: int) -> Any:
    """A saved model, of some batch."""
    import q8ta_wgpu as q8

    load, _ = q8.load, q8.Session
    laps.lap("import")
    model = load(file)
    if batch > 1:
        model = model.reshape(*((batch, *t.shape[1:]) for t in model.inputs.values()))
    laps.lap("load")
    return model


def of_module(laps: _Laps, name: str) -> Any:
    """A network of torchvision's shape with random weights, quantized with eight inputs."""
    import torch

    import q8ta_wgpu as q8

    quantize, compile, _ = q8.quantize, q8.compile, q8.Session
    laps.lap("import")
    from testbed.networks import NETWORKS

    module = NETWORKS[name].factory().eval()
    inputs = [torch.randn(NETWORKS[name].shape) for _ in range(8)]
    laps.lap("module")
    exported = quantize(module, (inputs[0],), calibration=inputs)
    laps.lap("quantize")
    model = compile(exported)
    laps.lap("compile")
    return model


def started(laps: _Laps, model: Any, adapter: str | None) -> dict[str, float]:
    """Seconds of every stage of the rest of a start in this process."""
    from q8ta_wgpu import DeviceError, Session

    rng = np.random.default_rng(0)
    session = Session(model, adapter)
    laps.lap("open")
    inputs = [
        rng.normal(size=t.shape).astype(t.array_dtype)
        if t.array_dtype == np.float32
        else np.zeros(t.shape, t.array_dtype)
        for t in model.inputs.values()
    ]
    session(*inputs)
    laps.lap("first")
    stages = {**laps.stages, "total": laps.stages["total"] - laps.stages.get("module", 0.0)}
    Session(model, adapter).close()
    laps.lap("second")
    stages["second"] = laps.stages["second"]
    try:
        first, _, third = (session.time(*inputs).run_ms for _ in range(3))
    except DeviceError:  # no timestamps
        return stages
    return {**stages, "timed": first, "third": third}


def in_process(call: str, adapter: str | None, caches: str) -> dict[str, float]:
    """Seconds of every stage of a start in a new process, with its caches in a folder."""
    folders = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
    code = (
        f"from bench.start import *; laps = _Laps({time.time()}); model = {call}; "
        f"print(json.dumps(started(laps, model, {adapter!r})))"
    ).replace("import *", "import _Laps, json, of_file, of_module, started")
    environment = {**os.environ, **dict.fromkeys(folders, caches)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _calls(options: Options, scratch: Path) -> dict[str, str]:
    """The Python that makes a model, by the name of its rows."""
    calls = {}
    for name in options.names or FILES:
        stem, _, batch = name.partition(":")
        file, packed = options.models / f"{stem}.q8ta", options.models / f"{stem}.q8ta.gz"
        if not file.exists() and packed.exists():
            file = scratch / file.name
            file.write_bytes(gzip.decompress(packed.read_bytes()))
        if file.exists():
            calls[f"{name}.q8ta"] = f"of_file(laps, {str(file)!r}, {int(batch or 1)})"
    if find_spec("torchao") is None:
        return calls
    return calls | {
        f"module {name}": f"of_module(laps, {name!r})" for name in MODULES if name in (options.names or MODULES)
    }


def part_start(options: Options) -> None:
    """Prints the seconds of cold and warm starts of every network, and writes docs/start.json."""
    print(f"{'':<28}" + "".join(f"{stage:>10}" for stage in STAGES))
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, call in _calls(options, Path(scratch)).items():
            with tempfile.TemporaryDirectory() as caches:
                for state in ("cold", "warm"):
                    found = rows[f"{name}, {state}"] = in_process(call, options.adapter, caches)
                    cells = "".join(f"{found[s]:>10.3f}" if s in found else f"{'':>10}" for s in STAGES)
                    print(f"{f'{name}, {state}':<28}{cells}", flush=True)
    from bench.figures import origin, write

    now = origin("python -m bench start", options.card, ("torch", "wgpu", "wgpudawn"))
    listed = [{"start": name, **{stage: round(s, 3) for stage, s in row.items()}} for name, row in rows.items()]
    write(FIGURES, {**now, "unit": "s", "rows": listed}, "rows")
