"""Makes an exported program of a quantized module without tracing it again, which takes as long as exporting it did."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.export import ExportedProgram, ExportGraphSignature, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.export.editor import name_of, value_of
from q8ta_wgpu.frontend.nodes import is_qdq, kind, qdq_dtype
from q8ta_wgpu.ir.int8 import Moves


def lifted(
    module: GraphModule, source: ExportedProgram, states: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> ExportedProgram:
    """The program that torch.export would make of a module: its parameters and buffers become inputs of the graph.

    Args:
        module: `source.module()`, rewritten: calls of operators, without effects, on inputs and attributes.
        states: buffers, with their values, that are the module's last inputs and whose new values are its last results.
        source: has the structure of inputs and outputs, an example, and the range of a dynamic batch.
    """
    graph, state = Graph(), _state(module)
    inputs = module.graph.find_nodes(op="placeholder")
    count = len(inputs) - len(states)
    with inputs[0].meta["val"].fake_mode as fake:
        noted = {n.target: n.meta["custom"] for n in module.graph.find_nodes(op="get_attr") if "custom" in n.meta}
        attributes: dict[Any, Node] = {}
        nodes: dict[Node, Any] = {}
        specs = []
        for name, tensor in state.items():
            made = attributes[name] = _placeholder(graph, name, tensor)
            made.meta = {"val": fake.from_tensor(tensor, static_shapes=True), "custom": noted.get(name, {})}
            specs.append(_spec(made, name, tensor))
        for node, name in zip(inputs[count:], states, strict=True):
            made = nodes[node] = _placeholder(graph, name, states[name])
            made.meta = dict(node.meta)
            specs.append(_spec(made, name, states[name]))
        for node in inputs[:count]:
            made = nodes[node] = graph.node_copy(node)
            specs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(made.name), None))
        rounded: dict[Any, torch.Tensor] = {}
        for node in module.graph.nodes:
            if node.op == "get_attr":  # a module that a higher-order operator calls
                nodes[node] = attributes.get(node.target) or graph.node_copy(node)
            elif node.op == "call_function":
                nodes[node] = _copied(graph, node, nodes, rounded)
        held = {nodes[node] for node in inputs[count:]}
        outputs = _outputs(graph, module.graph.output_node(), nodes, list(states), held)
    return ExportedProgram(
        module,
        graph,
        ExportGraphSignature(specs, outputs),
        {**state, **states},
        source.range_constraints,
        _without(source, len(states)),
        (source.example_inputs[0][:count], {}) if states else source.example_inputs,
    )


def _placeholder(graph: Graph, name: str, tensor: torch.Tensor) -> Node:
    """The input for a parameter or buffer."""
    prefix = "p_" if isinstance(tensor, torch.nn.Parameter) else "b_"
    return graph.placeholder(prefix + re.sub(r"\W", "_", name))


def _spec(made: Node, name: str, tensor: torch.Tensor) -> InputSpec:
    """The entry of a parameter or buffer in a program's signature."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    kind, persistent = (InputKind.PARAMETER, None) if is_parameter else (InputKind.BUFFER, True)
    return InputSpec(kind, TensorArgument(made.name), name, persistent)


def _outputs(
    graph: Graph, output: Node, nodes: Mapping[Node, Any], states: list[str], held: Collection[Node]
) -> list[OutputSpec]:
    """Adds the output to a graph and returns its results' entries in the signature. The last results are states, whose
    old values are `held`."""
    results: list[Any] = [*torch.fx.map_arg(output.args[0], nodes.__getitem__)]  # type: ignore[misc]
    written, results = results[len(results) - len(states) :], results[: len(results) - len(states)]
    for i, value in enumerate(written):  # torch requires different names for the results that are states
        if value in written[:i]:
            written[i] = _cloned(graph, value)
    for i, value in enumerate(results):  # torch writes states before it returns, also into views of them
        if isinstance(value, Node) and _seen_from(value) in held:
            results[i] = _cloned(graph, value)
    graph.output((*written, *results)).meta = dict(output.meta)
    pairs = zip(written, states, strict=True)
    changed = [OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(made.name), name) for made, name in pairs]
    user_results = [TensorArgument(r.name) if isinstance(r, Node) else ConstantArgument("", r) for r in results]
    return [*changed, *(OutputSpec(OutputKind.USER_OUTPUT, argument, None) for argument in user_results)]


def _cloned(graph: Graph, value: Node) -> Node:
    made = graph.call_function(torch.ops.aten.clone.default, (value,))
    made.meta = dict(value.meta)
    return made


def _seen_from(value: Node) -> Node:
    """The value of which another one may be a view; itself if it is computed."""
    while value.all_input_nodes and (isinstance(kind(value), Moves) or value.target is operator.getitem):
        value = value.all_input_nodes[0]
    return value


def _without(source: ExportedProgram, count: int) -> list[ModuleCallEntry]:
    """The structure of a program's inputs and outputs without states: these are the last inputs, and the second of a
    pair of results."""
    (whole,) = source.module_call_graph[:1]
    if not count or whole.signature is None:
        return [whole]
    (arguments, _), (results, _) = whole.signature.in_spec.children(), whole.signature.out_spec.children()
    inputs = pytree.tree_structure((tuple(range(arguments.num_leaves - count)), {}))
    signature = ModuleCallSignature([], [], inputs, results)
    return [ModuleCallEntry(whole.fqn, signature)]


def _state(module: GraphModule) -> dict[str, torch.Tensor]:
    """The tensors that a graph reads by name, parameters first."""
    targets = dict.fromkeys(str(node.target) for node in module.graph.find_nodes(op="get_attr"))
    attributes = {target: operator.attrgetter(target)(module) for target in targets}
    state = {target: value for target, value in attributes.items() if isinstance(value, torch.Tensor)}
    return dict(sorted(state.items(), key=lambda item: not isinstance(item[1], torch.nn.Parameter)))


def _copied(graph: Graph, node: Node, nodes: dict[Node, Any], rounded: dict[Any, torch.Tensor]) -> Node:
    """A copy of a call in the new graph, by its name, and its value, which torchao's own calls lack. Quantizes and
    dequantizes are named after their operators; those of equal tensors share a value, since there are many."""
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), nodes.__getitem__)
    made = graph.create_node("call_function", target, args, kwargs, name_of(target) if is_qdq(node) else node.name)
    made.meta = dict(node.meta)
    if "val" not in made.meta:
        if (dtype := qdq_dtype(made)) is None:
            made.meta["val"] = value_of(made)
            return made
        value = made.all_input_nodes[0].meta["val"]
        key = (dtype, str(value.shape), str(value.stride()))
        if key not in rounded:
            rounded[key] = torch.empty_like(value, dtype=dtype)
        made.meta["val"] = rounded[key]
    return made
