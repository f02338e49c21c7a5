"""Runs a program at the sizes of its inputs, with formulas for the numbers that follow from them (formulas.py)."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.notes import SIZES, noted
from q8ta_wgpu.ir.size import Point, Size, leading_slice, solved


class Sized(Interpreter):
    """Runs a program. Calls get the numbers, and slices of tables, for the sizes of the inputs."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._point: dict[str, int] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The program's results for these inputs."""
        self.begin(*args)
        return super().run(*args, **kwargs)

    def begin(self, *args: Any) -> None:
        """Takes the sizes of inputs."""
        inputs = self.module.graph.find_nodes(op="placeholder")  # type: ignore[union-attr,operator]
        for node, x in zip(inputs, args, strict=True):
            for dim, plain in noted(node, SIZES, {}).get("input", ()):
                symbol, value, _ = solved({tuple(symbols): c for c, *symbols in plain}, x.shape[dim])
                self._point[symbol] = value

    def run_node(self, n: Node) -> Any:
        """A node's value, computed as fx does it, but that it notes no traces for what a run would record: that takes
        as long as a small operator."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        found, said = getattr(self, n.op)(n.target, args, kwargs), noted(n, SIZES, {})
        if n.op == "get_attr" and "shape" in said:
            return leading_slice(found, [int(Size.of(size, self._point)) for size in said["shape"]]).contiguous()
        return found

    def fetch_args_kwargs_from_env(self, n: Node) -> tuple[Any, Any]:
        """The arguments of a node."""
        args, kwargs = arguments_at(n, self._point)
        return self.map_nodes_to_values(args, n), self.map_nodes_to_values(kwargs, n)


def arguments_at(node: Node, point: Point) -> tuple[Any, Any]:
    """The arguments of a call at a point, by position and by name."""
    said = noted(node, SIZES)
    if said is None or said.get("call") != str(node.target):  # the call was replaced after it was annotated
        return node.args, node.kwargs
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    for index, terms in said["sizes"]:
        leaves[index] = int(Size.of(terms, point))
    found: tuple[Any, Any] = pytree.tree_unflatten(leaves, spec)
    return found
