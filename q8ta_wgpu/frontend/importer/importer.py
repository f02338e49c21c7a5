"""Imports a quantized torch.export program: its inputs, parameters, states and outputs. walk.py imports the nodes
between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, SymIntArgument, TensorArgument
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_unflatten

from q8ta_wgpu.errors import GraphError, UnsupportedError
from q8ta_wgpu.frontend.export.dimensions import Dimensions, dimensions
from q8ta_wgpu.frontend.export.folding import parameters
from q8ta_wgpu.frontend.export.formulas import at
from q8ta_wgpu.frontend.export.plain import plain
from q8ta_wgpu.frontend.export.states import states_of
from q8ta_wgpu.frontend.export.tracing import traced
from q8ta_wgpu.frontend.importer.walk import Walk
from q8ta_wgpu.frontend.nodes import constant, integer, named_arguments, source_of
from q8ta_wgpu.frontend.notes import FIXED, PRECISION, SIZES, noted
from q8ta_wgpu.ir.decision import Decision
from q8ta_wgpu.ir.graph import DTYPES, UINT8, Buffer, Graph
from q8ta_wgpu.ir.size import UNBOUNDED, Dynamic, Point, Size
from q8ta_wgpu.model.dynamic import joined
from q8ta_wgpu.model.resize import resized
from q8ta_wgpu.model.structure import Structure


def import_program(program: ExportedProgram | GraphModule) -> tuple[Graph, Structure]:
    """Imports an exported PT2E program, for the example's sizes if its inputs have more than one.

    In-place and unknown operators are functionalized and decomposed first.

    Returns:
        The graph, and the structure of its outputs.

    Raises:
        UnsupportedError: operators cannot be imported. Equal causes share a line with their number and the first one's
            module path and source line. Also for mutated buffers and inputs that are not float32 tensors.
    """
    if isinstance(program, ExportedProgram) and (named := _named_sizes(program)) is not None:
        program = _traced_at(program, named, named.points[0])
    graph, structure = _imported(plain(program))
    if (variance := next(filter(_divides_by_count, program.graph.nodes), None)) is not None:
        why = f"the variance at {source_of(variance) or variance.name} divides by the number of its elements less one"
        for name in graph.inputs:
            stays = range((name, 0) in graph.dynamic.inputs, len(graph.types[name].shape))
            graph.values.set(name, fixed=dict.fromkeys(stays, (0, why)) | dict(graph.values[name].fixed))
    return graph, structure


def _imported(program: ExportedProgram) -> tuple[Graph, Structure]:
    """`import_program` for a program without in-place operators, which torch has already decomposed."""
    signature = program.graph_signature
    if mutated := list(signature.user_inputs_to_mutate.values()):
        raise UnsupportedError(f"the program changes its inputs {', '.join(mutated)}: compute new tensors instead")
    states, known = _states(program), parameters(program)
    constants = {node: tensor for node, tensor in known.items() if node.name not in states}
    new = [written for _, written in states.values()]
    walk = Walk(program.graph, constants, _tokens(program), states={*states, *new})
    found = walk.run([*signature.user_outputs, *new])
    walk.problems.check()
    outputs, written = found[: len(signature.user_outputs)], found[len(signature.user_outputs) :]
    walk.graph.inputs = [name for name in walk.graph.inputs if name not in states]
    _check_ends(walk, signature.user_outputs, outputs)
    structure = _structure(program, outputs)
    walk.graph.outputs = [
        walk.byte_result(name) if structure.dtypes.get(index) == "uint8" else walk.result(name)
        for index, name in enumerate(name for name in outputs if isinstance(name, str))
    ]
    initial = {node.name: tensor for node, tensor in known.items()}
    for (read, (buffer, _)), value in zip(states.items(), written, strict=True):
        _keep(walk, read, buffer, initial[read], value)
    for index, dim, step, why in noted(program.graph_module, FIXED, ()):
        name = walk.graph.inputs[index]
        walk.graph.values.set(name, fixed={**walk.graph.values[name].fixed, dim: (step, why)})
    unrounded, decisions, *_ = noted(program.graph_module, PRECISION, ((), ()))
    for name, why in unrounded:
        walk.graph.values.set(name, unrounded=why)
    walk.graph.decisions = [
        Decision(tuple(values), role, width, by, reason, tuple(matched), *others)
        for values, role, width, by, reason, matched, *others in decisions
    ]
    return walk.graph, structure


def at_all_sizes(program: Any, graph: Graph, finish: Callable[[Graph], Graph]) -> Graph:
    """The graph of a program, to which `finish` has been applied. If its inputs have many sizes, graphs at other sizes
    are imported as well and combined with it, and the graph is that for the example's sizes. Raises as
    `import_program`."""
    if not isinstance(program, ExportedProgram):
        return finish(graph)
    said, found = noted(program.graph_module, SIZES), _named_sizes(program)
    if said is None and found is None:
        return finish(graph)
    sized = at if found is None else _traced_at
    found = found or Dimensions.of(said)
    inputs = {(graph.inputs[i], dim): Size(terms, found.points[0]) for i, dim, terms in found.sizes}

    def finished(point: Point) -> Graph:
        return finish(import_program(sized(program, found, point))[0])

    most = {symbol: high for symbol, (_, high) in found.ranges.items()}
    largest = None if UNBOUNDED in most.values() else lambda: finished(most)
    graphs = [finish(graph), *map(finished, found.points[1:])]
    try:
        whole = joined(graphs, found.points, Dynamic(dict(found.ranges), inputs), largest)
    except GraphError as error:
        raise UnsupportedError(
            f"the module does not follow the sizes that dynamic_shapes names: {error}. Name sizes that it follows, "
            "such as 2 * Dim(...) for a network that halves and doubles them, or leave the dimension out"
        ) from None
    shapes = found.shapes([whole.types[name].shape for name in whole.arguments], found.nearest)
    return resized(whole, [tuple(shape) for shape in shapes])


def _named_sizes(program: ExportedProgram) -> Dimensions | None:
    """The sizes of inputs that torch's own symbols name, as `export(..., dynamic_shapes=...)` makes them; None where
    each has one size, or an input is a number of any size. Raises UnsupportedError for sizes that are no multiples of
    one symbol."""
    inputs, shapes = _example(program), list[dict[int, Dim]]()
    for value in inputs:
        sizes: list[Any] = list(value.shape)
        shapes.append({d: _named(program, size.node.expr) for d, size in enumerate(sizes) if not isinstance(size, int)})
    if not any(shapes) or any(isinstance(argument, SymIntArgument) for argument in _arguments(program)):
        return None
    zeros = [torch.zeros([integer(d) for d in value.shape], dtype=value.dtype) for value in inputs]
    return dimensions(program.module(check_guards=False), zeros, shapes)


def _named(program: ExportedProgram, size: Any) -> Dim:
    """A size that follows from one of torch's symbols."""
    if len(size.free_symbols) == 1:
        (symbol,) = size.free_symbols
        more = int(size.subs(symbol, 0))
        factor = int(size.subs(symbol, 1)) - more
        ends = program.range_constraints[symbol]
        named: Any = Dim(str(symbol), min=int(ends.lower), max=_largest(ends))
        if size == factor * symbol + more:
            named = named if factor == 1 else factor * named
            return named + more if more else named  # type: ignore[no-any-return]
    raise UnsupportedError(
        f"an input has the size {size}, which is no multiple of one size: export with a torch.export.Dim of its own"
    )


