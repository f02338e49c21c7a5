"""The importer function of every aten and ONNX call, from the files of this room."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping

from q8ta_wgpu import importing
from q8ta_wgpu.importing.builder import Import, Rules
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.kernels import OPS


def _table(several: Iterable[Rules]) -> Mapping[str, tuple[Op, Import]]:
    table: dict[str, tuple[Op, Import]] = {}
    for rules in several:
        for op, by_name in rules.items():
            for name, rule in by_name.items():
                if name in table:
                    raise AssertionError(f"{name} is imported as {table[name][0].name} and as {op}")
                table[name] = OPS[op], rule
    return table


_CALLS = [
    importlib.import_module(f"{importing.__name__}.{file.name}")
    for file in pkgutil.iter_modules(importing.__path__)
    if file.name.endswith("_calls")
]

ATEN: Mapping[str, tuple[Op, Import]] = _table(getattr(file, "ATEN", {}) for file in _CALLS)
"""Operator and importer function by aten overload name, for instance `aten.conv2d.default`."""

ONNX: Mapping[str, tuple[Op, Import]] = _table(getattr(file, "ONNX", {}) for file in _CALLS)
"""Operator and importer function by ONNX operator, for instance `Conv`."""
