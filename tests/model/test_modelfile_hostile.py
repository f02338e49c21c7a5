"""Model files at random, and attributes at and past every edge: what a schema accepts bounds what a shader does."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from q8ta_wgpu.errors import GraphError, ModelFileError, Q8taError
from q8ta_wgpu.ir.graph import Array, Call, QParams, TensorType
from q8ta_wgpu.ir.op import MAX_EXTENT, MAX_WORK, Op
from q8ta_wgpu.kernels import OPS
from q8ta_wgpu.model import reference
from testbed import harness
from testbed.modelfiles import MODEL, SECONDS, forge, node, read, refused, same, unpacked
from testbed.small import SHAPE

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])

KINDS = ("flip", "set", "cut", "insert", "copy")
MUTATION = st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32), st.binary(min_size=1, max_size=9))


@FUZZ
@given(mutations=st.lists(MUTATION, min_size=1, max_size=4))
def test_random_bytes(mutations: list[tuple[str, int, bytes]], saved: bytes, tmp_path: Path) -> None:
    data = bytearray(saved)
    for kind, where, new in mutations:
        at = where % (len(data) + 1)
        match kind:
            case "flip" if at < len(data):
                data[at] ^= 1 << (new[0] % 8)
            case "set":
                data[at : at + len(new)] = new
            case "cut":
                del data[at : at + 1 + new[0]]
            case "insert":
                data[at:at] = new
            case "copy":
                data[at:at] = data[at : at + new[0]]
    with contextlib.suppress(ModelFileError):
        assert same(read(bytes(data), tmp_path), MODEL)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of every member of a JSON document."""
    items: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for key, member in items:
        yield (*path, key)
        yield from places(member, (*path, key))


NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 127, 128, 255, 2**16, MAX_EXTENT, 2**31, 2**32, 2**40, 2**63, 10**40]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-8, 16),
)
HOSTILE = st.recursive(
    st.one_of(
        NUMBERS,
        st.none(),
        st.booleans(),
        st.text(max_size=6),
        st.sampled_from(["x", "table", "sum.q", "first.q", *OPS]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@FUZZ
@given(choices=st.lists(st.tuples(st.integers(0, 10**6), st.booleans(), HOSTILE), min_size=1, max_size=3))
def test_random_documents(choices: list[tuple[int, bool, Any]], saved: bytes, tmp_path: Path) -> None:
    """What still loads is a valid model: it schedules (or says why not) and the reference can run it."""

    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        for number, delete, new in choices:
            paths = list(places(data))
            path = paths[number % len(paths)]
            parent: Any = data
            for key in path[:-1]:
                parent = parent[key]
            if delete and isinstance(parent, dict):
                del parent[path[-1]]
            else:
                parent[path[-1]] = new

    started = time.process_time()
    try:
        model = read(forge(saved, edit), tmp_path)
    except ModelFileError:
        return
    finally:
        assert time.process_time() - started < SECONDS
    try:
        harness.program_of(model.graph)
    except Q8taError:
        return
    if sum(OPS[n.op].steps(model.graph.call(n)) for n in model.graph.nodes) < 10**8:
        inputs = {name: np.zeros(t.shape, np.float32 if t.q is None else np.int8) for name, t in model.inputs.items()}
        reference.run(model.graph, inputs)


def hostile_values(old: Any) -> list[Any]:
    """Values of the kind an attribute has, at and past every edge."""
    numbers = [0, 1, -1, 2, 3, 7, 64, 255, 2**16, MAX_EXTENT - 1, MAX_EXTENT, -MAX_EXTENT]
    if isinstance(old, bool):
        return [not old]
    if isinstance(old, (int, float)):
        return [*numbers, 0.5, -0.5, 1e30, 2**40, math.nan, math.inf, True, "1", None]
    if isinstance(old, (tuple, list)):
        lists: list[Any] = [(n,) * len(old) for n in numbers]
        lists += [(*old[:-1], n) for n in numbers] if old else []
        return [*lists, (), (*old, 1), old[:-1], (1,) * 64, (2,) * 65, old[::-1], "12", None, (None,), ((1,),)]
    return ["", "other", 3, None, []]


CASES = [(op, i) for op in OPS.values() for i in range(len(op.cases))]


@pytest.mark.parametrize(("op", "index"), CASES, ids=lambda v: v.name if isinstance(v, Op) else str(v))
def test_hostile_attributes_of_every_operator(op: Op, index: int) -> None:
    """A shape rule answers with a shape or a GraphError, never with another error; small calls then run."""
    case = op.cases[index]
    types = tuple(TensorType(s, op.operand(i, case.attrs).dtypes[0], _q(op, i)) for i, s in enumerate(case.shapes))
    for name in op.schema:
        for new in hostile_values(case.attrs[name]):
            attrs = {**case.attrs, name: new}
            try:
                shape, dtype = op.check(types, attrs)
            except GraphError:
                continue
            assert all(type(d) is int for d in shape), (attrs, shape)
            if min(shape, default=1) < 1:
                continue  # no TensorType can have such a shape
            call = Call(op.name, attrs, types, TensorType(shape, dtype, _output_q(dtype)))
            steps = op.steps(call)
            assert type(steps) is int
            assert steps >= 0
            if steps < 1 << 16 and not any(o.constant for o in op.operands) and dtype == "float32":
                arrays = [
                    np.ones(s, np.float32 if t.q is None else np.int8) for s, t in zip(case.shapes, types, strict=True)
                ]
                with np.errstate(all="ignore"):
                    found = op.reference(call, arrays)
                assert found.shape == shape, attrs


def _q(op: Op, position: int) -> Any:
    return QParams(0.1, 3) if op.operand(position, {}).dtypes[0] == "int8x4" else None


def _output_q(dtype: str) -> Any:
    return QParams(0.1, 3) if dtype == "int8x4" else None


def test_work_is_bounded(saved: bytes, tmp_path: Path) -> None:
    """Sizes that are allowed one by one, but whose product would keep a device busy for hours."""

    def edit(data: dict[str, Any], constants: dict[str, Array]) -> None:
        taps = (6, 5, 501, 401)
        constants["first.q.weight"] = np.zeros(taps, np.int8)
        constants["first.q.correction"][:] = 0
        data["values"]["first.q.weight"]["shape"] = list(taps)
        node(data, "q8ta_conv2d")["attrs"].update(padding=[2**12] * 4)
        data["values"]["first.q"]["shape"] = [2, 6, 6 + 2**13 - 500, 7 + 2**13 - 400]

    message = refused(forge(saved, edit), tmp_path)
    assert "steps" in message
    assert MAX_WORK == 2**42
    largest = Call(
        "conv2d", {}, (TensorType((1, 128, 2160, 3840)), TensorType((128, 128, 3, 3))), TensorType((1, 128, 2160, 3840))
    )
    assert OPS["conv2d"].steps(largest) < MAX_WORK, "a 4K image through 128 channels stays allowed"
    assert list(SHAPE) == unpacked(saved)[0]["values"]["x"]["shape"]
