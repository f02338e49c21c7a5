"""Times int8 matrix products with every kernel."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures import origin, write
from bench.networks import cuda_ms
from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import candidates, chosen, linear, macs, plan_for


def timed(device: Device, graph: Graph, kernels: list[Kernel]) -> dict[Kernel, float]:
    """Median microseconds of each kernel, timed in turns."""
    names = {kernel.name: kernel for kernel in kernels}
    found = compared({kernel.name: load(graph, device, plan_for(graph, kernel)) for kernel in kernels})
    return {names[name]: us for name, us in found.items()}


def tiled(graph: Graph, device: Device) -> list[Kernel]:
    """The kernels that can run the graph's node, except the general one."""
    return [k for k in candidates(graph, device) if not k.name.endswith((".direct", ".gemv"))]


PRODUCTS = (
    *((4096, 4096, 4096), (1024, 1024, 1024), (16, 4096, 4096), (1, 4096, 4096)),
    *((197, 768, 3072), (6304, 768, 768), (6304, 768, 3072), (6304, 3072, 768)),
    *((512, 2048, 8192), (512, 8192, 2048)),
)
"""(M, K, N): squares, few rows, the linears of ViT-B/16 and of 512 tokens of a decoder."""

GROUP = 128
"""Inputs with one factor, of weights of 4 bits."""

GROUPED = ((512, 2048, 8192), (512, 8192, 2048), (512, 2048, 2048), (64, 2048, 8192), (16, 2048, 8192))
"""(M, K, N) with weights of 4 bits: linears of a decoder."""

FIGURES = Path("docs/products.json")

_FEW = 16
"""Up to so many rows cuBLASLt has no int8 product."""


def part_gemm(options: Options) -> None:
    """Times matrix products of several shapes with every kernel, prints the chosen and the best one, and writes
    docs/products.json. Packed dot products are timed through wgpu-native, matrix units through Dawn. If there is CUDA,
    also `torch._int_mm` (cuBLASLt, whose result is int32, without an epilogue)."""
    name = f":{options.adapter}" if options.adapter else ""
    devices = {"packed": open_device(f"wgpu-native{name}")}
    with contextlib.suppress(DeviceError):  # no Dawn, or not on this adapter
        devices["units"] = open_device(f"dawn{name}")
    cases = [(shape, 8) for shape in PRODUCTS] + [(shape, 4) for shape in GROUPED]
    rows = [_rates(devices, shape, bits) for shape, bits in cases]
    unit = "tera-operations a second by the fastest kernel of each kind"
    now = origin("python -m bench gemm", options.card, ("torch", "wgpu", "wgpudawn"))
    write(FIGURES, {**now, "unit": unit, "rows": rows}, "rows")


def _rates(devices: Mapping[str, Device], shape: tuple[int, int, int], bits: int) -> dict[str, Any]:
    """A product's row: TOPS of the fastest kernel of packed dot products and on matrix units, and of cuBLASLt's."""
    title = "x".join(map(str, shape))
    graph = linear(*shape, GROUP) if bits == 4 else linear(*shape)
    work = 2e-6 * macs(graph)
    row: dict[str, Any] = {"rows x inputs x outputs": title, "bits": bits}
    for kind, device in devices.items():
        kernels = [k for k in candidates(graph, device) if ("units" in k.name) == (kind == "units")]
        if kernels:
            times = timed(device, graph, kernels)
            _print_kernels(f"gemm {title} {bits} bits", times, chosen(graph, device), work)
            row[kind] = round(work / min(times.values()), 1)
    if bits == 8 and shape[0] > _FEW and (peer := _int_mm(*shape)) is not None:
        row["torch._int_mm"] = round(work / peer, 1)
    print(row, flush=True)
    return row


def _print_kernels(title: str, times: dict[Kernel, float], pick: Kernel, work: float) -> None:
    """Prints what each kernel takes, the fastest first."""
    for i, (kernel, us) in enumerate(sorted(times.items(), key=lambda item: item[1])):
        mark = " <- chosen" * (kernel is pick) + " <- best" * (i == 0)
        print(f"{title} {kernel.name:<28} {us:>9.1f} us {work / us:>7.2f} TOPS{mark}")


def _int_mm(m: int, k: int, n: int) -> float | None:
    """Microseconds of PyTorch's int8 product, from CUDA graphs of several; None without PyTorch or CUDA."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    x, weight = (torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda") for shape in ((m, k), (n, k)))
    torch._int_mm(x, weight.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            torch._int_mm(x, weight.t())
    return 1e3 * cuda_ms(torch, graph.replay) / _CALLS


_CALLS = 20
"""Products in one CUDA graph, so that its launch hardly counts."""
