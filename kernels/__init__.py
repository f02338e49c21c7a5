"""The operator table: every `Op` value in the files of the families, one folder for each family.

Comes in: the vocabulary of ir. Goes out: OPS. May use: ir. A family also uses lib, product and epilogue;
reduce uses what pool shares.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType

from q8ta_wgpu.ir.op import Op


def operators(module: ModuleType) -> Iterator[Op]:
    """The operators of a module: `Op` values, and tuples of them. Raises AssertionError for those in another
    collection, where they would not be found."""
    for name, value in vars(module).items():
        if isinstance(value, Op):
            yield value
        elif isinstance(value, list | dict | set | tuple) and any(isinstance(v, Op) for v in value):
            if not (isinstance(value, tuple) and all(isinstance(v, Op) for v in value)):
                raise AssertionError(f"{module.__name__}.{name}: operators stand alone or in a tuple of operators")
            yield from value


def _find() -> Iterator[Op]:
    for module in sorted(m.name for m in pkgutil.walk_packages(__path__, f"{__name__}.") if not m.ispkg):
        yield from operators(importlib.import_module(module))


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
