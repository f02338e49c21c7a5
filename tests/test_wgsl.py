"""Every module that the operators' cases reach is WGSL as the specification has it: Tint, which Chrome and Dawn compile
with, takes it. Dawn's Null backend needs no GPU for that; naga is what all other tests compile with."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import wgpudawn

from q8ta_wgpu.ir.layout import word_count
from q8ta_wgpu.ir.target import BASELINE, SOFTWARE
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.passes.layout_sync.plan import Step
from q8ta_wgpu.program import link
from tests import harness

TARGETS = tuple(replace(kind, packed_dot=packed) for kind in (BASELINE, SOFTWARE) for packed in (True, False))
EVERY = 5
"""Of the kernels of a weighted sum with more than a range behind it, every so-manieth is compiled: a kernel is linked
from a body and an epilogue that know nothing of each other. Each epilogue meets a different fifth."""


def steps() -> Iterator[Step]:
    """A step for every kernel of every graph, in enough layouts that each is read and written."""
    for graph, index, epilogue in harness.graphs():
        if len(graph.nodes) != 1:
            continue
        kernels = OPS[graph.nodes[0].op].kernels
        for _, plan in harness.plans(graph, index):
            step = plan.steps[0]
            place = next(i for i, kernel in enumerate(kernels) if kernel is step.variant.kernel)
            if not epilogue or (place + epilogue) % EVERY == 0:
                yield step


@functools.cache
def modules() -> dict[str, Step]:
    """Every linked module, for CPUs and GPUs, with packed and with emulated dot products, and a step it is of."""
    found: dict[str, Step] = {}
    for step in steps():
        op, kernel = OPS[step.node.op], step.variant.kernel
        params = link.fields(kernel, op, step.call, word_count(step.call.output.shape, step.variant.out))
        for target in TARGETS:
            if kernel.runs(step.call, target):
                text = link.link(kernel, op, step.call, step.variant.reads, step.variant.out, params, target)
                found.setdefault(text, step)
    return found


@pytest.fixture(scope="module")
def tint() -> wgpudawn.GPUDevice:
    """A device that compiles WGSL with Tint and runs nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WGPU_BACKEND_TYPE", "Null")
        adapter = wgpudawn.gpu.request_adapter_sync()
    assert adapter.info["backend_type"] == "Null"
    return adapter.request_device_sync()


def refused(text: str, tint: wgpudawn.GPUDevice) -> str:
    """What Tint says against a module, or an empty string."""
    try:
        module = tint.create_shader_module(code=text)
        tint.create_compute_pipeline(layout="auto", compute={"module": module, "entry_point": "main"})
    except wgpudawn.GPUError as error:
        return str(error)
    return ""


def test_tint_takes_every_module(tint: wgpudawn.GPUDevice) -> None:
    wrong = {step.variant.kernel.name: text for module, step in modules().items() if (text := refused(module, tint))}
    assert not wrong, wrong


def test_tint_refuses_what_naga_alone_takes(tint: wgpudawn.GPUDevice) -> None:
    """The test above can fail: operators mixed without parentheses."""
    text = "@compute @workgroup_size(1) fn main() { let a = 1u >> 2u & 3u; }"
    assert "requires parenthesis" in refused(text, tint)
