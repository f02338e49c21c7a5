"""The structure of a module's outputs (tuple, list, dict, nested) as JSON, and their dtypes."""

from __future__ import annotations

import functools
import keyword
import reprlib
from collections import OrderedDict, namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.ir.bytes_as_int8 import give

DTYPES = ("bool", "uint8", "int8", "uint16", "int16", "int32", "int64")


@dataclass(frozen=True)
class Structure:
    """A tree of output positions: an int, None, {'tuple': [...]}, {'list': [...]} or {'dict': {...}}.

    A named tuple also has {'named': [its class, its fields ...]}, an OrderedDict {'ordered': True}. `dtypes` has, by
    position, the dtype of the module's output if the graph stores it otherwise: bools and integers as float32, uint8 as
    int8 with 128 subtracted.
    """

    tree: Any
    dtypes: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def of(nested: Any, dtypes: Sequence[str | None] = ()) -> Structure:
        """The structure of tuples, lists and dicts of positions. `dtypes` has a dtype or None for each position."""
        return Structure(_encode(nested), {i: dtype for i, dtype in enumerate(dtypes) if dtype})

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Outputs in this structure, with the module's dtypes. It may modify the arrays."""
        typed = [self._typed(y, place) for place, y in enumerate(outputs)]
        return _decode(self.tree, typed)

    def gives_bytes(self, place: int, int8: bool) -> bool:
        """Whether output number `place` is uint8 that is stored as int8. `int8`: whether it is stored as int8."""
        return int8 and self.dtypes.get(place) == "uint8"

    def _typed(self, y: Any, place: int) -> Any:
        if self.gives_bytes(place, y.dtype == np.int8):
            return as_bytes(y)
        return y.astype(self.dtypes[place], copy=False) if place in self.dtypes else y

    def flatten(self, nested: Any) -> list[Any]:
        """The outputs in order: the inverse of `unflatten`."""
        return [leaf for _, leaf in sorted(_leaves(self.tree, nested), key=lambda item: item[0])]

    def check(self, count: int) -> None:
        """Raises GraphError unless the tree is well formed and holds the positions 0..count-1, each once."""
        if other := [i for i, dtype in self.dtypes.items() if i not in range(count) or dtype not in DTYPES]:
            found = reprlib.repr(self.dtypes[other[0]])
            raise GraphError(
                f"outputs 0 to {count - 1} may be given as {', '.join(DTYPES)}: found output {other[0]} as {found}"
            )
        positions = sorted(_positions(self.tree, 0))
        if positions != list(range(count)):
            raise GraphError(
                f"the output structure names positions {reprlib.repr(positions)}, the graph has {count} outputs"
            )


def as_bytes(stored: Any) -> Any:
    """Converts int8 to uint8 by adding 128, in place."""
    found = stored.view(np.uint8)
    give(found, stored)
    return found


def _encode(nested: Any) -> Any:
    if nested is None or isinstance(nested, int):
        return nested
    if isinstance(nested, dict):
        if other := [key for key in nested if not isinstance(key, str)]:
            raise GraphError(
                f"the keys of a dict of outputs must be strings, found {other[0]!r}: use names, or return a tuple"
            )
        tree = {"dict": {key: _encode(value) for key, value in nested.items()}}
        return {**tree, "ordered": True} if type(nested) is OrderedDict else tree
    if isinstance(nested, tuple):
        items = {"tuple": [_encode(value) for value in nested]}
        named = getattr(nested, "_fields", None)
        return items if named is None else {**items, "named": [type(nested).__name__, *named]}
    if isinstance(nested, list):
        return {"list": [_encode(value) for value in nested]}
    raise GraphError(
        f"outputs may be tuples, lists and dicts of tensors, found {type(nested).__name__}: return one of these"
    )


def _decode(tree: Any, outputs: Sequence[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, int):
        return outputs[tree]
    kind, value = next(iter(tree.items()))
    if kind == "dict":
        items = {key: _decode(item, outputs) for key, item in value.items()}
        return OrderedDict(items) if "ordered" in tree else items
    values = [_decode(item, outputs) for item in value]
    if "named" in tree:
        return _named(*tree["named"])(*values)
    return tuple(values) if kind == "tuple" else values


@functools.cache
def _named(name: str, *fields: str) -> Any:
    """A class of named tuples with these names. A file does not contain the user's own class."""
    return namedtuple(name, fields)


def _leaves(tree: Any, nested: Any) -> list[tuple[int, Any]]:
    if tree is None:
        return []
    if isinstance(tree, int):
        return [(tree, nested)]
    kind, value = next(iter(tree.items()))
    pairs = [(item, nested[key]) for key, item in value.items()] if kind == "dict" else zip(value, nested, strict=True)
    return [leaf for item, child in pairs for leaf in _leaves(item, child)]


def _positions(tree: Any, depth: int) -> list[int]:
    if depth > 32:
        raise GraphError("the output structure is nested more than 32 deep")
    if tree is None:
        return []
    if isinstance(tree, int) and not isinstance(tree, bool):
        return [tree]
    if isinstance(tree, dict) and tree:
        (kind, value), *more = tree.items()
        if kind == "dict" and isinstance(value, dict) and more in ([], [("ordered", True)]):
            return [p for item in value.values() for p in _positions(item, depth + 1)]
        listed = kind in ("tuple", "list") and isinstance(value, list)
        if listed and (not more or (kind == "tuple" and len(more) == 1 and _names(*more[0], len(value)))):
            return [p for item in value for p in _positions(item, depth + 1)]
    raise GraphError(f"the output structure holds tuples, lists, dicts and positions, found {reprlib.repr(tree)}")


def _names(key: str, names: Any, count: int) -> bool:
    """Whether an entry is "named" with valid names for a named tuple: of its class, and of `count` fields."""
    if key != "named" or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return False
    valid = all(n.isascii() and n.isidentifier() and not keyword.iskeyword(n) for n in names)
    fields = names[1:]
    return valid and len(fields) == count == len(set(fields)) and not any(n.startswith("_") for n in fields)
