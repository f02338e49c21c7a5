"""What is shared out to GPUs survives the death of one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import q8ta_wgpu as q8
from bench.gpus import mortal
from testbed.small import small_input, small_model

try:
    from examples import ray_batch
except SystemExit as missing:  # an example ends the program where a package is missing, and says which
    if "CI" in os.environ:
        raise ModuleNotFoundError(str(missing)) from None
    pytest.skip(str(missing), allow_module_level=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own
def test_ray_batch(tmp_path: Path) -> None:
    """Of two actors one dies: every row has its result, in order."""
    model = small_model()

    rows = np.random.default_rng(0).normal(0, 1, (7, *small_input().shape[1:])).astype(np.float32)
    died = tmp_path / "died"
    dies = mortal(ray_batch.Worker, died, 4)
    graph = q8.Model(model.graph, type(model.structure)(0))
    graph.graph.outputs.pop()
    graph.save(tmp_path / "net.q8ta")
    device = ["--device", "wgpu-native:vulkan"]
    found = ray_batch.main([str(tmp_path / "net.q8ta"), "--rows", "7", "--call", "1", *device, *device], dies)
    assert died.exists()
    with q8.Session(graph, "reference") as session:
        expected = np.concatenate([session(np.concatenate([rows, rows[:1]])[i : i + 2]) for i in range(0, 8, 2)])[:7]
    np.testing.assert_array_equal(found, expected)
