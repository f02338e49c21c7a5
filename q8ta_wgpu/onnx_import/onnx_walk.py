"""Imports the nodes of an ONNX program one by one, by the importer function of the table ONNX, or by one of
those for quantized operators."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto

from q8ta_wgpu.errors import GraphError, Q8taError, UnsupportedError, counted, shown
from q8ta_wgpu.importing.builder import RefusedError
from q8ta_wgpu.importing.import_table import ONNX
from q8ta_wgpu.importing.problems import Problems
from q8ta_wgpu.ir.graph import DTYPES, FLOAT32, QParams
from q8ta_wgpu.ir.int8 import Monotonic, Moves
from q8ta_wgpu.onnx_import import four_bits, integer_sums, onnx_nodes, qlinear, quantized, special
from q8ta_wgpu.onnx_import.fold import COMPUTED, Folder
from q8ta_wgpu.onnx_import.onnx_builder import STORED, OnnxBuilder
from q8ta_wgpu.onnx_import.onnx_nodes import FLOAT, INTEGERS, RESULTS, label
from q8ta_wgpu.onnx_import.read import Program, constants_of
from q8ta_wgpu.quantization.float_program import FloatProgram

WAY_OUT = (
    "Write these with operators of the table (docs/operators.md), compute them before or after the network, or "
    "add them (CONTRIBUTING.md)."
)

RULES = {
    **special.RULES,
    **quantized.RULES,
    **integer_sums.RULES,
    **qlinear.RULES,
    "com.microsoft.MatMulNBits": four_bits.matmul,
}
"""The importer functions of operators on integers, and of those that compute nothing, by name."""

DEEPEST = 8
"""Limit of the nesting of operators that are defined as functions of others."""


@dataclass
class Scope:
    """The names in an ONNX graph, function or branch: the value of each, None if it could not be imported, and its
    dtype. A branch also sees the names around it."""

    values: ChainMap[str, str | None] = field(default_factory=ChainMap)
    dtypes: ChainMap[str, int] = field(default_factory=ChainMap)

    def within(self) -> Scope:
        """The names in a branch."""
        return Scope(self.values.new_child(), self.dtypes.new_child())


class Walk(OnnxBuilder):
    """Imports the nodes of a program.

    Attributes:
        problems: the reasons why nodes cannot be imported.
        found: the graph, and which calls of the file its nodes belong to.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program.opsets)
        self.program = program
        self.problems = Problems(WAY_OUT)
        self.found = FloatProgram(self.graph)
        self._folder = Folder()
        self._sums: set[str] = set()  # sums of products of integers, which are float32 here

    def define(self, scope: Scope, name: str, value: str | None, dtype: int) -> None:
        """Defines a name of the file. Raises UnsupportedError if it is defined already."""
        if name in scope.values.maps[0]:
            raise UnsupportedError(f"the file has two values that are called {shown(name)}")
        scope.values[name], scope.dtypes[name] = value, dtype

    def walk(self, program: Sequence[onnx.NodeProto], scope: Scope, depth: int = 0) -> None:
        """Imports nodes; collects problems."""
        for node in program:
            self._node(node, scope, depth)

    def check(self, scope: Scope) -> None:
        """Raises UnsupportedError if an output depends on a node that cannot be imported."""
        if any(scope.values.get(port.name) is None for port in self.program.graph.output):
            self.problems.check()

    def note_rest(self) -> None:
        """Notes nodes for inputs and outputs as calls of their own."""
        self.found.calls.update((n.output, n.output) for n in self.graph.nodes[len(self.found.calls) :])

    def _node(self, node: onnx.NodeProto, scope: Scope, depth: int) -> None:
        names: Sequence[object] = (node.op_type, node.domain, node.name, *node.input, *node.output)
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise UnsupportedError(f"a name of the file is no text in UTF-8: {shown(str(wrong[0]))}")
        for name in filter(None, node.input):
            if name not in scope.values:
                raise UnsupportedError(
                    f"{label(node)} reads {shown(name)}, which nothing before it writes: nodes must be in order and "
                    "form no circle"
                )
        operands = [scope.values[name] if name else None for name in node.input]
        known = all(value is not None for name, value in zip(node.input, operands, strict=True) if name)
        dtypes = [scope.dtypes[name] if name else 0 for name in node.input]
        found: list[tuple[str, int]] = []
        if known:
            self.source, self.hint = label(node), next(filter(None, node.output), node.op_type)
            try:
                branches = onnx_nodes.full_name(node) == "If"
                found = self._branch(node, scope, depth) if branches else self._results(node, operands, dtypes, depth)
            except (RefusedError, GraphError) as problem:
                self._problem(node, str(problem))
            except Q8taError:
                raise
            except Exception as bad:  # importer functions do not check all that a malformed node may have
                self._problem(node, f"its inputs or attributes are not what it takes: {shown(str(bad))}")
        self._note_call(node, found, depth)
        for i, name in enumerate(node.output):
            value, dtype = found[i] if i < len(found) else (None, FLOAT)
            if name:
                if known and found and value is None:
                    self._problem(node, f"its result {i} is not supported")
                self.define(scope, name, value, dtype)

    def _note_call(self, node: onnx.NodeProto, found: Sequence[tuple[str, int]], depth: int) -> None:
        """Notes the nodes of the graph that a node of the file became, and its float results."""
        new, name = self.graph.nodes[len(self.found.calls) :], onnx_nodes.full_name(node)
        if new:
            call = new[-1].output
            self.found.calls.update((each.output, call) for each in new)
            self.found.paths[call] = tuple(dict.fromkeys(filter(None, (node.name, *node.output))))
            if name in ONNX and isinstance(kind := ONNX[name][0].int8, Moves | Monotonic):
                self.found.moving[call] = kind
        for at, (value, dtype) in zip(node.output, found, strict=False):
            if dtype == FLOAT and value not in self.raw and self.type(value).dtype == FLOAT32:
                self.found.observable.add(value)
                if at and not depth:
                    self.found.names.setdefault(value, at)

    def _problem(self, node: onnx.NodeProto, reason: str) -> None:
        version = self.opsets.get(onnx_nodes.domain_of(node), 1)
        name = onnx_nodes.full_name(node)
        place = shown(node.name or next(iter(node.output), ""))
        self.problems.add(f"{name} (opset {version})", reason, place)

    def _results(
        self, node: onnx.NodeProto, operands: Sequence[str | None], dtypes: Sequence[int], depth: int
    ) -> list[tuple[str, int]]:
        """(value, dtype) of each result of a node."""
        attributes = onnx_nodes.attributes(node)
        name = onnx_nodes.full_name(node)
        if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
            raise RefusedError("loops are not supported: unroll them when the file is made")
        arrays = [None if value is None else self.array(value) for value in operands]
        fixed = all(value is None or array is not None for value, array in zip(operands, arrays, strict=True))
        if operands and fixed and name in COMPUTED:
            folded = self._folder.run(node, arrays, self.opsets)
            return [(self.raw_constant(array), onnx_nodes.dtype_of(array)) for array in folded]
        schema = onnx_nodes.schema_of(node, self.opsets)
        types = [
            onnx.TypeProto() if value is None else onnx.helper.make_tensor_type_proto(dtype, self.shape_of(value))
            for value, dtype in zip(operands, dtypes, strict=True)
        ]
        results = onnx_nodes.result_dtypes(schema, node, types, self.opsets)
        if (rule := qlinear.on_integers(name, dtypes, attributes) or RULES.get(name)) is not None:
            args = self._arguments(node, schema, attributes, operands)
            values = rule(self, {**args, "dtypes": [*dtypes, *[0] * 8]})
            values = [values] if isinstance(values, str) else values
            if name in ("MatMulInteger", "ConvInteger"):
                self._sums.update(values)
            return [(v, self.made.get(v, t)) for v, t in zip(values, results, strict=False)]
        if name in ONNX:
            self._check_dtypes(name, dtypes, results)
            args = self._arguments(node, schema, attributes, self._operands(name, operands))
            if name in onnx_nodes.TABLES and dtypes[0] in STORED and arrays[1] is None:
                assert operands[0] is not None
                return [(self._rows(node, operands[0], args, dtypes[0]), dtypes[0])]
            if results[0] in INTEGERS and name in onnx_nodes.ARITHMETIC and results[0] in dtypes:
                return [(self._small_integers(name, args, results[0]), results[0])]
            values = self._noted(name, ONNX[name][1](self, args), results)
            if len(values) == len(node.output) or not onnx_nodes.definitions(schema):
                return list(zip(values, results, strict=False))
        return self._function(node, schema, operands, dtypes, types, depth)

    def _branch(self, node: onnx.NodeProto, scope: Scope, depth: int) -> list[tuple[str, int]]:
        """The results of the branch that an If takes, which must follow from sizes and constants."""
        value = scope.values[node.input[0]] if len(node.input) == 1 else None
        condition = None if value is None else self.array(value)
        branches = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        if condition is None or condition.size != 1 or {"then_branch", "else_branch"} - branches.keys():
            raise RefusedError(
                "its condition is computed while the network runs: where an input decides it that is always the same, "
                'give it as a constant, constants={"NAME": 16000} or --constant NAME=16000'
            )
        if depth >= DEEPEST:
            raise RefusedError(f"it is a branch of a branch, more than {DEEPEST} deep")
        branch = branches["then_branch" if condition.any() else "else_branch"]
        if len(branch.output) != len(node.output):
            raise RefusedError(f"its branch gives {counted(len(branch.output), 'result')}, not {len(node.output)}")
        inner = scope.within()
        for name, array in constants_of(branch, self.program.folders).items():
            self.define(inner, name, self.raw_constant(array, name), onnx_nodes.dtype_of(array))
        at = self.source
        self.walk(branch.node, inner, depth + 1)
        self.source = at
        names = [port.name for port in branch.output]
        if missing := [name for name in names if name not in inner.values]:
            raise RefusedError(f"its branch does not give {shown(missing[0])}")
        found = [(inner.values[name], inner.dtypes[name]) for name in names]
        return [(value, dtype) for value, dtype in found if value is not None]  # of a missing one a node is the problem

    def _operands(self, name: str, operands: Sequence[str | None]) -> list[str | None]:
        """Operands for an importer function: stored integers of one quantization for operators that move or compare
        them, else integers as float32 numbers."""
        moves = isinstance(ONNX[name][0].int8, Moves | Monotonic) and name != "Pad"
        stored = {self.quantization(v) for v in operands if v is not None and v not in self.raw}
        if moves and len(stored) == 1:
            return list(operands)
        return [v if v is None or v in self.raw else self.numbers(v) for v in operands]

    def _rows(self, node: onnx.NodeProto, x: str, args: Mapping[str, Any], dtype: int) -> str:
        """Gathers rows of stored integers at computed indices. A constant table is stored at the scale at which the
        result is read."""
        if x in self.raw:
            q = self.read_as(node.output[0], dtype)
            whole = self.raw[x].astype(np.int64) - STORED[dtype][1]
            x = self.add_stored(whole.astype(DTYPES[q.dtype]), q)
        stored = self.quantization(x)
        assert stored is not None
        inputs = [self.emit("dequantize", (x,)), *args["inputs"][1:]]
        rows = str(ONNX[onnx_nodes.full_name(node)][1](self, {**args, "inputs": inputs}))
        return self.stored(rows, stored, dtype, stored.range)

    def _noted(self, name: str, found: str | list[str], results: Sequence[int]) -> list[str]:
        """Results of an importer function. Notes the ONNX dtypes of moved integers; stores computed bools as int8."""
        values = [found] if isinstance(found, str) else found
        if isinstance(ONNX[name][0].int8, Moves | Monotonic):
            for value, dtype in zip(values, results, strict=False):
                if self.quantization(value) is not None:
                    self.made[value] = dtype
            return values
        return [self.truth(v) if t == TensorProto.BOOL else v for v, t in zip(values, results, strict=False)]

    def _check_dtypes(self, name: str, dtypes: Sequence[int], results: Sequence[int]) -> None:
        for dtype in (*dtypes, *results):
            if dtype and dtype != FLOAT and dtype not in RESULTS:
                raise RefusedError(
                    f"it computes with {onnx_nodes.dtype_name(dtype)}: store the network's numbers as float32"
                )

    def _small_integers(self, name: str, args: Mapping[str, Any], dtype: int) -> str:
        """Arithmetic of integers that float32 computes exactly, as integers that wrap."""
        bits = 8 * np.dtype(RESULTS[dtype]).itemsize
        if name == "Add" and not self._sums.isdisjoint(args["inputs"]):  # an int32 bias; float32 follows
            biased = str(ONNX[name][1](self, args))
            self._sums.add(biased)
            return biased
        exact = ("Add", "Sub", "Div", "Mod", "Neg", *(("Mul",) if bits == 8 else ()))
        if bits > 16 or name not in exact:
            raise RefusedError(
                f"it computes with {onnx_nodes.dtype_name(dtype)} while the network runs: compute them before the "
                "network, or only from sizes and constants"
            )
        if name != "Div":
            return self.wrapped(str(ONNX[name][1](self, args)), dtype)
        left, right = args["inputs"]
        whole = {"self": left, "other": right, "rounding_mode": "trunc"}
        return self.wrapped(str(self.aten("aten.div.Tensor_mode", whole)), dtype)

    def _arguments(
        self,
        node: onnx.NodeProto,
        schema: onnx.defs.OpSchema | None,
        attributes: Mapping[str, Any],
        operands: Sequence[str | None],
    ) -> dict[str, Any]:
        defaults = onnx_nodes.defaults(schema) if schema is not None else {}
        inputs = list(operands)
        if schema is not None and not onnx_nodes.is_variadic(schema):
            inputs += [None] * (len(schema.inputs) - len(inputs))
        return {
            **defaults,
            **attributes,
            "inputs": inputs,
            "outputs": len(node.output),
            "operator": node.op_type,
            "opset": attributes.get("opset", self.opsets.get(onnx_nodes.domain_of(node), 1)),
        }

    def _function(
        self,
        node: onnx.NodeProto,
        schema: onnx.defs.OpSchema | None,
        operands: Sequence[str | None],
        dtypes: Sequence[int],
        types: Sequence[onnx.TypeProto],
        depth: int,
    ) -> list[tuple[str, int]]:
        """Imports an operator that ONNX defines as a function of others."""
        if schema is None:
            raise RefusedError("this operator is not known: no operator of this name is in the table")
        versions = onnx_nodes.definitions(schema)
        if not versions or depth >= DEEPEST:
            raise RefusedError("this operator is not supported")
        outer, at, before = self.opsets, self.source, dict(self.problems.places)
        opsets = {**outer, "": max(outer[""], min(versions))}  # the body may be of a later opset
        kept = [("", name) for name in {*ONNX, *RULES, *COMPUTED} - {node.op_type}]
        whole = onnx_nodes.alone(node, opsets, types)
        onnx_nodes.set_defaults(whole.graph.node[0], schema)
        body = onnx.inliner.inline_selected_functions(whole, kept, exclude=True, inline_schema_functions=True).graph
        scope = Scope()
        for name, value, dtype in zip(whole.graph.node[0].input, operands, dtypes, strict=True):
            if value is not None:
                self.define(scope, name, value, dtype)
        self.opsets = opsets
        self.walk(body.node, scope, depth + 1)
        self.opsets, self.source = outer, at
        if new := [key for key in self.problems.places if key not in before]:
            self.problems.places = before
            raise RefusedError(f"of the operators that it stands for {new[0][0]} is not supported: {new[0][1]}")
        found = [(scope.values.get(port.name), scope.dtypes.get(port.name, FLOAT)) for port in body.output]
        return [(value, dtype) for value, dtype in found if value is not None]

    def read_as(self, name: str, dtype: int) -> QParams:
        """The quantization with which the first reader of integers dequantizes them, after operators that only move
        them. Scale 1 if there is none."""
        names, (stored, shift) = {name}, STORED[dtype]
        for node in self.program.graph.node:
            at = next((i for i, each in enumerate(node.input) if each in names), None)
            if at is None:
                continue
            if onnx_nodes.full_name(node) in RULES:
                scale, zero = (self.program.constants.get(n) for n in (*node.input[at + 1 : at + 3], "", "")[:2])
                if scale is not None and scale.size == 1 and (zero is None or zero.size == 1):
                    offset = 0 if zero is None else int(zero.reshape(()))
                    return QParams(float(scale.reshape(())), offset - shift, stored)
            elif node.op_type in onnx_nodes.MOVES and at == 0:
                names.update(node.output)
        return QParams(1.0, -shift, stored)
