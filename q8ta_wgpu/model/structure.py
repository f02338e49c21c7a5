"""The structure of a module's outputs (tuple, list, dict, nested) as JSON, and the dtypes its results have."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from q8ta_wgpu.errors import GraphError

DTYPES = ("bool", "uint8", "int16", "int32", "int64")


@dataclass(frozen=True)
class Structure:
    """A tree of output positions: an int, None, {'tuple': [...]}, {'list': [...]} or {'dict': {...}}.

    `dtypes` gives, by position, the dtype of the module's result where the graph stores other numbers: bools and
    integers.
    """

    tree: Any
    dtypes: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def of(nested: Any, dtypes: Sequence[str | None] = ()) -> Structure:
        """From tuples, lists and dicts of positions, and a dtype for each position that has one."""
        return Structure(_encode(nested), {i: dtype for i, dtype in enumerate(dtypes) if dtype})

    def unflatten(self, outputs: Sequence[Any]) -> Any:
        """Outputs in this structure, with the module's dtypes."""
        typed = [y.astype(self.dtypes[i]) if i in self.dtypes else y for i, y in enumerate(outputs)]
        return _decode(self.tree, typed)

    def flatten(self, nested: Any) -> list[Any]:
        """The outputs in order of their positions: the inverse of `unflatten`."""
        return [leaf for _, leaf in sorted(_leaves(self.tree, nested), key=lambda item: item[0])]

    def check(self, count: int) -> None:
        """Raises GraphError unless the tree is well formed and holds the positions 0..count-1, each once."""
        if other := [i for i, dtype in self.dtypes.items() if i not in range(count) or dtype not in DTYPES]:
            raise GraphError(f"output {other[0]} is given as {reprlib.repr(self.dtypes[other[0]])}")
        positions = sorted(_positions(self.tree, 0))
        if positions != list(range(count)):
            raise GraphError(
                f"the output structure names positions {reprlib.repr(positions)}, the graph has {count} outputs"
            )


def _encode(nested: Any) -> Any:
    if nested is None or isinstance(nested, int):
        return nested
    if isinstance(nested, dict):
        if other := [key for key in nested if not isinstance(key, str)]:
            raise GraphError(f"the keys of a dict of outputs must be strings, found {other[0]!r}")
        return {"dict": {key: _encode(value) for key, value in nested.items()}}
    if isinstance(nested, tuple):
        return {"tuple": [_encode(value) for value in nested]}
    if isinstance(nested, list):
        return {"list": [_encode(value) for value in nested]}
    raise GraphError(f"outputs may be tuples, lists and dicts of tensors, found {type(nested).__name__}")


def _decode(tree: Any, outputs: Sequence[Any]) -> Any:
    if tree is None:
        return None
    if isinstance(tree, int):
        return outputs[tree]
    ((kind, value),) = tree.items()
    if kind == "dict":
        return {key: _decode(item, outputs) for key, item in value.items()}
    items = [_decode(item, outputs) for item in value]
    return tuple(items) if kind == "tuple" else items


def _leaves(tree: Any, nested: Any) -> list[tuple[int, Any]]:
    if tree is None:
        return []
    if isinstance(tree, int):
        return [(tree, nested)]
    ((kind, value),) = tree.items()
    pairs = [(item, nested[key]) for key, item in value.items()] if kind == "dict" else zip(value, nested, strict=True)
    return [leaf for item, part in pairs for leaf in _leaves(item, part)]


def _positions(tree: Any, depth: int) -> list[int]:
    if depth > 32:
        raise GraphError("the output structure is nested more than 32 deep")
    if tree is None:
        return []
    if isinstance(tree, int) and not isinstance(tree, bool):
        return [tree]
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, value),) = tree.items()
        if kind == "dict" and isinstance(value, dict):
            return [p for item in value.values() for p in _positions(item, depth + 1)]
        if kind in ("tuple", "list") and isinstance(value, list):
            return [p for item in value for p in _positions(item, depth + 1)]
    raise GraphError(f"the output structure holds {reprlib.repr(tree)}")
