"""Float operators at NaN, infinities, zeros, denormal and huge numbers: the device as the reference, that as torch.

A NaN or an infinity comes out where torch gives one. A denormal number may count as any other of its sign, from zero to
the smallest normal one. Sums and products are float32 and may overflow on the way. The sign of a zero is kept where
torch's result depends on it (1 / -0).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from q8ta_wgpu.ir.graph import FLOAT32, Array, Graph
from q8ta_wgpu.ir.op import FLOAT_MAX, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.kernels.elementwise.functions import ROWS
from q8ta_wgpu.model import reference
from q8ta_wgpu.runtime.adapters import open_device
from q8ta_wgpu.runtime.device import Device
from testbed import harness, op_graphs
from testbed.devices import BACKENDS, OPENED
from tests import oracle

NAN, INF, TINY = np.float32(np.nan), np.float32(np.inf), np.finfo(np.float32).tiny
NUMBERS = (0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 88.0, -104.0, 6e4, 1e20, -1e20, 3e38, -3e38)
FLOATS = [
    op
    for op in OPS.values()
    if op.kernels and op.name in oracle.TORCH and all(FLOAT32 in operand.dtypes for operand in op.operands)
    if op.name != "upsample_bilinear"
]
"""Not bilinear resizing: at weights of 0, torch reads a NaN beside the place in two dimensions and not in one."""
ELEMENTWISE = [op for op in FLOATS if op.name in (*(row.name for row in ROWS), "add", "mul", "prelu")]
JOINING = [op for op in FLOATS if op not in ELEMENTWISE]


PRECISE = [name for name in BACKENDS if name != "swiftshader"]
"""SwiftShader's own float functions give other results at NaN, infinities and huge numbers, which WGSL allows; int8 has
none of them."""


@pytest.fixture(params=PRECISE)
def device(request: pytest.FixtureRequest) -> Device:
    """Every backend but SwiftShader."""
    return open_device(OPENED.get(request.param, f"wgpu-native:{request.param}"))


def _id(op: Op) -> str:
    return op.name


def dense(op: Op, index: int) -> tuple[Graph, dict[str, Array]]:
    """Every pair of special values somewhere."""
    graph, inputs = op_graphs.float_graph(op, op.cases[index])
    values = np.array([*NUMBERS, NAN, INF, -INF], np.float32)
    for step, (name, array) in enumerate(inputs.items()):
        at = np.arange(array.size) // (values.size if step else 1) + step
        inputs[name] = values[at % values.size].reshape(array.shape)
    return graph, inputs


def sparse(op: Op, index: int) -> tuple[Graph, dict[str, dict[str, Array]]]:
    """A graph, and inputs by name with one or two special values in the first operand or a state, at its start, inside
    it and at its end, else numbers."""
    graph, numbers = op_graphs.float_graph(op, op.cases[index])
    found: dict[str, dict[str, Array]] = {}
    states = [name for at, name in enumerate(graph.nodes[0].inputs) if op.operand(at, op.cases[index].attrs).real]
    for of in (graph.inputs[0], *states):
        size = numbers[of].size
        for name, values in {"nan": [NAN], "inf": [INF], "-inf": [-INF], "infinities": [INF, -INF]}.items():
            for place in (0, size // 3, size - len(values)):
                array = numbers[of].copy()
                array.reshape(-1)[max(place, 0) :][: len(values)] = values[:size]
                found[f"{name} at {place} of {of}"] = {**numbers, of: array}
    return graph, found


def without_denormals(inputs: dict[str, Array], size: np.float32) -> dict[str, Array]:
    """Denormal numbers replaced by others of their sign."""
    return {k: np.where(np.abs(v) < TINY, np.copysign(size, v), v) for k, v in inputs.items()}


def agree(found: Array, expected: Array, tolerance: float, size: float = 1.0) -> Array:
    """Element by element: both NaN, the same infinity, or numbers within the tolerance."""
    finite = np.isfinite(found) & np.isfinite(expected)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(found.astype(np.float64) - expected) <= tolerance * (size + np.abs(expected)) + 1e-37
    return np.asarray((finite & near) | (found == expected) | (np.isnan(found) & np.isnan(expected)))


def check(name: str, inputs: dict[str, Array], found: Array, expected: Array, fits: Array) -> None:
    if not fits.all():
        at = tuple(np.argwhere(~fits)[0])
        given = [a[at] for a in inputs.values() if a.shape == found.shape]
        pytest.fail(f"{name}: {(~fits).sum()} of {found.size} differ; of {given} {found[at]}, expected {expected[at]}")


def exact(op: Op) -> float:
    """What a result may be off by in float32."""
    return max(op.tolerance, 1e-6) * 4


@pytest.mark.parametrize("op", ELEMENTWISE, ids=_id)
def test_elementwise_on_a_device(op: Op, device: Device) -> None:
    for index in range(len(op.cases)):
        graph, inputs = dense(op, index)
        expected = reference.run(graph, inputs)["y"]
        others = [reference.run(graph, without_denormals(inputs, size))["y"] for size in (np.float32(0), TINY)]
        _, plan = next(harness.plans(graph, index))
        (found,) = harness.run_poisoned(graph, inputs, plan, device)
        between = (np.minimum(*others) <= found) & (found <= np.maximum(*others))
        fits = np.logical_or.reduce([agree(found, each, exact(op)) for each in (expected, *others)])
        check(f"{op.cases[index]}", inputs, found, expected, fits | between)


@pytest.mark.parametrize("op", JOINING, ids=_id)
def test_operators_that_join_elements_on_a_device(op: Op, device: Device) -> None:
    """The first case and the last, on each of their kernels."""
    for index in sorted({0, len(op.cases) - 1}):
        graph, every = sparse(op, index)
        wanted = {name: reference.run(graph, inputs)["y"] for name, inputs in every.items()}
        for kernel, plan in harness.plans(graph, index):
            results = harness.run_each_poisoned(graph, every.values(), plan, device)
            for (name, expected), (found,) in zip(wanted.items(), results, strict=True):
                size = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
                fits = agree(found, expected, exact(op), size)
                check(f"{name}, {kernel}, {op.cases[index]}", every[name], found, expected, fits)


def in_torch(op: Op, graph: Graph, inputs: dict[str, Array]) -> Array:
    attrs = graph.nodes[0].attrs
    if op.name == "clamp":
        attrs = {name: np.copysign(np.inf, v) if abs(v) == FLOAT_MAX else v for name, v in attrs.items()}
    arrays = {**graph.constants, **inputs}
    tensors = [torch.from_numpy(arrays[name].astype(np.float64)) for name in graph.nodes[0].inputs]
    found: Array = oracle.TORCH[op.name](attrs, *tensors).numpy()
    with np.errstate(over="ignore"):
        return np.asarray(found, np.float32)


@pytest.mark.parametrize("op", FLOATS, ids=_id)
def test_the_reference_is_torch(op: Op) -> None:
    for index in range(len(op.cases)):
        every: dict[str, dict[str, Array]] = {}
        if op in ELEMENTWISE:
            graph, every["dense"] = dense(op, index)
        else:
            graph, every = sparse(op, index)
        for name, inputs in every.items():
            expected, found = in_torch(op, graph, inputs), reference.run(graph, inputs)["y"]
            size = 1.0 if op in ELEMENTWISE else max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
            check(f"{name}, {op.cases[index]}", inputs, found, expected, agree(found, expected, exact(op), size))