def _largest(ends: Any) -> int | None:
    """The largest size of a range of torch's; None where it has none."""
    return int(ends.upper) if ends.upper < UNBOUNDED else None


def _traced_at(program: ExportedProgram, sizes: Dimensions, point: Point) -> ExportedProgram:
    """A program with symbols for sizes, exported again at a point."""
    assert program.call_spec.in_spec is not None
    tensors = iter(sizes.at(_example(program), point))
    given = (a.value if isinstance(a, ConstantArgument) else next(tensors) for a in _arguments(program))
    args, kwargs = tree_unflatten(given, program.call_spec.in_spec)
    return traced(lambda: torch.export.export(program.module(check_guards=False), args, kwargs))


def _arguments(program: ExportedProgram) -> list[Any]:
    """torch's descriptions of what a program is called with."""
    return [each.arg for each in program.graph_signature.input_specs if each.kind == InputKind.USER_INPUT]


def _example(program: ExportedProgram) -> list[torch.Tensor]:
    """Values like the tensors that a program is called with."""
    values = {node.name: node.meta["val"] for node in program.graph.find_nodes(op="placeholder")}
    return [values[each.name] for each in _arguments(program) if isinstance(each, TensorArgument)]


def _states(program: ExportedProgram) -> dict[str, tuple[str, str]]:
    """The inputs that are buffers which the program changes: each with the name of the buffer and of the result that is
    its new value."""
    signature = program.graph_signature
    reads = {buffer: name for name, buffer in signature.inputs_to_buffers.items()}
    return {reads[buffer]: (buffer, name) for name, buffer in signature.buffers_to_mutate.items()}


