"""The numpy interpreter: runs every operator's reference, node by node. It defines what the GPU must compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from q8ta_wgpu.errors import DeviceError, GraphError
from q8ta_wgpu.ir.graph import Array, Call, Graph, Node
from q8ta_wgpu.kernels import OPS


def initial_states(graph: Graph) -> dict[str, Array]:
    """The initial values of a graph's states, by the names under which nodes read them."""
    return {state.read: graph.constants[state.initial] for state in graph.states}


def run(
    graph: Graph,
    inputs: Mapping[str, Array],
    keep: bool = False,
    met: Callable[[str, Array], None] | None = None,
    known: Mapping[str, Array] = MappingProxyType({}),
) -> dict[str, Array]:
    """Runs a graph.

    Args:
        graph: the graph.
        inputs: arrays by name. Int8 values are int8 arrays in logical (row-major) order. States that are missing have
            their initial values.
        keep: whether to return all values, not only outputs.
        met: called with the name and array of each node's value when it is computed.
        known: values by name that need not be computed. They and `inputs` may have other sizes than the graph's.

    Returns:
        Arrays by name. NaN and infinities are results as in torch, without a warning.

    Raises DeviceError if the host has too little memory, and GraphError where a node does not take other sizes.
    """
    values: dict[str, Array] = {**graph.constants, **initial_states(graph), **inputs}
    last = {name: node for node in graph.nodes for name in node.inputs}
    for node in graph.nodes:
        try:
            if (array := known.get(node.output)) is None:
                operands = [values[name] for name in node.inputs]
                with np.errstate(all="ignore"):
                    array = np.asarray(OPS[node.op].reference(_call(graph, node, operands), operands))
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


def _call(graph: Graph, node: Node, operands: Sequence[Array]) -> Call:
    """The call of a node, for operands of these sizes."""
    call = graph.call(node)
    if all(x.shape == one.shape for x, one in zip(operands, call.inputs, strict=True)):
        return call
    types = tuple(replace(one, shape=x.shape) for x, one in zip(operands, call.inputs, strict=True))
    try:
        shape, _ = OPS[node.op].check(types, node.attrs)
    except GraphError as error:
        raise GraphError(f"{node.output}{node.origin}: {error}") from None
    return replace(call, inputs=types, output=replace(call.output, shape=shape))
