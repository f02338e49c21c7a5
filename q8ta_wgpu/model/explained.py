"""Finds in the record of a quantized graph why a value is stored as it is."""

from __future__ import annotations

from q8ta_wgpu.errors import InputError, nearest, shown
from q8ta_wgpu.ir.graph import Graph


def explained(graph: Graph, value: str | None) -> str:
    """The decisions about a value, by its name in the float graph or in this one; without a value all of them. Raises
    InputError if there are none."""
    known = dict.fromkeys(name for decision in graph.decisions for name in decision.values)
    if not known:
        raise InputError("the model has no record of what was decided: q8ta_wgpu.quantize writes one")
    name = value
    if value is not None and value not in known:  # what is made of a value is called "value.stored", "value.real", ...
        name = max((each for each in known if value.startswith(f"{each}.")), key=len, default=None)
        if name is None:
            if value in graph.types and graph.types[value].q is None:
                raise InputError(
                    f"{shown(value)} has dtype {graph.types[value].dtype} in this model, so no bits were decided for "
                    "it; if it is a float island between int8 values, print(model.report()) has the reason"
                )
            near = ", ".join(nearest(value, known))
            raise InputError(f"no stored value is called {shown(value)}; nearest to it: {near}")
    return "\n".join(str(each) for each in graph.decisions if name is None or name in each.values)
