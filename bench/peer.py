"""Runs one network in one runtime and one process: `python -m bench.peer make|run PEER NETWORK FOLDER THREADS`.

`make` writes the runtime's file from the torch module. `run` loads that file as a user of the runtime would, times it,
and prints a line of JSON. `bench/runtimes.py` has both functions for each runtime. If a package, a device or an
operator is missing, the error names it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bench.runtimes import PEERS, Run
from q8ta_wgpu.ir.graph import Array

SECONDS, LEAST, MOST, PATIENCE = 6.0, 5, 200, 30.0
"""Calls are timed for SECONDS, at least LEAST and at most MOST times, but no new one begins after PATIENCE seconds."""


def timed(load: Callable[[], Run], image: Array) -> tuple[Array, dict[str, float]]:
    """The result, and figures: seconds from the file to the first result, median milliseconds of a call, peak MiB of
    the process, and, on Linux, the share of the processors that other programs used while calls were timed."""
    started = time.perf_counter()
    run = load()
    found = np.array(run(image))
    loaded, taken = time.perf_counter() - started, list[float]()
    began, others = time.perf_counter(), _seconds_of_others()
    while sum(taken) < (PATIENCE if len(taken) < LEAST else SECONDS) and len(taken) < MOST:
        started = time.perf_counter()
        run(image)
        taken.append(time.perf_counter() - started)
    figures = {"load_s": loaded, "ms": 1e3 * float(np.median(taken)), "memory_mib": _peak()}
    if others is not None and (since := _seconds_of_others()) is not None:
        all_of_them = (time.perf_counter() - began) * (os.cpu_count() or 1)
        figures["others"] = min(max((since - others) / all_of_them, 0.0), 1.0)
    return found, figures


def _seconds_of_others() -> float | None:
    """Processor seconds of other processes since the system started; None if the system is not Linux."""
    if not (counts := Path("/proc/stat")).exists():
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, counts.read_text().split()[1:9])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def _peak() -> float:
    """Peak MiB of this process. On Linux from /proc, since getrusage includes the parent's memory before the fork."""
    if (status := Path("/proc/self/status")).exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) / 1024
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def main() -> None:
    """Makes a file or runs it."""
    doing, peer, network, where, threads = sys.argv[1:]
    folder = Path(where)
    if doing == "make":
        from testbed.networks import NETWORKS, example_input

        entry = NETWORKS[network]
        x = example_input(entry.shape)
        np.save(folder / "x.npy", x.numpy())
        PEERS[peer].make(entry.factory(), x, folder)
        return
    found, figures = timed(lambda: PEERS[peer].load(folder, int(threads)), np.load(folder / "x.npy"))
    np.save(folder / "y.npy", found)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
