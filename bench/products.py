"""Times int8 matrix products with every kernel, and ResNet-50's convolutions relative to a product's rate."""

from __future__ import annotations

import importlib.util

from bench.networks import cuda_ms
from bench.options import Options
from bench.timing import compared, load
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.runtime.device import Device
from testbed.graphs import candidates, chosen, conv, linear, macs, plan_for


def timed(device: Device, graph: Graph, kernels: list[Kernel]) -> dict[Kernel, float]:
    """Median microseconds of each kernel, timed in turns."""
    names = {kernel.name: kernel for kernel in kernels}
    found = compared({kernel.name: load(graph, device, plan_for(graph, kernel)) for kernel in kernels})
    return {names[name]: us for name, us in found.items()}


def tiled(graph: Graph, device: Device) -> list[Kernel]:
    """The kernels that can run the graph's node, except the general one."""
    return [k for k in candidates(graph, device) if not k.name.endswith((".direct", ".gemv"))]


def gemm_rates(device: Device, size: int = 4096) -> tuple[float, float]:
    """TOPS of an int8 matrix product with the chosen kernel, and with the best one."""
    graph = linear(size, size, size)
    times = timed(device, graph, tiled(graph, device))
    return 2e-6 * macs(graph) / times[chosen(graph, device)], 2e-6 * macs(graph) / min(times.values())


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

_FEW = 16
"""Up to so many rows cuBLASLt has no int8 product."""


def part_gemm(options: Options) -> None:
    """Times matrix products of several shapes with every kernel, and prints the chosen and the best one. If there
    is CUDA, also `torch._int_mm` (cuBLASLt, whose result is int32, without an epilogue)."""
    device = options.device
    for m, k, n in GROUPED:
        _print_kernels(device, linear(m, k, n, GROUP), f"gemm {m}x{k}x{n} 4 bits")
    for m, k, n in PRODUCTS:
        _print_kernels(device, linear(m, k, n), f"gemm {m}x{k}x{n}")
        if m > _FEW and (peer := _int_mm(m, k, n)) is not None:
            print(f"gemm {m}x{k}x{n} {'torch._int_mm':<28} {peer:>9.1f} us {2e-6 * m * k * n / peer:>7.2f} TOPS")


def _print_kernels(device: Device, graph: Graph, title: str) -> None:
    """Prints what each kernel takes for the graph's node, the fastest first."""
    times = timed(device, graph, list(candidates(graph, device)))
    pick, best = chosen(graph, device), min(times, key=times.__getitem__)
    for kernel, us in sorted(times.items(), key=lambda item: item[1]):
        mark = " <- chosen" * (kernel is pick) + " <- best" * (kernel is best)
        print(f"{title} {kernel.name:<28} {us:>9.1f} us {2e-6 * macs(graph) / us:>7.2f} TOPS{mark}")


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


RESNET50: tuple[tuple[int, int, int, int, int, int], ...] = (
    # channels in, size, channels out, kernel, stride, how many
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 1, 1, 1),
    (64, 56, 64, 3, 1, 3),
    (64, 56, 256, 1, 1, 4),
    (256, 56, 64, 1, 1, 2),
    (256, 56, 128, 1, 1, 1),
    (128, 56, 128, 3, 2, 1),
    (256, 56, 512, 1, 2, 1),
    (128, 28, 512, 1, 1, 4),
    (512, 28, 128, 1, 1, 3),
    (128, 28, 128, 3, 1, 3),
    (512, 28, 256, 1, 1, 1),
    (256, 28, 256, 3, 2, 1),
    (512, 28, 1024, 1, 2, 1),
    (256, 14, 1024, 1, 1, 6),
    (1024, 14, 256, 1, 1, 5),
    (256, 14, 256, 3, 1, 5),
    (1024, 14, 512, 1, 1, 1),
    (512, 14, 512, 3, 2, 1),
    (1024, 14, 2048, 1, 2, 1),
    (512, 7, 2048, 1, 1, 3),
    (2048, 7, 512, 1, 1, 2),
    (512, 7, 512, 3, 1, 2),
)
"""ResNet-50's convolutions (He et al. 2015, stride in the 3x3)."""


def part_resnet50(options: Options) -> None:
    """Times ResNet-50's convolutions with every kernel, and prints rates as shares of a large product's rate."""
    device = options.device
    gemm, best_gemm = gemm_rates(device)
    print(f"product of 4096^3: {gemm:.1f} TOPS with the kernel chosen, {best_gemm:.1f} with the best")
    for batch in options.batches or (32, 1):
        spent = work = least = 0.0
        for c, size, channels, kernel, stride, count in RESNET50:
            graph = conv((batch, c, size, size), channels, kernel, stride)
            pick = chosen(graph, device)
            times = timed(device, graph, list(dict.fromkeys((pick, *tiled(graph, device)))))
            us = times[pick]
            spent, work, least = spent + us * count, work + macs(graph) * count, least + min(times.values()) * count
            rates = " ".join(f"{k.name.rsplit('_', 1)[-1]} {t:.1f}" for k, t in times.items())
            print(
                f"b{batch} {c}x{size} {kernel}x{kernel} s{stride} -> {channels:<5} x{count} {pick.name:<28} "
                f"{us:>7.1f} us {2e-6 * macs(graph) / us:>6.1f} TOPS; us: {rates}",
                flush=True,
            )
        rate = 2e-6 * work / spent
        print(
            f"batch {batch}: {spent / 1e3:.3f} ms, {rate:.1f} TOPS = {rate / gemm:.0%} of the product's; "
            f"with the best kernel everywhere {least / 1e3:.3f} ms"
        )
