"""Rows a second of whole networks by one adapter and by all that are equal to it: `q8.run_many` over sessions of one
process, and Ray's actors, one for each adapter (examples/ray_batch.py). Of the actors one is killed in a last run."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import q8ta_wgpu as q8
from bench.models import read
from bench.options import Options
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.adapters import titles

if TYPE_CHECKING:
    from examples.ray_batch import Worker

NETWORKS = ("resnet50_uint8", "demo_uint8")
"""Networks of uint8 images: copies of float32 ones take longer than the GPU."""

BATCH = 32
BATCHES = {"resnet50_uint8": 768, "demo_uint8": 192}
"""Batches of a run, by network; of others as many as the fewest."""

STORE = 12 << 30
"""Bytes of Ray's shared memory, for the rows and the results of a run. They are touched before anything is timed: new
memory takes a process four times as long to write."""


def adapters(options: Options) -> list[str]:
    """What a session takes for each of the equal adapters that the option `--device` means."""
    title = options.device.name
    name, _, number = title.rpartition("#")
    if not number.isdecimal():
        return [title]
    return [title, *(other for other in titles() if other.rpartition("#")[0] == name and other != title)]


def in_one_process(model: q8.Model, devices: Sequence[str], rows: Array) -> tuple[float, Array]:
    """(seconds, results) of a run over a session for each device, after one that warms them up."""
    sessions = [q8.Session(model, device) for device in devices]
    batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    try:
        for _ in q8.run_many(sessions, batches[: 4 * len(sessions)]):
            pass
        start = time.perf_counter()
        results = list(q8.run_many(sessions, batches))
        return time.perf_counter() - start, np.concatenate(results)
    finally:
        for session in sessions:
            session.close()


def by_actors(model: q8.Model, devices: Sequence[str], rows: Array, dies: bool = False) -> tuple[float, Array]:
    """(seconds, results) of Ray's actors, one for each device. With `dies`, the actor that meets the middle of the rows
    first is killed once."""
    from examples import ray_batch

    with tempfile.TemporaryDirectory() as folder:
        path, died = Path(folder) / "net.q8ta", Path(folder) / "died"
        model.save(path)
        worker = mortal(ray_batch.Worker, died, len(rows) // 2) if dies else ray_batch.Worker
        results, seconds = ray_batch.computed(str(path), rows, devices, worker)
        assert died.exists() == dies
    return seconds, results


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


def random_rows(shape: tuple[int, ...], dtype: str) -> Array:
    """Numbers of 0 to 1, or bytes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, shape, np.uint8) if dtype == "uint8" else rng.random(shape, np.float32)


def part_gpus(options: Options) -> None:
    """Prints the rows a second and whether all results are equal, for the networks of `--names` (needs ray)."""
    import ray

    devices = adapters(options)
    os.environ.setdefault("RAY_preallocate_plasma_memory", "1")
    ray.init(num_cpus=len(devices), include_dashboard=False, log_to_driver=False, object_store_memory=STORE)
    for name in options.names or NETWORKS:
        saved = read(options.models, name)
        (taken,) = saved.inputs.values()
        model = saved.reshape((BATCH, *taken.shape[1:]))
        shape = (BATCHES.get(name, min(BATCHES.values())) * BATCH, *taken.shape[1:])
        rows = random_rows(shape, str(taken.array_dtype))
        expected = np.empty(0)
        for title, run in (("run_many", in_one_process), ("actors", by_actors)):
            alone = 0.0
            for some in dict.fromkeys((tuple(devices[:1]), tuple(devices))):
                seconds, results = run(model, some, rows)
                alone = alone or seconds
                expected = expected if expected.size else results
                print(
                    f"{name} b{BATCH} {title} over {len(some)}: {len(rows) / seconds:.0f} rows/s, "
                    f"{alone / seconds:.2f} of one, same results: {np.array_equal(results, expected)}",
                    flush=True,
                )
        seconds, results = by_actors(model, devices, rows, dies=True)
        print(f"{name} b{BATCH} one actor killed: {seconds:.1f} s, same results: {np.array_equal(results, expected)}")
