"""A user's program as a float graph: what modules and ONNX files become before anything is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from q8ta_wgpu.errors import InputError, nearest, shown
from q8ta_wgpu.ir.graph import Graph
from q8ta_wgpu.ir.int8 import Int8


@dataclass
class FloatProgram:
    """A float graph and what its values are in the user's program.

    Attributes:
        graph: without quantizes, but for those of bools.
        observable: the floats that calls of the user's program give, and inputs.
        calls: the call that each node is part of, by the node's output.
        moving: kinds of the calls that give elements of what they read.
        names: observable values by their names in the user's program.
        paths: by call, the names by which the user's program knows it: its own, and those of what it gives.
    """

    graph: Graph
    observable: set[str] = field(default_factory=set)
    calls: dict[str, str] = field(default_factory=dict)
    moving: dict[str, Int8] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def leave_in_float(self, skip: Sequence[str], reason: str) -> None:
        """Notes that the named operators stay in float32. A name is an operator's, that of a value which it gives, or
        what their names begin with up to a "/" or ".". Raises InputError for a name that is no operator's."""
        calls: dict[str, list[str]] = {}
        for call, paths in self.paths.items():
            for path in paths:
                calls.setdefault(path, []).append(call)
        for name in skip:
            found = {
                c for path in calls if path == name or path.startswith((f"{name}/", f"{name}.")) for c in calls[path]
            }
            if not found:
                near = ", ".join(map(repr, nearest(name, dict.fromkeys(calls))))
                raise InputError(
                    f"skip names {shown(name)}, but no operator has that name, and none's begins with it: "
                    + (f"nearest to it: {near}" if near else "the file's operators have no names")
                )
            self.graph.in_float |= {n.output: reason for n in self.graph.nodes if self.calls[n.output] in found}
