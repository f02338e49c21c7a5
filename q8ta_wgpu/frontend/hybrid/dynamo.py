"""The backend "q8ta_wgpu" of torch.compile, which torch finds by an entry point of the package (pyproject.toml)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import torch
from torch.fx import GraphModule, Node

from q8ta_wgpu.errors import InputError, UnsupportedError
from q8ta_wgpu.frontend.export.tracing import traced
from q8ta_wgpu.frontend.hybrid.hybrid import hybrid
from q8ta_wgpu.frontend.nodes import is_qdq


def backend(
    module: GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compiles a graph of a quantized module to a hybrid. torch.compile calls it for every graph that it finds.

    Args:
        module: the graph; parameters and buffers are inputs that dynamo marks as static.
        example_inputs: a tensor or size for each input.
        options: "device", the device of the pieces, as `Session` takes it.

    Returns:
        A function of the inputs that returns the graph's results.

    Raises:
        InputError: there is another option.
        UnsupportedError: the graph is not quantized, no piece of it could run on the GPU, or gradients are asked for.
        DeviceError: as `Session`.
    """
    if unknown := set(options or {}) - {"device"}:
        raise InputError(f"the backend's one option is 'device', found {', '.join(map(repr, sorted(unknown)))}")
    placeholders = module.graph.find_nodes(op="placeholder")
    user_inputs = [i for i, node in enumerate(placeholders) if _is_user_input(node)]
    if not any(is_qdq(node) for node in module.graph.nodes):
        raise UnsupportedError(
            "the module is not quantized: give torch.compile what q8ta_wgpu.quantize made, "
            'torch.compile(q8ta_wgpu.quantize(module, ...).module(), backend="q8ta_wgpu")'
        )
    if torch.is_grad_enabled() and any(example_inputs[i].requires_grad for i in user_inputs):
        raise UnsupportedError("int8 has no gradients: call the module under torch.no_grad(), or detach its inputs")
    frozen = _frozen(module, example_inputs)
    inputs = tuple(example_inputs[i] for i in user_inputs)
    shapes = tuple(
        {dim: torch.export.Dim.DYNAMIC for dim, size in enumerate(_shape(placeholders[i])) if not isinstance(size, int)}
        for i in user_inputs
    )
    with torch._guards.tracing(None):  # independent of dynamo's own trace of the module
        program = traced(lambda: torch.export.export(frozen, inputs, dynamic_shapes=shapes))
        compiled = hybrid(program, (options or {}).get("device"))
    return lambda *args: compiled(*(args[i] for i in user_inputs))


def _frozen(module: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """The graph with parameters as attributes, and with sizes taken from the tensors that have them."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    frozen = GraphModule(module, graph)
    placeholders = graph.find_nodes(op="placeholder")
    sizes: dict[str, tuple[Node, int]] = {
        str(size): (node, dim) for node in placeholders if _is_user_input(node) for dim, size in enumerate(_shape(node))
    }
    for node, value in zip(placeholders, example_inputs, strict=True):
        if _is_user_input(node):
            continue
        with graph.inserting_after(placeholders[-1]):
            if isinstance(value, torch.Tensor):
                frozen.register_buffer(node.name, value.detach())
                made = graph.get_attr(node.name)
            else:
                made = graph.call_function(torch.ops.aten.sym_size.int, sizes[str(value)])
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    frozen.recompile()
    return frozen


def _is_user_input(node: Node) -> bool:
    """Whether an input is a tensor of the caller's, not a parameter or a size."""
    return "_dynamo_static_input_type" not in (node.meta.get("tensor_dict") or {}) and bool(_shape(node) is not None)


def _shape(node: Node) -> Any:
    value = node.meta.get("example_value")
    return value.shape if isinstance(value, torch.Tensor) else None


_registering = threading.Lock()


def register() -> None:
    """Registers the backend's name with torch where the package is not installed, as in a checkout. Threads may
    quantize at once, and torch takes a name once."""
    with _registering:
        _register()


@functools.cache
def _register() -> None:
    if not entry_points(group="torch_dynamo_backends", name="q8ta_wgpu"):
        torch._dynamo.register_backend(backend, name="q8ta_wgpu")
