"""Whole networks: all compute in int8 without float islands, the device equal to the reference byte for byte."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from torch.export import ExportedProgram

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from q8ta_wgpu.passes.layout_sync.layout_sync import sync_layouts
from q8ta_wgpu.runtime.device import Device
from testbed import harness
from testbed.harness import flat
from testbed.networks import NETWORKS, transformer
from testbed.sample import in_turn
from tests import simulation

FULL = ("resnet50", "mobilenet_v2", "mobilenet_v3")
INT8 = (*FULL, "unet", "linear_chain", "refinenet", "shufflenet", "transformer")


@cache
def quantized(name: str) -> tuple[ExportedProgram, q8.Model, Array]:
    """The int8 program and model of a network and one input nobody calibrated on, small enough to simulate quickly."""
    shape = (1, 3, 96, 96) if name in FULL else NETWORKS[name].small_shape
    generator = torch.Generator().manual_seed(7)
    batches = [torch.randn(shape, generator=generator) for _ in range(2)]
    module = transformer(depth=2) if name == "transformer" else NETWORKS[name].factory()
    program = q8.quantize(
        module, (batches[0],), calibration=batches, quantizer=q8.Quantizer(precision="int8"), progress=False
    )
    x = torch.randn(shape, generator=generator).numpy()
    return program, q8.compile(program), x


@pytest.mark.parametrize("name", INT8)
def test_every_node_is_int8(name: str) -> None:
    report = quantized(name)[1].report()
    assert report.float32 == {}, str(report)
    assert report.islands == ()
    assert report.exact


@pytest.mark.parametrize("name", in_turn(INT8, 0, 2))
def test_device_equals_reference(name: str, vulkan: Device) -> None:
    """Image networks at their published size, whose kernels are others than a small image's. Outside of `make test-all`
    half of the networks meet this device, the others the next one."""
    _, model, x = quantized(name)
    if name in FULL:
        model, x = model.reshape(NETWORKS[name].shape), np.resize(x, NETWORKS[name].shape)
    with q8.Session(model, vulkan) as session:
        found = session(x)
    expected = q8.Session(model, "reference")(x)
    for f, e in zip(flat(found), flat(expected), strict=True):
        assert int((f != e).sum()) == 0


@pytest.mark.parametrize("name", in_turn(INT8, 1, 2))
def test_dawn_equals_reference(name: str, swiftshader: Device) -> None:
    """Through Tint and SwiftShader's compiler, on small images."""
    _, model, x = quantized(name)
    with q8.Session(model, swiftshader) as session:
        found = session(x)
    expected = q8.Session(model, "reference")(x)
    assert [int((f != e).sum()) for f, e in zip(flat(found), flat(expected), strict=True)] == [0] * len(flat(found))


@pytest.mark.parametrize("name", INT8)
def test_operators_against_torch(name: str) -> None:
    """What torch's simulation gives on the same operands, rounded."""
    program, model, x = quantized(name)
    compared = simulation.compare(program, model, {model.graph.inputs[0]: x})
    assert len(compared) >= 5
    far = [c for c in compared if not c.holds]
    assert not far, far


def test_every_dispatch_of_a_network_in_float32(vulkan: Device) -> None:
    """Fed with the reference's values, each dispatch of a transformer that nobody quantized gives the reference's
    values within the tolerance its operator states."""
    entry = NETWORKS["transformer"]
    x = torch.randn(entry.small_shape, generator=torch.Generator().manual_seed(3))
    model = q8.compile(torch.export.export(transformer(depth=2), (x,)))
    report = model.report()
    assert not report.exact
    assert {"softmax", "layer_norm", "matmul"} <= set(report.float32)
    (name,) = model.graph.inputs
    values = reference.run(model.graph, {name: model.graph.stored(name, x.numpy())}, keep=True)
    seen = Counter[str]()
    for step, plan, graph in harness.dispatches(model.graph, sync_layouts(model.graph, vulkan.target)):
        inputs = {name: values[name] for name in graph.inputs}
        expected = reference.run(graph, inputs)[step.node.output]
        (found,) = harness.run_poisoned(graph, inputs, plan, vulkan)
        harness.assert_close(OPS[step.node.op], found, expected, f"{step.variant.kernel.name} for {step.node.output}")
        values[step.node.output] = expected
        seen[step.node.op] += 1
    assert seen["matmul"] == 4
    assert seen["layer_norm"] == 5
    with q8.Session(model, vulkan) as session:
        whole = flat(session(x))[0]
    exact = values[model.graph.outputs[0]]
    assert np.abs(whole - exact).mean() <= 1e-4 * np.abs(exact).mean()
