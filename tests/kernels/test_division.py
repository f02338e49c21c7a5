"""Divisions of float32, which WGSL promises to 2.5 units in the last place: here they are IEEE's."""

from __future__ import annotations

import numpy as np
import pytest

import q8ta_wgpu as q8
from q8ta_wgpu.ir.graph import Array, Attrs, Graph, Node, TensorType
from q8ta_wgpu.model.model import Model
from q8ta_wgpu.model.structure import Structure
from q8ta_wgpu.runtime.device import Device

COUNT = 1 << 15


def numbers(seed: int) -> Array:
    """Half of them multiples of a few steps, so that many quotients are whole; half any normal numbers."""
    generator = np.random.default_rng(seed)
    steps = generator.choice([1.0, 0.1, 49.0, 1 / 3], COUNT // 2)
    whole = (generator.integers(1, 3000, COUNT // 2) * steps).astype(np.float32)
    size = generator.integers(0x00800000, 0x7F800000, COUNT // 2, dtype=np.uint32)
    sign = generator.integers(0, 2, COUNT // 2, dtype=np.uint32) << 31
    return np.concatenate([whole, (size | sign).view(np.float32)])


def quotients(op: str, attrs: Attrs, device: Device, *operands: Array) -> Array:
    names = [f"x{i}" for i in range(len(operands))]
    types = {name: TensorType((COUNT,)) for name in (*names, "y")}
    graph = Graph(names, ["y"], [Node(op, tuple(names), "y", attrs)], types)
    with q8.Session(Model(graph, Structure(0)), device) as session:
        found: Array = session(*operands)
    return found


def check(found: Array, expected: Array) -> None:
    normal = np.abs(expected) >= np.finfo(np.float32).tiny
    np.testing.assert_array_equal(found[normal], expected[normal])
    assert (np.abs(found[~normal]) <= np.finfo(np.float32).tiny).all()


def test_a_division_by_a_number_is_rounded_once(device: Device) -> None:
    for divisor in (49.0, 0.1, -3.0, float(np.pi), 1e-30, 3e30, 255.0, 2.0**-20):
        x = numbers(1)
        with np.errstate(over="ignore", under="ignore"):
            check(quotients("divide", {"divisor": divisor}, device, x), x / np.float32(divisor))


def test_a_division_of_two_tensors_is_rounded_once(device: Device) -> None:
    a, b = numbers(2), np.random.default_rng(4).permutation(numbers(3))
    with np.errstate(over="ignore", under="ignore"):
        check(quotients("div", {}, device, a, b), a / b)


@pytest.mark.parametrize("op", ["div", "floor_divide_tensors"])
def test_zeros_infinities_and_nan_give_what_numpy_gives(op: str, device: Device) -> None:
    special = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan], np.float32)
    a, b = (np.resize(x, COUNT) for x in (np.repeat(special, len(special)), np.tile(special, len(special))))
    with np.errstate(all="ignore"):
        expected = a / b if op == "div" else np.floor_divide(a, b)
    np.testing.assert_array_equal(quotients(op, {}, device, a, b), expected)
