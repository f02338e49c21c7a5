"""Times the start from a file to the first result, each in a process of its own: `python -m bench start`.

Cold: the driver's shader caches, and ours, are empty folders. Warm: with the caches that the cold start wrote; the
median of ROUNDS. Seconds of each stage:

 import      Python's modules, numpy's and ours; backend: the engine's package, which reads its header or loads its code
 file        reading and verifying the model; adapters: listing those of the engine; device: requesting one
 probes      measuring the adapter and checking its arithmetic, wherever that happens
 scheduling  lowering, planning, building the program
 pipelines   making them, in threads where the engine allows, and buffers, uploads and bind groups
 compiled    of that, the driver's seconds in all threads together; slowest: its longest pipeline
 first       one call; total: all from `file` on without `probes`
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process that is measured imports this file, and then what a user would
    from bench.options import Options

NAMES = ("mobilenet_v2", "resnet50")
ROUNDS = 5
IN_TOTAL = ("file", "adapters", "device", "scheduling", "pipelines", "first")
STAGES = (
    "import", "backend", "file", "adapters", "device", "probes",
    "scheduling", "pipelines", "compiled", "slowest", "first", "total",
)  # fmt: skip
FIGURES = Path("out/start.json")


def started(file: str, adapter: str | None) -> dict[str, float]:
    """Seconds of every stage of a start in this process."""
    stages: dict[str, float] = {}
    before = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal before
        now = time.perf_counter()
        stages[stage], before = now - before, now

    from q8ta_wgpu import Session, load
    from q8ta_wgpu.runtime import engines
    from q8ta_wgpu.runtime.adapters import open_device
    from q8ta_wgpu.runtime.device import Device

    lap("import")
    named = (adapter or "").partition(":")[0].lower()
    engine = engines.named(named) if named in engines.NAMES else engines.native()
    lap("backend")
    model = load(file)
    lap("file")
    engine.adapters()
    lap("adapters")
    spent, compiled = _timed(Device, "_once", nested=True), _timed(Device, "_compile")
    device = open_device(adapter)
    lap("device")
    stages["device"] -= sum(spent)
    del compiled[:]
    with Session(model, device) as session:
        before = time.perf_counter()
        session.warm_up()
        lap("first")
        opening = session.opening
    stages |= {"probes": sum(spent), "scheduling": opening.scheduling, "pipelines": opening.loading}
    stages |= {"compiled": sum(compiled), "slowest": max(compiled, default=0.0)}
    stages["total"] = sum(stages[name] for name in IN_TOTAL)
    return stages


def _timed(owner: type, name: str, nested: bool = False) -> list[float]:
    """Patches a method to record the seconds of each call in the returned list; if `nested`, only outermost calls."""
    seconds: list[float] = []
    inside = [0]
    original = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        inside[0] += 1
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            inside[0] -= 1
            if not (nested and inside[0]):
                seconds.append(time.perf_counter() - began)

    setattr(owner, name, timed)
    return seconds


def in_process(file: Path, adapter: str | None, caches: str) -> dict[str, float]:
    """Seconds of every stage of a start in a new process, with its caches in a folder."""
    folders = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
    code = f"import json; from bench.start import started; print(json.dumps(started({str(file)!r}, {adapter!r})))"
    environment = {**os.environ, **dict.fromkeys(folders, caches)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def part_start(options: Options) -> None:
    """Prints and saves the seconds of cold and warm starts of every network."""
    print(f"{'':<24}" + "".join(f"{stage:>12}" for stage in STAGES))
    rows: dict[str, dict[str, float]] = {}
    for name in options.names or NAMES:
        file = options.models / f"{name}.q8ta"
        with tempfile.TemporaryDirectory() as caches:
            cold = in_process(file, options.adapter, caches)
            warm = [in_process(file, options.adapter, caches) for _ in range(ROUNDS)]
        rows[f"{name}, cold"] = cold
        rows[f"{name}, warm"] = {stage: statistics.median(round_[stage] for round_ in warm) for stage in STAGES}
        for row in (f"{name}, cold", f"{name}, warm"):
            print(f"{row:<24}" + "".join(f"{rows[row][stage]:>12.3f}" for stage in STAGES), flush=True)
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps({**figures, options.device.name: rows}, indent=1))
