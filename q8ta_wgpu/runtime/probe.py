"""Probes of behaviour that WGSL does not guarantee: the arithmetic contract of int8, long loops, matrix units.

WGSL leaves open the rounding of conversions, the flushing of denormals, and which operations a driver re-associates.
Every known device computes what q8ta_wgpu/ir/arithmetic.py defines. A device that does not is refused for int8, since
it would give other bytes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir import arithmetic
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.ir.target import LOOP_TURNS
from q8ta_wgpu.program import known_results, resolve
from q8ta_wgpu.runtime import findings
from q8ta_wgpu.runtime.engine import STORAGE, UNIFORM, wgpu_errors
from q8ta_wgpu.runtime.pipelines import Compiling, OpenDevice
from q8ta_wgpu.runtime.timestamps import timestamps

BINDINGS = """
@group(0) @binding(0) var<storage, read> a: array<i32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
struct Params { count: u32, base: f32, inverse_scale: f32, scale: f32 };
@group(0) @binding(3) var<uniform> params: Params;
"""

# Operands come from buffers and factors from the uniform, as in kernels, since compilers could fold constants.
_CONTRACT = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  let n = params.count;
  if (i >= n) { return; }
  let x = bitcast<f32>(b[i]);
  let finite = (b[i] & 0x7f800000u) != 0x7f800000u;
  let t = scaled_quad(vec4<i32>(a[i]), vec4<f32>(select(0.0, x, finite))).x;
  y[i] = t;
  y[n + i] = rte(t, FRACTION);
  y[2u * n + i] = select(round_within(x * params.inverse_scale, 1024.0), 0, is_nan(x));
  y[3u * n + i] = bitcast<i32>(f32(a[i]) * params.scale);
  y[4u * n + i] = dot4I8Packed(bitcast<u32>(a[i]), b[i]);
  let end = 0.25 * params.base;
  y[5u * n + i] = bitcast<i32>(clamp(f32(a[i]) * select(0.0, x, finite), -end, end) + params.base);
}
"""
_RULES = (
    "an accumulator times its multiplier, rounded and clamped",
    "a shift that rounds half to even",
    "quantize",
    "dequantize",
    "dot4I8Packed",
    "an accumulator times its multiplier, clamped and rounded by an addition",
)
_SCALE = 0.0372
_BASE = 1.5 * 2**23


_SHUFFLES = """
@compute @workgroup_size(8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  for (var i = 0u; i < params.count; i++) { y[8u * id.x + i] = bitcast<i32>(subgroupShuffle(b[id.x] + i, i)); }
}
"""


def shuffles(device: OpenDevice) -> bool:
    """Whether subgroupShuffle works within a workgroup of eight threads, in the order of its threads. False if the
    device has no subgroups, or needs a language extension for them, as Dawn does."""
    if "subgroup" not in device.wgpu.features:
        return False
    text, groups = resolve.complete(f"// probe of subgroups\n{BINDINGS}{_SHUFFLES}"), 64
    key = findings.digest("shuffles", text)
    if isinstance(known := findings.recall(device.info, key), bool):
        return known
    words = np.arange(8 * groups, dtype=np.uint32) * np.uint32(77)
    buffers = (np.zeros(1, np.int32), words, np.zeros(64 * groups, np.int32))
    found = run(device, text, buffers, np.array([8, 0, 0, 0], np.uint32).tobytes(), groups, 1)
    expected = np.repeat(words.reshape(groups, 1, 8), 8, 1) + np.arange(8, dtype=np.uint32)
    right = bool((found.view(np.uint32) == expected.reshape(-1)).all())
    findings.keep(device.info, key, right)
    return right


