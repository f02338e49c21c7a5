"""Batch inference over many processes with Ray: each actor holds one session, all read one model file.

python -m examples.ray_batch MODEL.q8ta [--rows 64] [--call 16] [--device nvidia#0 --device nvidia#1]

The model takes one input of shape (batch, ...); the actors need numpy, wgpu and safetensors, and no torch. Ray starts
an actor that died again and repeats its call, so that no batch is lost and none comes twice.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from examples import needs
from q8ta_wgpu.commands.arguments import random_array

needs("ray")
import ray
from ray.util import ActorPool


class Worker:
    """A session, opened once in the process of the actor."""

    def __init__(self, path: str, device: Any) -> None:
        self.session = q8.Session(q8.load(path), device)

    def ready(self) -> bool:
        """Whether the session is open, once this is answered."""
        return True

    def run(self, rows: np.ndarray, first: int, last: int, size: int) -> list[np.ndarray]:
        """The results of batches of `size` rows, from row `first` to `last`. Uploads, runs and downloads of several
        batches overlap."""
        return list(self.session.run_many(rows[i : i + size] for i in range(first, last, size)))


def started(path: str, devices: Sequence[Any], worker: type[Worker] = Worker) -> list[Any]:
    """An actor for each device, with its session open."""
    # Two calls at a time: one computes while the results of the other are copied to shared memory.
    actor = ray.remote(worker).options(max_restarts=-1, max_task_retries=-1, max_concurrency=2)
    actors: list[Any] = [actor.remote(path, device) for device in devices]
    ray.get([each.ready.remote() for each in actors])
    return actors


def in_order(actors: Sequence[Any], shared: Any, parts: Iterable[tuple[int, int]], size: int) -> Iterator[np.ndarray]:
    """Yields the results of batches of `size` rows, in order. A call of an actor computes one of `parts`, from a first
    to a last row of an array in Ray's shared memory, where actors read it in place."""
    pool = ActorPool([*actors, *actors])  # each is there twice, for two calls at a time
    for batches in pool.map(lambda each, part: each.run.remote(shared, *part, size), list[Any](parts)):
        yield from batches


def parted(count: int, size: int, actors: int, call: int = 16) -> list[tuple[int, int]]:
    """The first and last rows of parts of `count` rows. A part has up to `call` batches of `size` rows, or fewer where
    some actor would otherwise get less than two parts."""
    step = size * min(call, -(-count // (size * 2 * actors)))
    return [(first, min(first + step, count)) for first in range(0, count, step)]


def main(arguments: Sequence[str] | None = None, worker: type[Worker] = Worker) -> np.ndarray:
    parser = argparse.ArgumentParser(prog="python -m examples.ray_batch", description=__doc__)
    parser.add_argument("model", help="a .q8ta file of one input and one output")
    parser.add_argument("--rows", type=int, default=64, help="random rows that are computed")
    parser.add_argument("--call", type=int, default=16, help="most batches of one call of an actor")
    parser.add_argument(
        "--device", action="append", help="as Session takes it, once for each actor (default: 2 actors)"
    )
    options = parser.parse_args(arguments)

    if min(options.rows, options.call) < 1:
        parser.error("--rows and --call must be at least 1")
    model = q8.load(options.model)
    if (len(model.inputs), len(model.outputs)) != (1, 1):
        parser.error(f"takes a model of one input and one output, found {model}")
    (taken,) = model.inputs.values()
    size = taken.shape[0]
    count = -(-options.rows // size) * size  # the last batch is filled up, and cut again
    rows = np.zeros((count, *taken.shape[1:]), taken.array_dtype)
    rows[: options.rows] = random_array(taken, (options.rows, *taken.shape[1:]), np.random.default_rng(0))
    devices = options.device or [None, None]
    ray.init(num_cpus=len(devices), include_dashboard=False)
    try:
        actors = started(options.model, devices, worker)
        start = time.perf_counter()
        parts = parted(count, size, len(actors), options.call)
        results = np.concatenate(list(in_order(actors, ray.put(rows), parts, size)))[: options.rows]
        seconds = time.perf_counter() - start
    finally:
        ray.shutdown()
    shape = f"{results.dtype} {results.shape[1:]}"
    print(f"{len(results)} rows by {len(devices)} actors in {seconds:.3f} s: {shape} each")
    return results


if __name__ == "__main__":
    main()
