"""Loops written out: the same numbers as before on a device, and what is not understood stays as it is."""

from __future__ import annotations

import re

import numpy as np
import pytest

from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.product import gemm
from q8ta_wgpu.program import link
from q8ta_wgpu.program.program import Dispatch, Port, Program
from q8ta_wgpu.program.unroll import MOST_TURNS, unroll
from q8ta_wgpu.program.wgsl_definitions import definitions, scan
from q8ta_wgpu.runtime.device import Device
from q8ta_wgpu.runtime.executor import Executor
from testbed import harness, op_graphs

COUNT = 64

MODULE = """
const ROWS = 3u;
const QUADS = ROWS + 1u;  // a comment with a brace {
const HALF = (ROWS * QUADS) / 2u;
const UNKNOWN = select(2u, 5u, ROWS > 2u);
struct Params { words: u32 }
struct Item { i: u32 }
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

FUNCTIONS

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < params.words) { CALLS }
}
"""

WRITTEN_OUT = {
    "a constant": "for (var i = 0u; i < QUADS; i++) { sum = sum * 3u + i; }",
    "a number": "for (var i = 0u; i < 5u; i++) { sum = sum * 3u + i; }",
    "an expression": "for (var i = 0u; i < HALF; i++) { sum = sum * 3u + i; }",
    "nested": "for (var i = 0u; i < ROWS; i++) { for (var j = 0u; j < QUADS; j++) { sum = sum * 3u + i * j; } }",
    "one after the other": (
        "var a: array<u32, ROWS>; for (var i = 0u; i < ROWS; i++) { a[i] = sum * i; } "
        "for (var i = 0u; i < ROWS; i++) { let b = a[i]; if (b % 2u == 0u) { sum += b; } }"
    ),
    "a member of the same name": "for (var i = 0u; i < ROWS; i++) { let item = Item(i); sum = sum * 3u + item.i; }",
    "a return": "for (var i = 0u; i < ROWS; i++) { sum = sum * 3u + i; if (sum % 5u == 0u) { return i; } }",
    "no turn": "for (var i = 0u; i < 0u; i++) { sum = 0u; }",
}

LEFT = {
    "break": "for (var i = 0u; i < QUADS; i++) { if (sum % 7u == i) { break; } sum += i; }",
    "continue": "for (var i = 0u; i < QUADS; i++) { if (sum % 7u == i) { continue; } sum += i; }",
    "sets its variable": "for (var i = 0u; i < QUADS; i++) { sum = sum * 3u + i; if (sum % 2u == 0u) { i += 1u; } }",
    "a pointer to its variable": "for (var i = 0u; i < QUADS; i++) { let at = &i; *at += 1u; sum = sum * 3u + i; }",
    "not a constant": "for (var i = 0u; i < params.words; i++) { sum = sum * 3u + i; }",
    "a constant that is not understood": "for (var i = 0u; i < UNKNOWN; i++) { sum = sum * 3u + i; }",
    "another step": "for (var i = 0u; i < QUADS; i += 2u) { sum = sum * 3u + i; }",
    "another start": "for (var i = 1u; i < QUADS; i++) { sum = sum * 3u + i; }",
    "too many turns": f"for (var i = 0u; i < {MOST_TURNS + 1}u; i++) {{ sum = sum * 3u + i; }}",
    "another loop": "while (sum % 4u != 0u) { sum += 1u; }",
}

MIXED = {  # the bound of the loop that stays, the loops
    "inside one that stays": (
        "params.words",
        "for (var i = 0u; i < params.words; i++) { for (var j = 0u; j < ROWS; j++) { sum = sum * 3u + i + j; } }",
    ),
    "around one that stays": (
        "params.words",
        "for (var i = 0u; i < ROWS; i++) { for (var j = 0u; j < params.words; j++) { sum = sum * 3u + i + j; } }",
    ),
    "around one of the same name": (
        "ROWS",
        "for (var i = 0u; i < ROWS; i++) { sum += i; for (var i = 0u; i < QUADS; i++) { sum = sum * 3u + i; } }",
    ),
}


def module(*bodies: str) -> str:
    """A kernel of COUNT words, each put through a function of each body."""
    functions = [f"fn f{i}(v: u32) -> u32 {{ var sum = v; {body} return sum; }}" for i, body in enumerate(bodies)]
    calls = [f"y[id.x * {len(bodies)}u + {i}u] = f{i}(x[id.x]);" for i in range(len(bodies))]
    return MODULE.replace("FUNCTIONS", "\n".join(functions)).replace("CALLS", " ".join(calls))