def contract(device: OpenDevice) -> str:
    """The first rule of the contract that `device` breaks, with an example; empty if it breaks none. Takes a few ms and
    one compilation."""
    a, b = _cases()
    expected = _expected(a, b)
    words = np.array([len(a)], np.uint32).tobytes() + np.array([_BASE, 1 / _SCALE, _SCALE], np.float32).tobytes()
    text = resolve.complete(f"// probe of the arithmetic contract\n{BINDINGS}{_CONTRACT}")
    key = findings.digest("contract", text, a.tobytes(), b.tobytes(), words, expected.tobytes())
    if findings.recall(device.info, key) is True:
        return ""
    found = run(device, text, (a, b, np.zeros(expected.size, np.int32)), words, -(-len(a) // 64), 1)
    wrong = np.argwhere(found.reshape(expected.shape) != expected)
    if not len(wrong):
        findings.keep(device.info, key, True)
        return ""
    rule, i = wrong[0]
    x, result = b[i : i + 1].view(np.float32)[0], found.reshape(expected.shape)[rule, i]
    return (
        f"{_RULES[rule]} of {a[i]} and {x} gives {result}, the contract {expected[rule, i]} "
        f"({len(wrong)} of {expected.size} results differ)"
    )


def _cases() -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Accumulators and the bits of floats: ties above 2^24, products at ties, out of range, denormals, NaN, random."""
    generator = np.random.default_rng(0)
    ends = (
        [2**24 + i for i in range(-3, 8)]
        + [2**25 + i for i in range(-6, 14, 2)]
        + [2**30 + 32 * i for i in range(-6, 14)]
    )
    halves = [2**13 + 2**14 * i for i in range(-6, 6)]
    edges = [2**31 - 1, -(2**31), -(2**31) + 1]
    accumulators = np.array([*ends, *(-e for e in ends), *halves, *range(-40, 40), *edges], np.int64)
    ties = [0.5, 0.25, 0.125, 0.75, 1.0, 1.5, 2.0**-14, 3 * 2.0**-15, 16384.5]
    limits = [3.4e38, 1e30, 2.0**100, 1e-40, 1.4e-45, 1.1754942e-38, 2.0**-126, 0.0, 1.0]
    factors = np.array([*ties, *limits], np.float32)
    pairs = [(acc, factor) for acc in accumulators for factor in factors]
    count = 2000
    random = np.exp(generator.uniform(-25, 12, count)).astype(np.float32)
    a = np.concatenate(
        [
            np.array([p[0] for p in pairs]),
            generator.integers(-(2**31), 2**31, count) >> generator.integers(0, 24, count),
        ]
    )
    b = np.concatenate([np.array([p[1] for p in pairs], np.float32), random])
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, -1e-40, -3e38, -0.0186, 0.0186, 0.0558], np.float32)
    # Multipliers are finite; only inputs of quantize may be infinite or NaN.
    return np.concatenate([a, np.ones(len(special))]).astype(np.int32), np.concatenate([b, special]).view(np.uint32)


def _expected(a: NDArray[np.int32], b: NDArray[np.uint32]) -> Array:
    x, wide = b.view(np.float32), a.astype(np.int64)
    usable = np.isfinite(x)
    t = np.where(usable, arithmetic.scaled_accumulator(wide, np.where(usable, x, np.float32(1))), 0)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.clip(np.rint(x * np.float32(1 / _SCALE)), np.float32(-1024), np.float32(1024))
    quantized = np.where(np.isnan(x), np.float32(0), rounded).astype(np.int64)
    dequantized = (a.astype(np.float32) * np.float32(_SCALE)).view(np.int32)
    dots = (a[:, None].view(np.int8).astype(np.int64) * b[:, None].view(np.int8)).sum(1)
    with np.errstate(over="ignore"):
        product = np.clip(a.astype(np.float32) * np.where(usable, x, np.float32(0)), -_BASE / 4, _BASE / 4)
    near = (product.astype(np.float32) + np.float32(_BASE)).view(np.int32)
    return np.stack([t, arithmetic.rte(t, arithmetic.FRACTION), quantized, dequantized, dots, near]).astype(np.int32)


_LOOPS = """
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  var turns = 0;
  for (var i = 0u; i < params.count / 64u; i++) {
    turns++;
    for (var k = 0u; k < b[0]; k++) { turns++; }
  }
  y[id.x] = turns + a[0];
}
"""


def loop_turns(device: OpenDevice, turns: int = LOOP_TURNS) -> int:
    """How many turns two nested loops of a thread take on `device`, of `turns` that they should. `turns` is a multiple
    of 64."""
    one = np.zeros(1, np.int32), np.full(1, 63, np.uint32), np.zeros(64, np.int32)
    words = np.array([turns, 0, 0, 0], np.uint32).tobytes()
    text = f"// probe of long loops\n{BINDINGS}{_LOOPS}"
    key = findings.digest("loop turns", text, words)
    if findings.recall(device.info, key) is True:
        return turns
    found = int(run(device, text, one, words, 1, 1)[0])
    if found == turns:
        findings.keep(device.info, key, True)
    return found


def _trial_key(trial: known_results.Trial) -> str:
    operands = (words.tobytes() for words in trial.operands)
    return findings.digest("matrix unit", *trial.program.shaders, trial.program.uniforms, *operands)


def passed(device: OpenDevice, trial: known_results.Trial) -> bool:
    """Whether the device computed the known result of a trial before, with this driver and engine."""
    return findings.recall(device.info, _trial_key(trial)) is True


def fault(device: OpenDevice, trial: known_results.Trial, compiling: Compiling) -> str:
    """Runs the trial of a kernel for matrix units. What is wrong with its result; empty if nothing."""
    operands = trial.operands
    result = np.full(trial.expected.size, 0x8F7F80FF, np.uint32)
    try:
        compiling.pipeline(*trial.shader)
        with device.lock, wgpu_errors(f"{device.name} could not run a trial of {trial.kernel}"):
            found = run(device, trial.shader[0], (*operands, result), trial.uniform, trial.groups, 1)
    except DeviceError as error:
        return str(error)
    if wrong := known_results.wrong_words(trial, found.view(np.uint32)):
        return f"{trial.kernel} gives {wrong} of {trial.expected.size} words otherwise than the reference"
    findings.keep(device.info, _trial_key(trial), True)
    return ""


def run(
    device: OpenDevice, text: str, buffers: Sequence[Array], uniform: bytes, groups: int, repeats: int
) -> NDArray[np.int32]:
    """Dispatches a probe `repeats` times and returns the last buffer."""
    with prepared(device, text, buffers, uniform) as probe:
        encoder = device.wgpu.create_command_encoder()
        probe.record(encoder.begin_compute_pass(), groups, repeats)
        device.wgpu.queue.submit([encoder.finish()])
        return np.frombuffer(device.read(probe.written, buffers[-1].nbytes), np.int32)


@dataclass(frozen=True)
class Probe:
    """A kernel and its buffers. `written` is the last of them."""

    device: OpenDevice
    pipeline: Any
    group: Any
    written: Any

    def record(self, compute: Any, groups: int, repeats: int) -> None:
        """Fills a compute pass with `repeats` dispatches and ends it."""
        compute.set_pipeline(self.pipeline)
        compute.set_bind_group(0, self.group)
        for _ in range(repeats):
            compute.dispatch_workgroups(groups)
        compute.end()

    def elapsed(self, groups: int, repeats: int = 1) -> float:
        """Seconds that the device takes for `repeats` dispatches."""
        gpu = self.device.wgpu
        encoder = gpu.create_command_encoder()
        if self.device.timestamps:
            with timestamps(self.device, 1) as stamps:
                self.record(encoder.begin_compute_pass(timestamp_writes=stamps.around(0)), groups, repeats)
                return float(stamps.submit(encoder)()[0]) / 1e6
        self.record(encoder.begin_compute_pass(), groups, repeats)
        commands = encoder.finish()
        started = time.perf_counter()
        gpu.queue.submit([commands])
        self.device.read(self.written, 16)
        return time.perf_counter() - started


@contextlib.contextmanager
def prepared(device: OpenDevice, text: str, buffers: Sequence[Array | int], uniform: bytes) -> Iterator[Probe]:
    """A probe with buffers of these contents, or of these sizes in bytes, which are freed at the end."""
    compiled, gpu = device.pipeline(text, len(buffers)), device.wgpu
    with contextlib.ExitStack() as resources:

        def freed(buffer: Any) -> Any:
            resources.callback(buffer.destroy)
            return buffer

        bound = [
            freed(
                gpu.create_buffer(size=content, usage=STORAGE)
                if isinstance(content, int)
                else gpu.create_buffer_with_data(data=content, usage=STORAGE)
            )
            for content in buffers
        ]
        params = freed(gpu.create_buffer_with_data(data=uniform, usage=UNIFORM))
        group = device.bind_group(compiled, [{"buffer": buffer} for buffer in (*bound, params)])
        yield Probe(device, compiled.pipeline, group, bound[-1])
