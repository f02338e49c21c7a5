"""onnx's own node tests, and what becomes of each: passed, refused by name, or failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import q8ta_wgpu as q8
from q8ta_wgpu.importing.import_table import ONNX
from q8ta_wgpu.ir.graph import Array
from q8ta_wgpu.onnx_import.onnx_walk import RULES

PASSED, REFUSED, FAILED = "passed", "refused", "failed"

SUPPORTED = {
    TensorProto.FLOAT,
    TensorProto.BOOL,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
}
"""Dtypes of the cases that are counted: float32, integers, bools and what is quantized."""


def cases() -> list[Any]:
    """All node tests of the package onnx."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if case.model is not None]


def operator_of(case: Any) -> str:
    """The operator that a case is for."""
    nodes = case.model.graph.node
    return str(nodes[0].op_type) if len(nodes) == 1 else "functions written out"


OTHERS = {"Cast", "CastLike", "Constant", "Dropout", "Identity", "Shape", "Size"}
"""Operators that have a form without a row of their own."""


def has_form(name: str) -> bool:
    """Whether an operator can be imported."""
    return name in ONNX or name in RULES or name in OTHERS


def is_counted(case: Any) -> bool:
    """Whether all values that go in and out are tensors of dtypes that networks here have."""
    ports = (*case.model.graph.input, *case.model.graph.output)
    types = [p.type.tensor_type.elem_type if p.type.WhichOneof("value") == "tensor_type" else None for p in ports]
    return all(t in SUPPORTED for t in types) and all(
        isinstance(a, np.ndarray | np.generic) for part in case.data_sets[0] for a in part
    )


def outcome(case: Any, device: str = "reference") -> tuple[str, str]:
    """What becomes of a case, and why."""
    inputs, expected = case.data_sets[0]
    arrays = dict(zip((p.name for p in case.model.graph.input), map(np.asarray, inputs), strict=False))
    reason = ""
    for constants in _attempts(arrays):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for name in constants:
            model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
        try:
            made = q8.from_onnx(model.SerializeToString())
        except (q8.UnsupportedError, q8.GraphError) as error:
            reason = str(error)
            continue
        given = {n: arrays[n] for n in made.inputs}
        found = q8.Session(made, device=device)(**given) if given else None
        if found is None:
            reason = reason or "nothing of it depends on an input"
            continue
        results = list(found.values()) if isinstance(found, dict) else [found]
        return _compared(results, [np.asarray(e) for e in expected], case)
    return REFUSED, reason


def _attempts(arrays: dict[str, Array]) -> Iterator[Sequence[str]]:
    """Which inputs are constants: integers of 32 bits and more; then those of one element, too; then all but the first
    one."""
    wide = [n for n, a in arrays.items() if a.dtype.kind in "iu" and a.dtype.itemsize >= 4]
    names = list(arrays)
    yield wide
    yield sorted({*wide, *(n for n, a in list(arrays.items())[1:] if a.size == 1)})
    yield names[1:]
    for name in names[1:]:
        yield [n for n in names if n != name]


def _compared(found: list[Array], expected: list[Array], case: Any) -> tuple[str, str]:
    for y, e in zip(found, expected, strict=True):
        y = np.asarray(y)
        if y.shape != e.shape or y.dtype != e.dtype:
            return FAILED, f"{y.dtype}{y.shape} instead of {e.dtype}{e.shape}"
        close = np.isclose(y, e, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-6), equal_nan=True)
        if not close.all():
            return (
                FAILED,
                f"{np.count_nonzero(~close)} of {close.size} elements differ, {y[~close][:3]} {e[~close][:3]}",
            )
    return PASSED, ""
