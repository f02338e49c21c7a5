"""Batch inference over many workers with Ray Data: each worker holds one session, all read one model file.

python -m examples.ray_batch MODEL.q8ta [--workers 2] [--rows 64]

The model takes one input of shape (batch, ...); the workers need numpy, wgpu and safetensors, and no torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import q8ta_wgpu as q8
from examples import needs

needs("ray")
import ray

Batch = dict[str, np.ndarray]


class Worker:
    """A session, opened once in the process of the worker."""

    def __init__(self, path: str, device: Any) -> None:
        self.session = q8.Session(q8.load(path), device)
        ((_, self.taken),) = self.session.model.inputs.items()

    def __call__(self, batch: Batch) -> Batch:
        """Runs a batch; a last one that is smaller is filled up, and cut again."""
        x, size = batch["data"], self.taken.shape[0]
        filled = np.concatenate([x, np.zeros((size - len(x), *x.shape[1:]), x.dtype)])
        return {"row": batch["row"], "result": self.session(filled)[: len(x)]}


def main(arguments: Sequence[str] | None = None) -> np.ndarray:
    parser = argparse.ArgumentParser(prog="python -m examples.ray_batch", description=__doc__)
    parser.add_argument("model", help="a .q8ta file of one input and one output")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=64, help="random rows that are computed")
    parser.add_argument("--device", help="as Session takes it")
    options = parser.parse_args(arguments)

    ((_, taken),) = q8.load(options.model).inputs.items()
    rows = np.random.default_rng(0).normal(0, 1, (options.rows, *taken.shape[1:])).astype(np.float32)
    if not ray.is_initialized():
        ray.init(num_cpus=options.workers, include_dashboard=False)
    found = (
        ray.data.from_items([{"row": i, "data": row} for i, row in enumerate(rows)])
        .map_batches(
            Worker,
            fn_constructor_args=(options.model, options.device),
            batch_size=taken.shape[0],
            compute=ray.data.ActorPoolStrategy(size=options.workers),
        )
        .take_batch(options.rows, batch_format="numpy")
    )
    results = np.stack(found["result"])[np.argsort(found["row"])]  # batches arrive as they are done
    print(f"{len(results)} rows by {options.workers} workers: {results.dtype} {results.shape[1:]} each")
    return results


if __name__ == "__main__":
    main()