def found(text: str, results: int, device: Device) -> np.ndarray:
    """What a module makes of COUNT words: (words, results of each)."""
    ports = [
        Port(name, (COUNT, each), "int32", "row", ("slot", i), 4 * COUNT * each)
        for i, (name, each) in enumerate((("x", 1), ("y", results)))
    ]
    dispatch = Dispatch("test", "y", "", 0, (("slot", 0), ("slot", 1)), (0, 16), (1, 1, 1), (), 0, 0)
    uniforms = np.array([COUNT, 0, 0, 0], np.uint32).tobytes()
    sizes = tuple(port.size for port in ports)
    executor = Executor(Program((text,), sizes, (), uniforms, (dispatch,), (ports[0],), (ports[1],)), device)
    try:
        words = op_graphs.rng("unroll").integers(0, 1 << 32, COUNT, dtype=np.uint32)
        return executor.run([words])[0].copy().reshape(COUNT, results)
    finally:
        executor.close()


def test_the_numbers_are_the_same(vulkan: Device) -> None:
    bodies = (*WRITTEN_OUT.values(), *(body for _, body in MIXED.values()))
    text = module(*bodies)
    before, after = (found(t, len(bodies), vulkan) for t in (text, unroll(text)))
    differ = (before != after).any(axis=0)
    assert not differ.any(), [body for body, wrong in zip(bodies, differ, strict=True) if wrong]
    assert all(np.unique(column).size > 1 for column in before.T)


@pytest.mark.parametrize("body", WRITTEN_OUT.values(), ids=WRITTEN_OUT)
def test_loops_with_constant_bounds_are_written_out(body: str) -> None:
    assert "for (" not in unroll(module(body))


@pytest.mark.parametrize("body", LEFT.values(), ids=LEFT)
def test_what_is_not_understood_stays(body: str) -> None:
    assert body in unroll(module(body))


@pytest.mark.parametrize(("left", "body"), MIXED.values(), ids=MIXED)
def test_one_of_two_loops_stays(left: str, body: str) -> None:
    assert set(re.findall(r"for \(var \w = 0u; \w < ([\w.]+);", unroll(module(body)))) == {left}


def test_an_open_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="not closed"):
        unroll("fn f() { for (var i = 0u; i < 2u; i++) { g(i);")


@pytest.mark.parametrize("kernel", OPS["q8ta_conv2d"].kernels, ids=lambda kernel: kernel.name)
def test_only_a_cpu_s_kernels_are_written_out(kernel: object) -> None:
    """What a GPU compiles is the sources as they are, but for matrix units, whose sums are in arrays, and for depthwise
    strips."""
    op = OPS["q8ta_conv2d"]
    for index in range(len(OPS["conv2d"].cases)):
        graph, _ = op_graphs.int8_graph(OPS["conv2d"], OPS["conv2d"].cases[index], op_graphs.SETTINGS[0])
        for _, plan in harness.plans(graph, index, (BASELINE, SOFTWARE, harness.UNITS)):
            step = plan.steps[0]
            if step.variant.kernel is not kernel:
                continue
            params = link.fields(step.variant.kernel, op, step.call, 1)
            texts = [
                link.link(step.variant.kernel, op, step.call, step.variant.reads, step.variant.out, params, target)
                for target in (BASELINE, SOFTWARE)
            ]
            files = step.variant.kernel.linked(step.call)[0]
            (source,) = (d for d in definitions()["main"] if d.file in files)
            (main,) = (d for d in scan(texts[0]) if d.name == "main")
            written = step.variant.kernel.unrolled(BASELINE)
            assert (main.text.count("for (") == source.text.count("for (")) == (not written)
            assert (texts[0] != texts[1]) == (step.variant.kernel.unrolled(SOFTWARE) != written)
            return
    raise AssertionError("no case reaches it")


def test_products_in_registers_are_a_cpu_s_alone() -> None:
    sizes = ((1, 1, 1), (49, 160, 60), (100, 9, 18), (3136, 64, 144), (12544, 96, 4))
    for narrow in (False, True):
        chosen = {gemm.choose(s, SOFTWARE, narrow) for s in sizes}
        assert all(gemm.NARROW_TILES[name].body == gemm.REGISTERS for name in chosen) and len(chosen) == 1 + narrow
        assert not any(gemm.NARROW_TILES[gemm.choose(s, BASELINE, narrow)].body == gemm.REGISTERS for s in sizes)
    for tile in gemm.NARROW_TILES.values():
        assert tile.fits(BASELINE) == (tile.body == "gemm")


def test_beside_matrices_only_their_arrays_are_written_out() -> None:
    """Where matrix units multiply, drivers unroll the other loops themselves, in less than half the time."""
    product = "sums[i] = subgroupMatrixMultiplyAccumulate(a[i], b, sums[i]);"
    text = f"for (var s = 0u; s < 4u; s++) {{ for (var i = 0u; i < 2u; i++) {{ {product} }} }}"
    loads = "for (var i = 0u; i < 4u; i++) { next[i] = x[i]; }"
    found = unroll(text + loads, {}, matrices=True)
    assert loads in found and found.count("for (var s") == 1 and found.count("subgroupMatrixMultiply") == 2
    assert unroll(text, {}).count("subgroupMatrixMultiply") == 8
