"""The numpy interpreter: every operator's reference, node by node. It defines what the GPU must compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from q8ta_wgpu.errors import DeviceError
from q8ta_wgpu.ir.graph import Array, Graph
from q8ta_wgpu.kernels import OPS


def initial_states(graph: Graph) -> dict[str, Array]:
    """What the states of a graph begin with, by the names they are read by."""
    return {state.read: graph.constants[state.initial] for state in graph.states}


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    keep: bool = False,
    met: Callable[[str, Array], None] | None = None,
    known: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Values of the graph's outputs for arrays of its inputs; of every node if `keep`.

    Int8 values are int8 arrays in logical (row-major) order. Floats are torch's: NaN and infinities are results like
    others, without a warning. States that are not given are those that the graph begins with. `met` is called with the
    name and array of each node's value as it is computed; those that are `known` are not computed. Raises DeviceError
    where the host's memory does not suffice.
    """
    values: dict[str, Array] = {**graph.constants, **initial_states(graph), **inputs}
    last = {name: node for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        call = graph.call(node)
        try:
            if (array := known.get(node.output)) is None:
                with np.errstate(all="ignore"):
                    array = np.asarray(OPS[node.op].reference(call, [values[name] for name in node.inputs]))
        except MemoryError as error:
            raise DeviceError(
                f"the reference has no memory left for {node.output}{node.origin}, {graph.types[node.output]}: "
                "take an adapter, or a smaller input (model.reshape)"
            ) from error
        values[node.output] = array
        if met is not None:
            met(node.output, array)
        for name in set(node.inputs):
            if not keep and last[name] is node and name not in graph.outputs and name not in graph.constants:
                values.pop(name, None)
    return values if keep else {name: values[name] for name in graph.outputs}
