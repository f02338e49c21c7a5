"""From a quantized torch.export program to our graph: the walk over its nodes, inputs, parameters and outputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_unflatten

from q8ta_wgpu.errors import GraphError, UnsupportedError
from q8ta_wgpu.frontend.export.folding import computed, parameters
from q8ta_wgpu.frontend.export.pairs import RULES
from q8ta_wgpu.frontend.export.plain import plain
from q8ta_wgpu.frontend.export.recurrent_layers import feeds_states
from q8ta_wgpu.frontend.importer import qdq
from q8ta_wgpu.frontend.importer.builder import GraphBuilder, RefusedError
from q8ta_wgpu.frontend.importer.call_arguments import arguments_of, is_bool, meant, repeated_for_the_batch
from q8ta_wgpu.frontend.importer.integer_ranges import (
    EXACT,
    Ranges,
    beyond,
    bounds_of,
    is_integer,
    is_number,
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
    is_float,
    is_kept,
    kind,
    named_arguments,
    source_of,
)
from q8ta_wgpu.frontend.notes import FIXED, PRECISION, noted
from q8ta_wgpu.ir.graph import BOOL, DTYPES, FLOAT32, INT8X4, INT32, UINT8, Graph, TensorType
from q8ta_wgpu.ir.int8 import MASKED, Monotonic, Moves
from q8ta_wgpu.kernels import ATEN
from q8ta_wgpu.model.structure import Structure


def import_program(program: ExportedProgram | torch.fx.GraphModule) -> tuple[Graph, Structure]:
    """The graph of an exported PT2E program, and the structure of its outputs.

    What holds in-place or unknown operators is functionalized and decomposed first.

    Raises:
        UnsupportedError: names every operator that cannot be imported, equal causes on one line with their number and
            the first place, module path and source line; also mutated buffers, dynamic dimensions other than the
            batch, inputs that are not float32 tensors.
    """
    graph, structure = import_decomposed(plain(program))
    if (variance := next(filter(_divides_by_count, program.graph.nodes), None)) is not None:
        why = f"the variance at {source_of(variance) or variance.name} divides by the number of its elements less one"
        for name in graph.inputs:
            for dim in range(name in graph.batched, len(graph.types[name].shape)):
                graph.fixed.setdefault((name, dim), (0, why))
    return graph, structure


def import_decomposed(program: ExportedProgram) -> tuple[Graph, Structure]:
    """`import_program` for what has no in-place operators and nothing that torch would decompose further."""
    signature = program.graph_signature
    if mutated := list(signature.user_inputs_to_mutate.values()):
        raise UnsupportedError(f"the program changes its inputs {', '.join(mutated)}: compute new tensors instead")
    reads = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    states = {reads[buffer]: (buffer, name) for name, buffer in signature.buffers_to_mutate.items()}
    known = parameters(program)
    constants = {node: tensor for node, tensor in known.items() if node.name not in states}
    importer = _Importer(program.graph, constants, _tokens(program))
    importer.states = {*states, *(written for _, written in states.values())}
    outputs = importer.run([*signature.user_outputs, *(written for _, written in states.values())])
    importer.problems.check()
    initial = {node.name: tensor for node, tensor in known.items() if node.name in states}
    graph, written = importer.graph, outputs[len(signature.user_outputs) :]
    outputs = outputs[: len(signature.user_outputs)]
    graph.inputs = [name for name in graph.inputs if name not in states]
    dynamic = [name for name in graph.inputs if name in graph.batched]
    if states and dynamic:
        raise UnsupportedError(f"a program that changes {', '.join(states)} has no batch of any size: export one size")
    if given := [name for name in importer.graph.inputs if name in importer.shifted]:
        raise UnsupportedError(f"input {given[0]} is quantized to uint8: begin the program with its quantize")
    for name, found in zip(signature.user_outputs, outputs, strict=True):
        if name is not None and not isinstance(found, str):
            raise UnsupportedError(
                f"an output is {name!r}: outputs must be tensors or None, so return the others apart"
            )
        if found in importer.shifted:
            raise UnsupportedError(f"output {found} is uint8: end the program with its dequantize")
        if isinstance(found, str) and importer.type(found).q == UINT8:
            raise UnsupportedError(f"output {found} is a uint8 input, moved or not: return it as float32, x.float()")
    if not any(isinstance(name, str) for name in outputs):
        raise UnsupportedError("the module returns no tensor, so there is nothing to compute")
    importer.graph.outputs = [importer.result(name) for name in outputs if isinstance(name, str)]
    for (read, (buffer, _)), value in zip(states.items(), written, strict=True):
        array, dtype = initial[read].detach().cpu().numpy(), initial[read].dtype
        if dtype != torch.float32:
            graph.whole[buffer] = str(dtype).removeprefix("torch.")
        stored = np.array(array, DTYPES[graph.types[read].dtype], order="C")
        if (lost := array[stored != array]).size and stored.dtype == np.int32:
            raise UnsupportedError(
                f"buffer {buffer} begins with {lost[0]}, and integers that stay from call to call are int32, within "
                "2^31: begin with a smaller number, or keep it as float32"
            )
        graph.buffers[buffer] = graph.add_constant(f"{buffer}.initial", stored)
        graph.inputs.append(read)
        graph.outputs.append(importer.as_state(value, graph.types[read].dtype))
    for index, dim, step, why in noted(program.graph_module, FIXED, ()):
        importer.graph.fixed[importer.graph.inputs[index], dim] = (step, why)
    importer.graph.notes += noted(program.graph_module, PRECISION, ((),))[0]
    spec = program.call_spec.out_spec
    assert spec is not None
    dtypes_of = {node.name: getattr(node.meta.get("val"), "dtype", torch.float32) for node in program.graph.nodes}
    pairs = zip(signature.user_outputs, outputs, strict=True)
    dtypes = [_RESULTS.get(dtypes_of[str(name)]) for name, value in pairs if isinstance(value, str)]
    try:
        return importer.graph, Structure.of(tree_unflatten(_numbered(outputs), spec), dtypes)
    except GraphError as error:
        raise UnsupportedError(str(error)) from error


def import_piece(piece: torch.fx.GraphModule) -> Graph | dict[str, str]:
    """The graph of a piece of a program, or which of its nodes stand in the way, each with the reason.

    What goes in and out of a piece is float32 or quantized: int8, int16, or uint8, which the graph holds as int8 that
    is 128 less. Inputs that are sizes of a dynamic batch are none of the graph's, nor are results that are no tensors.
    """
    importer = _of_module(piece)
    importer.whole = False
    ends: Any = piece.graph.output_node().args[0]
    ends = [n for n in (ends if isinstance(ends, tuple) else (ends,)) if isinstance(n, torch.fx.Node)]
    outputs = importer.run([n.name for n in ends])
    for node, found in zip(ends, outputs, strict=True):
        if not isinstance(found, str):
            importer.problems.add("its result is no tensor", node)
    if importer.problems:
        return importer.problems.nodes
    importer.graph.outputs = [importer.operand(name) for name in outputs]
    return importer.graph


def check_module(module: torch.fx.GraphModule) -> None:
    """Raises UnsupportedError, as `import_program`, where calls of a module could not be imported."""
    importer = _of_module(module)
    importer.run([])
    importer.problems.check()


@dataclass(frozen=True)
class Imported:
    """A float graph, and what its values are in torch's.

    Attributes:
        graph: with a value of its own for every call of torch's graph.
        values: each call, input or constant of one tensor by the name of its value.
        calls: the call that each node is part of, by the node's output: its name in torch's graph.
    """

    graph: Graph
    values: Mapping[str, torch.fx.Node]
    calls: Mapping[str, str]


def import_float(module: torch.fx.GraphModule) -> Imported:
    """The graph of a float module. A call that is not supported gives a value that nothing computes."""
    importer = _of_module(module)
    importer.aliases = False
    importer.run([])
    importer.graph.outputs = [
        importer.values[node.name]
        for node in module.graph.output_node().all_input_nodes
        if isinstance(importer.values.get(node.name), str)
    ]
    names = {value: node for node in module.graph.nodes if isinstance(value := importer.values.get(node.name), str)}
    return Imported(importer.graph, names, importer.calls)


def _of_module(module: torch.fx.GraphModule) -> _Importer:
    attributes = module.graph.find_nodes(op="get_attr")
    return _Importer(module.graph, {n: operator.attrgetter(str(n.target))(module) for n in attributes})


def _tokens(program: ExportedProgram) -> set[str]:
    """Inputs that order effects and hold no values."""
    return {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.TOKEN}


_VARIANCES = tuple(getattr(torch.ops.aten, name) for name in ("var", "var_mean", "std", "std_mean"))

_INDICES = ("indices", "index", "kept")
"""Arguments that stay integers where floats are computed."""

_RESULTS = {torch.bool: "bool", torch.uint8: "uint8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64"}
"""The dtypes of results that are numbers in a graph, as the user gets them."""


class _Importer(GraphBuilder):
    """The walk over a graph.

    `constants` are the values of its parameters; `tokens` placeholders without a value. Where `aliases` is false, a
    call that gives what it reads, as a conversion to the dtype it has, gives a view of it. Where `whole` is false, it
    is a piece of a program, whose integers may be as large as torch's.
    """

    def __init__(
        self,
        graph: torch.fx.Graph,
        constants: Mapping[torch.fx.Node, torch.Tensor],
        tokens: Container[str] = (),
    ) -> None:
        super().__init__()
        self.nodes = graph
        self.constants = constants
        self.tokens = tokens
        self.problems = Problems()
        self.unknown: set[str] = set()
        self.ranges = Ranges({}, {})
        self.values: dict[str, Any] = {}
        self.calls: dict[str, str] = {}
        self.aliases = True
        self.states: Container[str] = ()
        self.whole = True

    def run(self, outputs: Sequence[Any]) -> list[Any]:
        """Imports every node; what the named ones became. `problems` says what could not be imported."""
        values = self.values
        fixed = computed(self.nodes, self.constants)
        self.ranges = Ranges(fixed, bounds_of(self.nodes, fixed, self.states))
        for node in self.nodes.nodes:
            known = len(self.graph.nodes)
            if node in fixed:
                values[node.name] = self._constant(node, fixed)
            elif node.op == "placeholder":
                token = node.name in self.tokens
                values[node.name] = self._placeholder_for(node) if token else self._placeholder(node)
            elif node.op == "call_function" and (node.users or node.name in outputs):
                values[node.name] = self._named(node, self._call(node, values), values)
            self.calls.update((made.output, node.name) for made in self.graph.nodes[known:])
        for node in self.nodes.output_node().all_input_nodes if not self.problems else ():
            try:
                self.ranges.check_result(node, node.name in self.states)
            except RefusedError as problem:
                self.problems.add(str(problem), node)
        return [values.get(name) if isinstance(name, str) else name for name in outputs]

    def _named(self, node: torch.fx.Node, found: Any, values: Mapping[str, Any]) -> Any:
        """What a call gives, as a value of its own where it must not be that of another call."""
        if (
            self.aliases
            or not isinstance(found, str)
            or found not in (values.get(n.name) for n in node.all_input_nodes)
        ):
            return found
        self.hint, self.source = node.name, source_of(node)
        return self.emit("view", (found,), {"shape": self.type(found).shape})

    def _constant(self, node: torch.fx.Node, fixed: Mapping[torch.fx.Node, Any]) -> Any:
        """A value that depends on no input: of a tensor the name of its array, if something else reads it."""
        value = fixed[node]
        if not isinstance(value, torch.Tensor):
            return value
        if not all(user in fixed for user in node.users):
            value = value.float() if value.is_floating_point() else value
            self.raw[node.name] = np.array(value.detach().cpu().numpy(), order="C")
        return node.name

    def _placeholder(self, node: torch.fx.Node) -> Any:
        value, q = node.meta.get("val"), qdq.quantized_input(node)
        if isinstance(value, torch.SymInt):
            return integer(value)
        known = is_number(node) or (
            isinstance(value, torch.Tensor) and value.dtype in INPUTS and value.dtype != torch.int8
        )
        if not isinstance(value, torch.Tensor) or (q is None and not known):
            found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            self.problems.add(
                f"input {node.name} must be a tensor of float32, integers (int64, int32, int16, uint8, or int8 read as "
                f"x.long()) or bools, found {found}: quantities are float32 outside of the network, token numbers "
                "integers, masks bools",
                node,
            )
            return self._placeholder_for(node)
        dynamic = [i for i, d in enumerate(value.shape) if i and not isinstance(d, int)]
        if dynamic:
            self.problems.add(
                f"input {node.name}: dimensions {dynamic} are dynamic, only the batch (dimension 0) may be; "
                "export with fixed sizes and use model.reshape for others",
                node,
            )
        self.graph.inputs.append(node.name)
        if node.name in self.states and value.dtype in (torch.bool, torch.uint8, torch.int8):
            self.graph.types[node.name] = TensorType(tuple(value.shape))
            return self.truth(node.name) if value.dtype == torch.bool else node.name
        if value.dim() and not isinstance(value.shape[0], int):
            self.graph.batched.add(node.name)
        shape = tuple(integer(d) for d in value.shape)
        if value.dtype == torch.bool:
            self.graph.bools.add(node.name)
            self.graph.types[node.name] = TensorType(shape, INT8X4, BOOL)
            self.hint = f"{node.name}.real"
            return self.emit("dequantize", (node.name,))
        if value.dtype == torch.uint8 and q in (None, UINT8) and not is_number(node):
            self.graph.uint8.add(node.name)
            self.graph.types[node.name] = TensorType(shape, INT8X4, UINT8)
        elif q is None and is_number(node):
            low, high = self.ranges.of(node) or (0, 0)
            if low and not self.whole:
                self.problems.add("integers that are no index of a table are computed in PyTorch", node)
            self.graph.bounds[node.name] = int(low), int(high)
            self.graph.types[node.name] = TensorType(shape, INT32)
        elif q is not None:
            self.shifted.update({node.name} if value.dtype == torch.uint8 else ())
            self.graph.types[node.name] = TensorType(shape, q.dtype, q)
        else:
            self.graph.types[node.name] = TensorType(shape)
        return node.name

    def _call(self, node: torch.fx.Node, values: Mapping[str, Any]) -> Any:
        name = str(node.target)
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, torch.fx.Node)
            assert isinstance(index, int)
            parts = values[source.name]
            if isinstance(parts, list) and index >= len(parts):
                self.problems.add(f"result {index} is not supported", source)
                return self._placeholder_for(node)
            return parts[index] if isinstance(parts, list) else parts
        if isinstance(node.meta.get("val"), torch.SymInt):
            return integer(node.meta["val"])
        if any(map(is_complex, (node, *node.all_input_nodes))):
            way = "it is not supported for complex numbers: compute with torch.view_as_real's parts"
            known = "what reads it is not supported for complex numbers (a result must be torch.view_as_real of them)"
            self.problems.add(known if node.target in RULES else way, node)
            return self._placeholder_for(node)
        self.source, self.hint, self.kept = source_of(node), node.name, is_kept(node)
        try:
            self.ranges.check(node)
            args: Mapping[str, Any] = arguments_of(node, values)
            namespace, _, overload = name.partition(".")
            if namespace in (QDQ, OWN):
                return qdq.import_call(self, overload, args)
            if name in CONVERSIONS:
                return self._converted(node, args)
            if repeated_for_the_batch(node):
                return self._for_the_batch(node, args["self"])
            if name not in ATEN:
                raise RefusedError("this operator is not supported")
            if is_bool(named_arguments(node).get("attn_mask")) and self.array(args["attn_mask"]) is None:
                numbers = {"condition": args["attn_mask"], "self": 0.0, "other": MASKED}
                args = {**args, "attn_mask": self.aten("aten.where.self", numbers), "takes_part": args["attn_mask"]}
            if not isinstance(kind(node), Moves | Monotonic):
                args = {key: self._number(value) for key, value in args.items()}
            args = self._integers(node, args)
            name, args = meant(node, args)
            if is_float(node):
                args = {key: value if key in _INDICES else self.floats(value) for key, value in args.items()}
            found = ATEN[name][1](self, args)
            self._check_rounded(node, found)
            return self.truth(found) if _decides(node) and isinstance(found, str) else found
        except (RefusedError, GraphError) as problem:
            if name not in ATEN or not any(str(values[n.name]) in self.unknown for n in node.all_input_nodes):
                self.problems.add(str(problem), node)
            return self._placeholder_for(node)

    def _for_the_batch(self, node: torch.fx.Node, x: str) -> str:
        """An expand of what has no batch to the size of the batch, whatever that is. Recurrent layers repeat what they
        begin with themselves."""
        if feeds_states(node):
            return x
        size, *others = node.meta["val"].shape
        whole = [
            n.meta["val"].shape[0] for n in self.nodes.nodes if n.op == "placeholder" and n.name in self.graph.batched
        ]
        if repeated_for_the_batch(node) != [0] or not any(size.node.expr == n.node.expr for n in whole):
            raise RefusedError("it computes with the size of a dynamic batch: export with a fixed batch size")
        single = self.aten("aten.expand.default", {"self": x, "size": [1, *map(integer, others)], "implicit": False})
        return self.emit("expand_batch", (single,), {"size": integer(size)})

    def _placeholder_for(self, node: torch.fx.Node) -> Any:
        """A value to go on with after a problem, so that every other problem is found too, but for those that only
        follow from this one."""
        value = node.meta.get("val")
        names = []
        for part in value if isinstance(value, (list, tuple)) else [value]:
            name = self.graph.fresh(node.name)
            shape = tuple(max(1, integer(d)) for d in part.shape) if isinstance(part, torch.Tensor) else ()
            self.graph.types[name] = TensorType(shape)
            names.append(name)
        self.unknown.update(names)
        return names if isinstance(value, (list, tuple)) else names[0]

    def _converted(self, node: torch.fx.Node, args: Mapping[str, Any]) -> str:
        """A conversion between float32, integers and bools, all of which are float32 numbers. Past 255 uint8 wraps, as
        torch's does on CPUs."""
        given = node.args[0]
        source = given.meta["val"].dtype if isinstance(given, torch.fx.Node) else None
        wanted = source if args["dtype"] is None else args["dtype"]
        x = args["self"] if source == wanted else self._number(args["self"])
        numbers = (torch.float32, torch.bool, *INTEGERS)
        coded = source != wanted and self.type(x).q is not None
        if coded or source not in (*numbers, torch.int8) or wanted not in numbers:
            raise RefusedError(
                f"it converts {source} to {wanted}: numbers are float32, integers and bools here "
                "(leave out torch.autocast, .half() and .to)"
            )
        if wanted == torch.bool and source != torch.bool:
            return self.truth(self.emit("ne_scalar", (x,), {"number": 0.0}))
        if source == torch.float32 and wanted in INTEGERS:
            x = self.emit("trunc", (x,))
        if wanted == torch.float32:
            x = self.floats(x)
        wraps = wanted == torch.uint8 and source not in (torch.uint8, torch.bool)
        return self.emit("remainder", (x,), {"divisor": 256.0}) if wraps else x

    def _integers(self, node: torch.fx.Node, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The operands of a call as int32 where one of them is, or where float32 would not hold what it computes."""
        keys = [key for key in operands_of(node) if key in args]
        names = [name for key in keys for name in (args[key] if isinstance(args[key], list) else [args[key]])]
        computed = [name for name in names if isinstance(name, str) and self.array(name) is None]
        integers = any(self.type(name).dtype == INT32 for name in computed)
        if not keys or not (integers or self.ranges.needs_int32(node)):
            return args

        def whole(value: Any) -> Any:
            if isinstance(value, list):
                return [whole(part) for part in value]
            floats = value in computed and self.type(value).dtype == FLOAT32
            return self.emit("to_int32", (value,)) if floats else value

        return {key: whole(value) if key in keys else value for key, value in args.items()}

    def _check_rounded(self, node: torch.fx.Node, found: Any) -> None:
        """Raises RefusedError where a call gives integers as float32 numbers that do not hold them."""
        reached = max(map(abs, self.ranges.of(node) or (0,)))
        floats = isinstance(found, str) and not self.is_constant(found) and self.type(found).dtype == FLOAT32
        if floats and is_integer(node.meta.get("val")) and EXACT < reached < math.inf:
            raise beyond(reached, EXACT)

    def _number(self, value: Any) -> Any:
        """An input given as uint8, moved or not, as the numbers that it stands for; any other argument as it is."""
        given = isinstance(value, str) and self.operand(value) in self.graph.types and self.type(value).q == UINT8
        return self.emit("dequantize", (value,)) if given else value


def _divides_by_count(node: torch.fx.Node) -> bool:
    """Whether a call becomes operators with a number that is computed from sizes."""
    varies = isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket in _VARIANCES
    return varies and 0 not in (named_arguments(node).get(name, 1) for name in ("correction", "unbiased"))


def _decides(node: torch.fx.Node) -> bool:
    """Whether a node computes bools, and does not only move them."""
    return is_bool(node) and not isinstance(kind(node), Moves)


def _numbered(outputs: Sequence[Any]) -> list[int | None]:
    """The position of each tensor output among the graph's outputs; None for what is no tensor."""
    count = iter(range(len(outputs)))
    return [next(count) if isinstance(name, str) else None for name in outputs]
