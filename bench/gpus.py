"""Rows a second of whole networks by one adapter and by all that are equal to it: `q8.run_many` over sessions of one
process, and Ray's actors, one for each adapter (examples/ray_batch.py). Of the actors one is killed in a last run.

All results of one run are compared. Those of timed runs are dropped as they come: clearing new memory for gigabytes of
results would be timed as well.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import q8ta_wgpu as q8
from bench.figures import origin, write
from bench.models import read
from bench.options import Options
from q8ta_wgpu.commands.arguments import random_array
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.adapters import titles

if TYPE_CHECKING:
    from examples.ray_batch import Worker

NETWORKS = ("resnet50_uint8", "demo_uint8")
"""Networks of uint8 images: copies of float32 ones take longer than the GPU."""

BATCH = 32
BATCHES = 64
"""Batches of different rows."""

SECONDS = 2.0
"""Least time of a run that is timed."""

WARM = 0.5
"""Seconds of runs before it: a GPU raises its clocks only under load."""

STORE = 4 << 30
"""Bytes of Ray's shared memory, for the rows and the results in flight."""


def adapters(options: Options) -> list[str]:
    """What a session takes for each of the equal adapters that the option `--device` means."""
    title = options.device.name
    name, _, number = title.rpartition("#")
    if not number.isdecimal():
        return [title]
    return [title, *(other for other in titles() if other.rpartition("#")[0] == name and other != title)]


Run = Callable[[int], Iterator[Array]]
"""Yields the results of so many batches: of all rows, again and again."""


def rate(run: Run) -> float:
    """Rows a second."""
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        for _ in run(BATCHES):
            pass
    count = BATCHES
    while True:
        start = time.perf_counter()
        for _ in run(count):
            pass
        seconds = time.perf_counter() - start
        if seconds > SECONDS:
            return count * BATCH / seconds
        count *= 2


def in_one_process(model: q8.Model, devices: Sequence[str], rows: Array) -> tuple[float, Array]:
    """(rows a second, results of all rows) of `run_many` over a session for each device."""
    sessions = [q8.Session(model, device) for device in devices]
    batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]

    def run(count: int) -> Iterator[Array]:
        return q8.run_many(sessions, islice(cycle(batches), count))

    try:
        return rate(run), np.concatenate(list(run(BATCHES)))
    finally:
        for session in sessions:
            session.close()


def by_actors(model: q8.Model, devices: Sequence[str], rows: Array) -> tuple[float, Array]:
    """(rows a second, results of all rows) of Ray's actors, one for each device."""
    import ray

    from examples.ray_batch import in_order, parted, started

    with tempfile.TemporaryDirectory() as folder:
        model.save(path := Path(folder) / "net.q8ta")
        actors, shared = started(str(path), devices), ray.put(rows)
    parts = parted(len(rows), BATCH, len(actors))

    def run(count: int) -> Iterator[Array]:
        return in_order(actors, shared, islice(cycle(parts), count * len(parts) // BATCHES), BATCH)

    return rate(run), np.concatenate(list(run(BATCHES)))


def one_is_killed(model: q8.Model, devices: Sequence[str], rows: Array) -> Array:
    """The results of all rows of actors, of which the one that meets the middle of the rows first is killed once."""
    import ray

    from examples.ray_batch import Worker, in_order, parted, started

    with tempfile.TemporaryDirectory() as folder:
        model.save(path := Path(folder) / "net.q8ta")
        died = Path(folder) / "died"
        actors = started(str(path), devices, mortal(Worker, died, len(rows) // 2))
        parts = parted(len(rows), BATCH, len(actors), 1)
        results = np.concatenate(list(in_order(actors, ray.put(rows), parts, BATCH)))
        assert died.exists()
    return results


def mortal(worker: type[Worker], died: Path, middle: int) -> type[Worker]:
    """An actor's class whose process ends without a word where row `middle` or one behind it comes first. It makes the
    file `died` before, and does so once. Defined in a function, so that actors need not import this file."""

    class Mortal(worker):  # type: ignore[misc, valid-type]
        def run(self, rows: Array, first: int, last: int, size: int) -> list[Array]:
            if first >= middle and not died.exists():
                died.touch()
                os._exit(1)
            y: list[Array] = super().run(rows, first, last, size)
            return y

    return Mortal


def part_gpus(options: Options) -> None:
    """Prints the rows a second and whether all results are equal, for the networks of `--names` (needs ray)."""
    import ray

    devices = adapters(options)
    ray.init(num_cpus=len(devices), include_dashboard=False, log_to_driver=False, object_store_memory=STORE)
    rows_a_second: list[dict[str, Any]] = []
    for name in options.names or NETWORKS:
        rows_a_second.append({"network": name})
        saved = read(options.models, name)
        (taken,) = saved.inputs.values()
        model = saved.reshape((BATCH, *taken.shape[1:]))
        rows = random_array(taken, (BATCHES * BATCH, *taken.shape[1:]), np.random.default_rng(0))
        expected = np.empty(0)
        for title, by in (("run_many", in_one_process), ("actors", by_actors)):
            alone = 0.0
            for some in dict.fromkeys((tuple(devices[:1]), tuple(devices))):
                each, results = by(model, some, rows)
                alone = alone or each
                rows_a_second[-1].setdefault(title, []).append(round(each))
                expected = expected if expected.size else results
                print(
                    f"{name} b{BATCH} {title} over {len(some)}: {each:.0f} rows/s, {each / alone:.2f} of one, "
                    f"same results: {np.array_equal(results, expected)}",
                    flush=True,
                )
        same = np.array_equal(one_is_killed(model, devices, rows), expected)
        print(f"{name} b{BATCH} one actor killed, same results: {same}", flush=True)
    now = origin("python -m bench gpus", f"{len(devices)} times {options.device.name}", ("ray",))
    write(Path("docs/gpus.json"), {**now, "batch": BATCH, "rows": rows_a_second}, "rows")
