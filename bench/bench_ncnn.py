"""Three networks on one image, numpy to numpy, in this library, ncnn's Vulkan kernels and PyTorch on the CPU.

`pip install -r bench/requirements.txt && python -m pytest bench/bench_ncnn.py` runs on the best adapter. Without a GPU
that is lavapipe, for ncnn and this library alike. Each round runs each engine once; compare medians of one network. CPU
milliseconds, of all threads, are steadier if other programs run; on a GPU they show the host's work. A missed int8
target is printed with the slowest dispatches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import q8ta_wgpu as q8
from bench.timing import heaviest
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.runtime.device import Device
from testbed.networks import NETWORKS, example_input

NAMES = ("resnet50", "mobilenet_v2", "subpixel")
ROUNDS, FEWEST, LONG = 5, 3, 5e3
"""Rounds, and rounds for an engine whose warm-up took more than LONG milliseconds."""

TARGET = 3.0
"""Target of the speed-up over ncnn's int8."""

LEAST_COSINE = 0.98
OURS, OURS_FLOAT = "int8", "float32"
NCNN = {"ncnn int8, float16": (True, True), "ncnn int8, float32": (True, False), "ncnn float32": (False, False)}
"""Engine -> (int8, whether ncnn may use float16 for the rest)."""

TORCH = "torch CPU float32"
Engine = Callable[[Array], Array]


@pytest.fixture(scope="module")
def ncnn_version() -> str:
    """The version of ncnn; skips the test if it is not installed."""
    module = pytest.importorskip("ncnn", reason="ncnn is not installed: pip install -r bench/requirements.txt")
    if module.get_gpu_count() == 0:
        pytest.skip("ncnn finds no Vulkan device on this machine")
    return f"ncnn {module.__version__} on {module.get_gpu_info(0).device_name()}"


pytestmark = pytest.mark.usefixtures("all_cores")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_beside_ncnn(
    benchmark: BenchmarkFixture, name: str, vulkan: Device, ncnn_version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results of all engines, including ncnn's own quantization, are close to torch's: all do the same work."""
    from bench.ncnn_net import convert
    from bench.ncnn_run import NcnnNet

    module, x = NETWORKS[name].factory(), example_input(NETWORKS[name].shape)
    program = q8.quantize(module, (x,), calibration=[x], progress=False)
    int8 = q8.Session(q8.compile(program), vulkan)
    float32 = q8.Session(q8.compile(torch.export.export(module, (x,))), vulkan)
    engines: dict[str, Engine] = {OURS: int8, OURS_FLOAT: float32, TORCH: lambda a: _torch(module, a)}
    threads = torch.get_num_threads()
    engines |= {
        label: NcnnNet(*convert(module, x, quantized), half, threads=threads)
        for label, (quantized, half) in NCNN.items()
    }
    image = x.numpy()
    expected = engines[TORCH](image)
    taken: dict[str, list[float]] = {label: [] for label in engines}
    worked: dict[str, list[float]] = {label: [] for label in engines}

    def one_round() -> dict[str, Array]:
        found = {}
        for label, run in engines.items():
            times = taken[label]
            if len(times) <= FEWEST or times[0] < LONG:
                start, cpu = time.perf_counter(), time.process_time()
                found[label] = run(image)
                times.append(1e3 * (time.perf_counter() - start))
                worked[label].append(1e3 * (time.process_time() - cpu))
        return found

    cosines = {label: cosine(found, expected) for label, found in one_round().items()}

    benchmark.pedantic(one_round, rounds=ROUNDS)  # type: ignore[no-untyped-call]
    medians, cpus = ({k: float(np.median(v[1:])) for k, v in found.items()} for found in (taken, worked))
    benchmark.extra_info.update(medians, ncnn=ncnn_version)
    with capsys.disabled():
        print(f"\n{name} {list(x.shape)}, {ncnn_version}; here {vulkan.name}; medians of {ROUNDS}, times int8's")
        for label, ms in medians.items():
            times, cpu = ms / medians[OURS], cpus[label] / cpus[OURS]
            rest = f"CPU {cpus[label]:>9.1f} ms {cpu:>6.2f}x  cosine {cosines[label]:.4f}"
            print(f"  {label:<20} {ms:>9.1f} ms {times:>6.2f}x  {rest}")
        faster = min(medians[label] for label, (quantized, _) in NCNN.items() if quantized) / medians[OURS]
        if faster < TARGET:
            print(f"  MISSED: {faster:.2f} times as fast as ncnn's int8, target {TARGET:g}")
            print(heaviest(int8.time(image, repeats=3, warmup=1)))
    int8.close()
    float32.close()
    assert all(value > LEAST_COSINE for value in cosines.values()), cosines


def _torch(module: torch.nn.Module, image: Array) -> Array:
    with torch.no_grad():
        found: Array = module(torch.from_numpy(image)).numpy()
    return found


def cosine(a: Any, b: Any) -> float:
    """Cosine of the angle between two arrays of equal size."""
    a, b = np.ravel(a), np.ravel(b)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
