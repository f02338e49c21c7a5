"""Measures a device's rates of dot products and copies, for planning and reports."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from q8ta_wgpu.program import resolve
from q8ta_wgpu.runtime import findings, probe
from q8ta_wgpu.runtime.pipelines import OpenDevice
from q8ta_wgpu.runtime.timestamps import SPIN_UP

_WORDS = 8
"""Words of each operand in a thread's registers while dot products are timed."""

_GROUPS, _ROUNDS = {False: 4096, True: 256}, {False: 128, True: 16}
"""Workgroups that time dot products, and turns of a thread, on a GPU and on a CPU: there 4,096 workgroups take
SwiftShader seconds. With fewer turns, recording thousands of short dispatches took half a second of opening an H100."""


@dataclass(frozen=True)
class DotRates:
    """Measured rates of dot4I8Packed and of its emulation, in 10^9 operations (2 for each multiply-accumulate) per
    second."""

    packed: float
    emulated: float


def _dot_modules() -> dict[str, str]:
    """WGSL to time the packed and the emulated dot product, by name. A thread computes all products of eight words of
    one operand with eight of the other, so that loads hardly count."""
    words = range(_WORDS)
    declared = "\n".join(f"  var p{i} = b[(id.x + {i}u) % 64u]; let q{i} = b[id.x * {i + 2}u % 63u];" for i in words)
    sums = "\n".join(f"  var s{i} = 0;" for i in words)
    products = "\n".join(f"    s{j} += dot4(p{i}, q{j});" for i in words for j in words)
    changed = "\n".join(f"    p{i} = p{i} ^ u32(s{i});" for i in words)
    main = f"""
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
{declared}
{sums}
  for (var i = 0u; i < params.count; i++) {{
{products}
{changed}
  }}
  y[id.x] = {" + ".join(f"s{i}" for i in words)};
}}
"""
    return {
        name: resolve.complete(f"// probe of the {name} dot product\n{probe.BINDINGS}{main}", file)
        for name, file in (("packed", "dot_instruction"), ("emulated", "dot_emulated"))
    }


def dot_rates(device: OpenDevice, seconds: float = 0.02) -> DotRates:
    """Measures both forms of the dot product on all cores of `device`: the best of repeats for about `seconds` each.

    They are measured in turns. Otherwise other programs on the device, or clocks that rise, decide which form is
    faster, and that is kept: an H100 that was shared then took five times as long for a network."""
    rounds, groups, texts = _ROUNDS[device.software], _GROUPS[device.software], _dot_modules()
    words = np.array([rounds, 0, 0, 0], np.uint32).tobytes()
    data = np.arange(64, dtype=np.int32)
    buffers = (data, data.view(np.uint32) * np.uint32(0x01020304), np.zeros(groups * 64, np.int32))
    key = findings.digest("dot rates in turns", *texts.values(), words)
    before = findings.recall(device.info, key)
    if isinstance(before, list) and [type(rate) for rate in before] == [float, float] and min(before) > 0:
        return DotRates(*before)
    device.pipelines(list(texts.values()), len(buffers))
    with contextlib.ExitStack() as stack:
        kernels = [stack.enter_context(probe.prepared(device, text, buffers, words)) for text in texts.values()]
        found = in_turns(kernels, groups, seconds)
    operations = 2 * 4 * _WORDS**2 * rounds * groups * 64
    kept = [1e-9 * operations / least for least in found]
    findings.keep(device.info, key, kept)
    return DotRates(*kept)


_TURNS = 4
"""Fewest turns in which kernels are timed on a GPU. On a CPU, where they take long, the first is enough."""


def in_turns(kernels: Sequence[probe.Probe], groups: int, seconds: float) -> list[float]:
    """Seconds of a dispatch of each kernel: the least of turns for about `seconds` a kernel."""
    for kernel in kernels:
        kernel.elapsed(groups)  # the first use allocates and clears the buffers
    single = [kernel.elapsed(groups) for kernel in kernels]  # 0 where a clock is coarser
    repeats = [min(max(int(seconds / _TURNS / max(each, 1e-6)), 1), 64) for each in single]
    found: list[list[float]] = []
    end = time.perf_counter() + seconds * len(kernels)
    while len(found) < (1 if kernels[0].device.software else _TURNS) or time.perf_counter() < end:
        found.append([kernel.elapsed(groups, n) / n for kernel, n in zip(kernels, repeats, strict=True)])
    return [max(min(taken), 1e-9) for taken in zip(*found, strict=True)]


_COPY = """
@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
struct Params { count: u32 };
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < params.count) { y[id.x] = x[id.x]; }
}
"""
_COPIED = {False: 64 << 20, True: 16 << 20}
"""Bytes of a buffer, on a GPU and on a CPU. Two of them exceed the last cache of most devices, yet take little time."""


def copy_rate(device: OpenDevice, seconds: float = 0.05) -> float:
    """Copy bandwidth of a kernel on a large buffer, in 10^9 bytes read and written per second: the best of repeats for
    about `seconds` after a warm-up. By timestamps if the device has them, else by the host's clock."""
    size = min(_COPIED[device.software], device.binding_size) // 4096 * 4096
    words = np.array([size // 16, 0, 0, 0], np.uint32).tobytes()
    with probe.prepared(device, f"// probe of the copy bandwidth{_COPY}", (size, size), words) as kernel:
        warm = time.perf_counter() + (0.0 if device.software else SPIN_UP)
        while time.perf_counter() < warm:
            kernel.elapsed(size // 4096, 16)
        (least,) = in_turns([kernel], size // 4096, seconds)
        return 2e-9 * size / least
