"""The operator table: every `Op` value in the files of the families, one folder for each family.

Comes in: the vocabulary of ir. Goes out: OPS. May use: ir. A family also uses lib, product and epilogue;
reduce uses what pool shares.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from q8ta_wgpu.ir.op import Op


def _find() -> Iterator[Op]:
    for module in sorted(m.name for m in pkgutil.walk_packages(__path__, f"{__name__}.") if not m.ispkg):
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, Op):
                yield value
            elif isinstance(value, tuple) and value and all(isinstance(v, Op) for v in value):
                yield from value


def _table() -> Mapping[str, Op]:
    table: dict[str, Op] = {}
    for op in _find():
        if table.setdefault(op.name, op) is not op:
            raise AssertionError(f"two operators are called {op.name}")
    names = [kernel.name for op in table.values() for kernel in op.kernels]
    if twice := {name for name in names if names.count(name) > 1}:
        raise AssertionError(f"several kernels are called {', '.join(sorted(twice))}")
    wrong = [k.name for op in table.values() for k in op.kernels if k.name.partition(".")[0] != op.name]
    if wrong:
        raise AssertionError(f"a kernel is called `operator` or `operator.method_tile`, found {', '.join(wrong)}")
    return table


OPS: Mapping[str, Op] = _table()
"""Every operator by name."""
