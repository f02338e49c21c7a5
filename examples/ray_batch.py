"""Batch inference over many processes with Ray: each actor holds one session, all read one model file.

python -m examples.ray_batch MODEL.q8ta [--rows 64] [--call 16] [--device nvidia#0 --device nvidia#1]

The model takes one input of shape (batch, ...); the actors need numpy, wgpu and safetensors, and no torch. Ray starts
an actor that died again and repeats its call, so that no batch is lost and none comes twice.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from examples import needs

needs("ray")
import ray
from ray.util import ActorPool


class Worker:
    """A session, opened once in the process of the actor."""

    def __init__(self, path: str, device: Any) -> None:
        self.session = q8.Session(q8.load(path), device)

    def warm(self, batch: np.ndarray) -> None:
        """Compiles what a call needs."""
        self.session(batch)

    def run(self, rows: np.ndarray, first: int, last: int, size: int) -> list[np.ndarray]:
        """The results of batches of `size` rows, from row `first` to `last`. Uploads, runs and downloads of several
        batches overlap."""
        return list(self.session.run_many(rows[i : i + size] for i in range(first, last, size)))


def computed(
    path: str, rows: np.ndarray, devices: Sequence[Any], worker: type[Worker] = Worker, call: int = 16
) -> tuple[np.ndarray, float]:
    """The results of all rows, in order, by an actor for each device, and the seconds of the actors' calls.

    An actor holds a `worker`, and computes up to `call` batches in a call: fewer of few rows, so that all actors get
    two calls. The rows are copied to Ray's shared memory first, where actors read them in place. The last batch is
    filled up, and cut again.
    """
    ((_, taken),) = q8.load(path).inputs.items()
    size = taken.shape[0]
    if not len(rows):
        raise ValueError("there are no rows to compute")
    filled = np.concatenate([rows, np.zeros((-len(rows) % size, *rows.shape[1:]), rows.dtype)])
    # Two calls at a time: one computes while the results of the other are copied to shared memory.
    actor = ray.remote(worker).options(max_restarts=-1, max_task_retries=-1, max_concurrency=2)
    actors: list[Any] = [actor.remote(path, device) for device in devices]
    ray.get([each.warm.remote(filled[:size]) for each in actors])
    shared = ray.put(filled)
    call = min(call, -(-len(filled) // (size * 2 * len(actors))))
    start = time.perf_counter()
    ends = [(first, min(first + call * size, len(filled))) for first in range(0, len(filled), call * size)]
    # Each actor is there twice, for two calls at a time.
    results = list(ActorPool(actors * 2).map(lambda each, part: each.run.remote(shared, *part, size), ends))
    seconds = time.perf_counter() - start
    return np.concatenate([batch for batches in results for batch in batches])[: len(rows)], seconds


def main(arguments: Sequence[str] | None = None, worker: type[Worker] = Worker) -> np.ndarray:
    parser = argparse.ArgumentParser(prog="python -m examples.ray_batch", description=__doc__)
    parser.add_argument("model", help="a .q8ta file of one input and one output")
    parser.add_argument("--rows", type=int, default=64, help="random rows that are computed")
    parser.add_argument("--call", type=int, default=16, help="most batches of one call of an actor")
    parser.add_argument(
        "--device", action="append", help="as Session takes it, once for each actor (default: 2 actors)"
    )
    options = parser.parse_args(arguments)

    ((_, taken),) = q8.load(options.model).inputs.items()
    rows = np.random.default_rng(0).normal(0, 1, (options.rows, *taken.shape[1:])).astype(np.float32)
    devices = options.device or [None, None]
    ray.init(num_cpus=len(devices), include_dashboard=False)
    try:
        results, seconds = computed(options.model, rows, devices, worker, options.call)
    finally:
        ray.shutdown()
    shape = f"{results.dtype} {results.shape[1:]}"
    print(f"{len(results)} rows by {len(devices)} actors in {seconds:.3f} s: {shape} each")
    return results


if __name__ == "__main__":
    main()
