"""The walk over the nodes of a plain torch graph, which imports each call by the row of its operator in OPS."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

from q8ta_wgpu.errors import GraphError
from q8ta_wgpu.frontend.export.folding import computed
from q8ta_wgpu.frontend.export.pairs import RULES
from q8ta_wgpu.frontend.importer import qdq
from q8ta_wgpu.frontend.importer.call_arguments import arguments_of, imported_as, is_bool
from q8ta_wgpu.frontend.importer.input_bounds import bounds_of, is_number
from q8ta_wgpu.frontend.importer.integer_ranges import (
    EXACT,
    Ranges,
    beyond,
    is_integer,
    operands_of,
)
from q8ta_wgpu.frontend.importer.problems import Problems
from q8ta_wgpu.frontend.nodes import (
    CONVERSIONS,
    INPUTS,
    INTEGERS,
    OWN,
    QDQ,
    integer,
    is_complex,
    is_effect,
    is_float,
    kind,
    named_arguments,
    source_of,
    why_in_float,
)
from q8ta_wgpu.frontend.notes import JOINED, noted
from q8ta_wgpu.importing.builder import Builder, RefusedError
from q8ta_wgpu.importing.import_table import ATEN
from q8ta_wgpu.ir.graph import BOOL, FLOAT32, INT8X4, INT32, UINT8, QParams, TensorType
from q8ta_wgpu.ir.int8 import MASKED, Monotonic, Moves

_INDICES = ("indices", "index")
"""Arguments that stay integers where an operator computes with floats."""


class Walk(Builder):
    """The walk over a graph.

    Args:
        graph: torch's.
        constants: the values of its parameters.
        tokens: placeholders without a value.
        states: inputs and results that are kept between calls.
        aliases: whether a call whose result equals its operand, such as a conversion to the same dtype, gets the
            operand's value. If not, it becomes a view.
        whole: whether the graph is a whole program. In a piece of one, integers may be as large as torch's.

    Attributes:
        values: by the name of each torch node, the name of its value, or a list of names.
        calls: by the name of a graph node's output, the call that it belongs to.
        problems: the reasons why calls cannot be imported.
    """

    def __init__(
        self,
        graph: Graph,
        constants: Mapping[Node, torch.Tensor],
        tokens: Container[str] = (),
        states: Container[str] = (),
        aliases: bool = True,
        whole: bool = True,
    ) -> None:
        super().__init__(ATEN)
        self.values: dict[str, Any] = {}
        self.calls: dict[str, str] = {}
        self.problems = Problems()
        self._nodes, self._constants, self._tokens, self._states = graph, constants, tokens, states
        self._aliases, self._whole = aliases, whole
        self._unknown: set[str] = set()
        self._ranges = Ranges({}, {})

    def run(self, outputs: Sequence[Any]) -> list[Any]:
        """Imports every node and returns the values of the named ones."""
        values, fixed = self.values, computed(self._nodes, self._constants)
        self._ranges = Ranges(fixed, bounds_of(self._nodes, fixed, self._states))
        for node in self._nodes.nodes:
            known = len(self.graph.nodes)
            if node in fixed:
                values[node.name] = self._constant(node, fixed)
            elif node.op == "placeholder":
                token = node.name in self._tokens
                values[node.name] = self._stand_in(node) if token else self._placeholder(node)
            elif node.op == "call_function" and (node.users or node.name in outputs):
                values[node.name] = self._named(node, self._call(node))
            self.calls.update((made.output, node.name) for made in self.graph.nodes[known:])
        for node in self._nodes.output_node().all_input_nodes if not self.problems else ():
            try:
                self._ranges.check_result(node, node.name in self._states)
            except RefusedError as problem:
                self.problems.add_node(str(problem), node)
        return [values.get(name) if isinstance(name, str) else name for name in outputs]

    def _named(self, node: Node, found: Any) -> Any:
        """The name of a call's value: a copy where the call needs a value of its own."""
        if self._aliases or not isinstance(found, str):
            return found
        if found not in (self.values.get(n.name) for n in node.all_input_nodes):
            return found
        self.hint, self.source = node.name, source_of(node)
        return self.emit("view", (found,), {"shape": self.type(found).shape})

    def _constant(self, node: Node, fixed: Mapping[Node, Any]) -> Any:
        """A constant's value. A tensor that another node reads becomes the name of its array."""
        value = fixed[node]
        if not isinstance(value, torch.Tensor):
            return value
        if not all(user in fixed for user in node.users):
            value = value.float() if value.is_floating_point() else value
            self.raw[node.name] = np.array(value.detach().cpu().numpy(), order="C")
        return node.name

    def _refused(self, node: Node, reason: str) -> Any:
        """Records why a call or an input is not supported, and returns a placeholder value."""
        self.problems.add_node(reason, node)
        return self._stand_in(node)

    def _stand_in(self, node: Node) -> Any:
        """A placeholder value after a problem, with which the walk goes on to find other problems. Problems that only
        follow from this one are not reported."""
        value = node.meta.get("val")
        names = []
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            name = self.graph.fresh(node.name)
            shape = tuple(max(1, integer(d)) for d in tensor.shape) if isinstance(tensor, torch.Tensor) else ()
            self.graph.types[name] = TensorType(shape)
            names.append(name)
        self._unknown.update(names)
        return names if isinstance(value, (list, tuple)) else names[0]

    def _placeholder(self, node: Node) -> Any:
        """Imports an input."""
        value, q = node.meta.get("val"), qdq.quantized_input(node)
        known = q is not None or is_number(node) or getattr(value, "dtype", None) in {*INPUTS} - {torch.int8}
        if not isinstance(value, torch.Tensor) or not known:
            found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            return self._refused(
                node,
                f"input {node.name} must be a tensor of float32, integers (int64, int32, int16, uint8, or int8 read as "
                f"x.long()) or bools, found {found}: quantities are float32 outside of the network, token numbers "
                "integers, masks bools",
            )
        if several := [i for i, d in enumerate(value.shape) if not isinstance(d, int)]:
            return self._refused(node, f"dimensions {several} of input {node.name} have more than one size")
        self.graph.inputs.append(node.name)
        if node.name in self._states and value.dtype in (torch.bool, torch.uint8, torch.int8):
            self.graph.types[node.name] = TensorType(tuple(value.shape))
            return self.truth(node.name) if value.dtype == torch.bool else node.name
        self.graph.types[node.name] = self._type_of_input(node, value, q)
        if value.dtype != torch.bool:
            return node.name
        self.hint = f"{node.name}.real"
        return self.emit("dequantize", (node.name,))

    def _type_of_input(self, node: Node, value: torch.Tensor, q: QParams | None) -> TensorType:
        """The type of an input. Also records the range of its values."""
        shape = tuple(value.shape)
        if value.dtype == torch.bool:
            self.graph.values.set(node.name, given="bool")
            return TensorType(shape, INT8X4, BOOL)
        if value.dtype == torch.uint8 and q in (None, UINT8) and not is_number(node):
            self.graph.values.set(node.name, given="uint8")
            return TensorType(shape, INT8X4, UINT8)
        if q is not None:
            self.shifted.update({node.name} if value.dtype == torch.uint8 else ())
            return TensorType(shape, q.dtype, q)
        if not is_number(node):
            return TensorType(shape)
        low, high = self._ranges.of(node) or (0, 0)
        if low and not self._whole:
            self.problems.add_node("integers that are no index of a table are computed in PyTorch", node)
        self.graph.values.set(node.name, bounds=(int(low), int(high)))
        return TensorType(shape, INT32)

    def _call(self, node: Node) -> Any:
        """Imports a call and returns the name of its value, or a list of names."""
        if node.target is operator.getitem:
            return self._result(node)
        if isinstance(node.meta.get("val"), torch.SymInt):
            return integer(node.meta["val"])
        if is_effect(node):
            return self._stand_in(node)
        if any(map(is_complex, (node, *node.all_input_nodes))):
            way = "it is not supported for complex numbers: compute with torch.view_as_real's parts"
            known = "what reads it is not supported for complex numbers (a result must be torch.view_as_real of them)"
            return self._refused(node, known if node.target in RULES else way)
        self.source, self.hint, self.in_float = source_of(node), node.name, why_in_float(node)
        self.is_joined = noted(node, JOINED, False)
        try:
            return self._operator(node)
        except (RefusedError, GraphError) as problem:
            if str(node.target) in ATEN and any(
                str(self.values[n.name]) in self._unknown for n in node.all_input_nodes
            ):
                return self._stand_in(node)
            return self._refused(node, str(problem))

    def _result(self, node: Node) -> Any:
        """One of the results of a call."""
        source, index = node.args
        assert isinstance(source, Node)
        assert isinstance(index, int)
        results = self.values[source.name]
        if isinstance(results, list) and index >= len(results):
            self.problems.add_node(f"result {index} is not supported", source)
            return self._stand_in(node)
        return results[index] if isinstance(results, list) else results

    def _operator(self, node: Node) -> Any:
        """Imports a call of an operator. Raises RefusedError or GraphError if it is not supported."""
        self._ranges.check(node)
        name, args = str(node.target), arguments_of(node, self.values)
        namespace, _, overload = name.partition(".")
        if namespace in (QDQ, OWN):
            return qdq.import_call(self, overload, args)
        if name in CONVERSIONS:
            return self._converted(node, args)
        if name not in ATEN:
            raise RefusedError("this operator is not supported")
        if is_bool(named_arguments(node).get("attn_mask")) and self.array(args["attn_mask"]) is None:
            numbers = {"condition": args["attn_mask"], "self": 0.0, "other": MASKED}
            args |= {"attn_mask": self.aten("aten.where.self", numbers), "is_unmasked": args["attn_mask"]}
        if not isinstance(kind(node), Moves | Monotonic) or self._mixes_bytes(node, args):
            args = {key: self._number(value) for key, value in args.items()}
        name, args = imported_as(node, self._integers(node, args))
        if is_float(node):
            args = {key: value if key in _INDICES else self.floats(value) for key, value in args.items()}
        found = ATEN[name][1](self, args)
        self._check_rounded(node, found)
        return self.truth(found) if _decides(node) and isinstance(found, str) else found

    def _converted(self, node: Node, args: Mapping[str, Any]) -> str:
        """Imports a conversion between float32, integers and bools, all of which are float32 numbers in a graph. uint8
        wraps above 255, as torch's does on CPUs."""
        operand = node.args[0]
        source = operand.meta["val"].dtype if isinstance(operand, Node) else None
        dtype = source if args["dtype"] is None else args["dtype"]
        x = args["self"] if source == dtype else self._number(args["self"])
        numbers = (torch.float32, torch.bool, *INTEGERS)
        coded = source != dtype and self.type(x).q is not None
        if coded or source not in (*numbers, torch.int8) or dtype not in numbers:
            raise RefusedError(
                f"it converts {source} to {dtype}: numbers are float32, integers and bools here "
                "(leave out torch.autocast, .half() and .to)"
            )
        if dtype == torch.bool and source != torch.bool:
            return self.truth(self.emit("ne_scalar", (x,), {"number": 0.0}))
        if source == torch.float32 and dtype in INTEGERS:
            x = self.emit("trunc", (x,))
        if dtype == torch.float32:
            x = self.floats(x)
        wraps = dtype == torch.uint8 and source not in (torch.uint8, torch.bool)
        return self.emit("remainder", (x,), {"divisor": 256.0}) if wraps else x

    def _integers(self, node: Node, args: dict[str, Any]) -> dict[str, Any]:
        """The operands of a call as int32, if one of them is int32, or if float32 would not represent its integers
        exactly."""
        keys = [key for key in operands_of(node) if key in args]
        names = [name for key in keys for name in (args[key] if isinstance(args[key], list) else [args[key]])]
        computed = [name for name in names if isinstance(name, str) and self.array(name) is None]
        integers = any(self.type(name).dtype == INT32 for name in computed)
        if not keys or not (integers or self._ranges.needs_int32(node)):
            return args

        def whole(value: Any) -> Any:
            if isinstance(value, list):
                return [whole(item) for item in value]
            floats = value in computed and self.type(value).dtype == FLOAT32
            return self.emit("to_int32", (value,)) if floats else value

        return {key: whole(value) if key in keys else value for key, value in args.items()}

    def _check_rounded(self, node: Node, found: Any) -> None:
        """Raises RefusedError if a call's integer results are float32 numbers that do not represent them exactly."""
        reached = max(map(abs, self._ranges.of(node) or (0,)))
        floats = isinstance(found, str) and not self.is_constant(found) and self.type(found).dtype == FLOAT32
        if floats and is_integer(node.meta.get("val")) and EXACT < reached < math.inf:
            raise beyond(reached, EXACT)

    def _mixes_bytes(self, node: Node, args: Mapping[str, Any]) -> bool:
        """Whether some operands of a call are inputs of uint8, and others float32: numbers that were computed, or
        constants."""
        of_uint8 = [n for n in node.all_input_nodes if getattr(n.meta.get("val"), "dtype", None) == torch.uint8]
        lists = [value for value in args.values() if isinstance(value, list)]
        each = ([self.values.get(n.name) for n in of_uint8], *lists)
        return any(len(set(map(self._is_bytes, values))) > 1 for values in each)

    def _is_bytes(self, value: Any) -> bool:
        """Whether a value is an input of uint8, moved or not."""
        return isinstance(value, str) and self.operand(value) in self.graph.types and self.type(value).q == UINT8

    def _number(self, value: Any) -> Any:
        """The float32 value of an input of uint8, moved or not; any other argument as it is."""
        if isinstance(value, list):
            return [self._number(item) for item in value]
        return self.emit("dequantize", (value,)) if self._is_bytes(value) else value


def _decides(node: Node) -> bool:
    """Whether a node computes bools, instead of only moving them."""
    return is_bool(node) and not isinstance(kind(node), Moves)
