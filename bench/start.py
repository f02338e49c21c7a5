"""From a file to the first result, each time in a process of its own, by `python -m bench start`.

Cold: the driver's caches of shaders, and ours, are empty folders. Warm: what the cold start left in them; the median of
ROUNDS. `probes` is measuring the adapter and checking its arithmetic, which `total` leaves out, as it does importing
Python's modules.
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
from typing import Any

from bench.options import Options

NAMES = ("mobilenet_v2", "resnet50")
ROUNDS = 5
STAGES = ("import", "file", "device", "probes", "scheduling", "pipelines", "first", "total")
FIGURES = Path("out/start.json")


def started(file: str, adapter: str | None) -> dict[str, float]:
    """Seconds of every stage, in this process."""
    before = time.perf_counter()
    from q8ta_wgpu import Session, load
    from q8ta_wgpu.runtime.device import Device, open_device

    stages = {"import": time.perf_counter() - before}
    probed = [0.0]
    measure = Device._once

    def timed(device: Device, *arguments: Any) -> Any:
        nested, started = probed[0], time.perf_counter()
        found = measure(device, *arguments)
        probed[0] = nested + time.perf_counter() - started
        return found

    Device._once = timed  # type: ignore[assignment, method-assign]
    before = time.perf_counter()
    model = load(file)
    stages["file"] = time.perf_counter() - before
    before = time.perf_counter()
    device = open_device(adapter)
    stages["device"] = time.perf_counter() - before
    with Session(model, device) as session:
        opening = session.opening
        stages |= {"scheduling": opening.scheduling, "pipelines": opening.loading}
        before = time.perf_counter()
        session.warm_up()
        stages["first"] = time.perf_counter() - before
    stages["probes"] = probed[0]
    stages["device"] += opening.device - probed[0]
    stages["total"] = sum(stages[name] for name in ("file", "device", "scheduling", "pipelines", "first"))
    return stages


def in_process(file: Path, adapter: str | None, caches: str) -> dict[str, float]:
    """The same in a process of its own that keeps its caches in a folder."""
    folders = ("XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
    code = f"import json; from bench.start import started; print(json.dumps(started({str(file)!r}, {adapter!r})))"
    environment = {**os.environ, **dict.fromkeys(folders, caches)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def part_start(options: Options) -> None:
    """Every network cold and warm, in seconds."""
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
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps({"adapter": options.device.name, "seconds": rows}, indent=1))
