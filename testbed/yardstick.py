"""A yardstick for quantizers: simulates a module in which only the operands of convolutions, linears and recurrent
projections are rounded to int8, which every int8 quantizer does at least.

Since it judges this library, it does not use it: torch exports the module and computes in float32."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.export import default_decompositions
from torch.fx import GraphModule, Interpreter, Node

aten = torch.ops.aten
PRODUCTS: Mapping[Any, int] = {
    aten.convolution.default: 0,
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.mv.default: 0,
    aten.addmm.default: 1,
    aten.addmv.default: 1,
    aten.baddbmm.default: 1,
}
"""Products, to which torch decomposes convolutions, linears and recurrent layers, and the index of their first operand.
A recurrent layer has a product with the hidden state in each step, so each step has a range of its own."""


def yardstick(module: torch.nn.Module, calibration: Iterable[Tensor | Sequence[Tensor]]) -> Callable[..., Any]:
    """Simulates a module with int8 products.

    A value that is multiplied by constants is rounded to int8, with one scale and zero point for its range over the
    calibration. The constants are rounded to int8 with a scale for each output channel and zero point 0. A product of
    two values that depend on inputs, as in attention, stays in float32.

    Args:
        module: a module in eval mode.
        calibration: items are a tensor or a tuple of positional arguments, all of the same shapes.

    Returns:
        A function that takes arguments of those shapes and returns the module's output.
    """
    items = [(item,) if isinstance(item, Tensor) else tuple(item) for item in calibration]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of oneDNN's flags themselves
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN would keep a recurrent layer whole
            program = torch.export.export(module, items[0])
            program = program.run_decompositions({**default_decompositions(), aten.group_norm.default: _group_norm})
    simulation = _Simulation(program.module(check_guards=False))
    for item in items:
        simulation(*item)
    simulation.rounds = True
    return simulation


def _group_norm(
    x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> Tensor:
    """group_norm for inputs in any memory format; torch's exported operator only takes contiguous ones."""
    rows = x.reshape(x.shape[0], groups, -1)
    y = torch.nn.functional.layer_norm(rows, rows.shape[-1:], eps=eps).reshape(x.shape)
    shape = (1, -1, *[1] * (x.dim() - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


class _Simulation(Interpreter):
    """Runs a graph. Until `rounds` is set it observes operands of products with constants; then it rounds both.

    Attributes:
        operands: the products with a constant: index of the observed operand, and of the constant one.
        ranges: the smallest and the largest value of each observed operand, extended to include 0.
    """

    def __init__(self, graph: GraphModule) -> None:
        super().__init__(graph)
        self.operands = _operands(graph)
        self.ranges: dict[Node, tuple[Tensor, Tensor]] = {}
        self.rounds = False

    def __call__(self, *inputs: Tensor) -> Any:
        with torch.no_grad():
            return self.run(*inputs)

    def run_node(self, n: Node) -> Any:
        """Runs a node; before a product with a constant, observes or rounds its operands."""
        if n not in self.operands:
            return super().run_node(n)
        fetched, keywords = self.fetch_args_kwargs_from_env(n)
        args, (x, w) = list(fetched), self.operands[n]
        if self.rounds:
            args[x] = affine(args[x], *self.ranges[n])
            args[w] = _constant(n, args, w)
        else:
            zero = torch.zeros(())
            low, high = self.ranges.get(n, (zero, zero))
            self.ranges[n] = low.minimum(args[x].min()), high.maximum(args[x].max())
        return self.call_function(n.target, tuple(args), keywords)


def _operands(graph: GraphModule) -> dict[Node, tuple[int, int]]:
    computed: set[Node] = set()  # from inputs
    found = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder" or not computed.isdisjoint(node.all_input_nodes):
            computed.add(node)
        if node in computed and node.target in PRODUCTS:
            first = PRODUCTS[node.target]
            inputs = [place for place in (first, first + 1) if node.args[place] in computed]
            if len(inputs) == 1:
                found[node] = inputs[0], 2 * first + 1 - inputs[0]
    return found


def affine(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Rounds x to 256 steps from low to high, one of which is 0."""
    scale = ((high - low) / 255).clamp_min(torch.finfo(torch.float32).tiny)
    zero = (-128 - low / scale).round()
    return ((x / scale).round() + zero).clamp(-128, 127).sub(zero) * scale


def symmetric(w: Tensor, summed: Sequence[int]) -> Tensor:
    """Rounds w to 255 steps between -m and m, the largest magnitude over the dimensions that are summed."""
    scale = (w.abs().amax(tuple(summed), keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
    return (w / scale).round().clamp(-127, 127) * scale


def _constant(node: Node, args: Sequence[Any], place: int) -> Tensor:
    """The constant operand of a product, rounded with a scale for each output channel."""
    w: Tensor = args[place]
    if node.target != aten.convolution.default:
        return symmetric(w, [-1 if place == PRODUCTS[node.target] else max(-2, -w.dim())])
    transposed, groups = args[6], args[8]
    if not transposed:
        return symmetric(w, range(1, w.dim()))
    by_group = w.reshape(groups, -1, *w.shape[1:])  # (groups, inputs, outputs of the group, *kernel)
    return symmetric(by_group, [1, *range(3, by_group.dim())]).flatten(0, 1)