def _check_ends(walk: Walk, names: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raises UnsupportedError for inputs or outputs that a graph cannot have."""
    if shifted := [name for name in walk.graph.inputs if name in walk.shifted]:
        raise UnsupportedError(f"input {shifted[0]} is quantized to uint8: begin the program with its quantize")
    for name, found in zip(names, outputs, strict=True):
        if name is not None and not isinstance(found, str):
            raise UnsupportedError(
                f"an output is {name!r}: outputs must be tensors or None, so return the others apart"
            )
        if found in walk.shifted:
            raise UnsupportedError(f"output {found} is uint8: end the program with its dequantize")
        if found in walk.graph.inputs and walk.type(found).q == UINT8:
            raise UnsupportedError(f"output {found} is an input, given as uint8: return it as float32, x.float()")
    if not any(isinstance(name, str) for name in outputs):
        raise UnsupportedError("the module returns no tensor, so there is nothing to compute")


def _keep(walk: Walk, read: str, buffer: str, initial: torch.Tensor, value: str) -> None:
    """Makes a buffer that the program changes a state of the graph. Its new value is a result."""
    graph, array = walk.graph, initial.detach().cpu().numpy()
    stored = np.array(array, DTYPES[graph.types[read].dtype], order="C")
    if (lost := array[stored != array]).size and stored.dtype == np.int32:
        raise UnsupportedError(
            f"buffer {buffer} begins with {lost[0]}, and integers that stay from call to call are int32, within "
            "2^31: begin with a smaller number, or keep it as float32"
        )
    dtype = str(initial.dtype).removeprefix("torch.")
    graph.buffers[buffer] = Buffer(graph.add_constant(f"{buffer}.initial", stored), dtype)
    graph.inputs.append(read)
    graph.outputs.append(walk.as_state(value, graph.types[read].dtype))


def _structure(program: ExportedProgram, outputs: Sequence[Any]) -> Structure:
    """The structure of a program's outputs, in which names stand for tensors, and the tensors' dtypes."""
    count = itertools.count()
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    pairs = zip(program.graph_signature.user_outputs, outputs, strict=True)
    dtypes = [
        _RESULTS.get(getattr(values[str(name)], "dtype", None)) for name, found in pairs if isinstance(found, str)
    ]
    return structure_of(program, [next(count) if isinstance(found, str) else None for found in outputs], dtypes)


def structure_of(
    program: ExportedProgram, indices: Sequence[int | None], dtypes: Sequence[str | None] = ()
) -> Structure:
    """The structure of a program's outputs. `indices` are those of its tensors, None for outputs that are none."""
    assert program.call_spec.out_spec is not None
    try:
        return Structure.of(tree_unflatten(indices, program.call_spec.out_spec), dtypes)
    except GraphError as error:
        raise UnsupportedError(str(error)) from error


def import_piece(piece: GraphModule) -> Graph | dict[str, str]:
    """Imports a piece of a program.

    Inputs and outputs of a piece are float32 or quantized: int8, int16, or uint8, which the graph stores as int8 that
    is 128 less.

    Returns:
        The graph, or the reason for each node that cannot be imported.
    """
    walk = _of_module(piece, whole=False)
    ends: Any = piece.graph.output_node().args[0]
    ends = [n for n in (ends if isinstance(ends, tuple) else (ends,)) if isinstance(n, Node)]
    outputs = walk.run([n.name for n in ends])
    for node, found in zip(ends, outputs, strict=True):
        if not isinstance(found, str):
            walk.problems.add_node("its result is no tensor", node)
    if walk.problems:
        return walk.problems.nodes
    walk.graph.outputs = [walk.operand(name) for name in outputs]
    return walk.graph


@dataclass(frozen=True)
class Imported:
    """A float graph, and torch's names of its values.

    Attributes:
        graph: with a value of its own for every call of torch's graph.
        values: each call, input or constant of one tensor by the name of its value.
        calls: by the name of a node's output, the name in torch's graph of the call that it belongs to.
    """

    graph: Graph
    values: Mapping[str, Node]
    calls: Mapping[str, str]


def import_whole(module: GraphModule) -> Graph:
    """Imports a float module. Raises UnsupportedError for calls and results that a graph cannot have, as
    `import_program`."""
    states = {node.name for pair in states_of(module) for node in pair}
    ends = [end.name if isinstance(end, Node) else end for end in tree_leaves(module.graph.output_node().args[0])]
    walk = _of_module(module, states=states)
    found = walk.run(ends)
    walk.problems.check()
    _check_ends(walk, ends, found)
    walk.graph.outputs = [walk.operand(name) for name in found if isinstance(name, str)]
    return walk.graph


def import_float(module: GraphModule) -> Imported:
    """Imports a float module. The value of an unsupported call is computed by no node."""
    walk = _of_module(module, aliases=False)
    walk.run([])
    walk.graph.outputs = [
        walk.values[node.name]
        for node in module.graph.output_node().all_input_nodes
        if isinstance(walk.values.get(node.name), str)
    ]
    names = {value: node for node in module.graph.nodes if isinstance(value := walk.values.get(node.name), str)}
    return Imported(walk.graph, names, walk.calls)


def _of_module(module: GraphModule, **options: Any) -> Walk:
    return Walk(module.graph, {n: constant(module, n) for n in module.graph.find_nodes(op="get_attr")}, **options)


def _tokens(program: ExportedProgram) -> set[str]:
    """The inputs that only order effects and have no values."""
    return {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.TOKEN}


_VARIANCES = tuple(getattr(torch.ops.aten, name) for name in ("var", "var_mean", "std", "std_mean"))

_RESULTS: Mapping[Any, str] = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64)
}
"""The dtypes of results that are float32 or int32 in a graph, and the dtypes that the user gets."""


def _divides_by_count(node: Node) -> bool:
    """Whether a call divides by a number of elements that torch computes from sizes: a variance or deviation with a
    correction."""
    varies = isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket in _VARIANCES
    return varies and 0 not in (named_arguments(node).get(name, 1) for name in ("correction", "unbiased"))
