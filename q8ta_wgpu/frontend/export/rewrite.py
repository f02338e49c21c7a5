"""Replaces in-place operators and composites of a program without tracing it.

Decomposing replaces all of them, but traces the whole program again, which takes longer than exporting it did.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from q8ta_wgpu.frontend.export.decompose import own_rule, table
from q8ta_wgpu.frontend.export.editor import call, operators_of, replace, splice, value_of
from q8ta_wgpu.frontend.export.folding import is_pure
from q8ta_wgpu.frontend.export.remove_no_ops import is_idle_dropout
from q8ta_wgpu.frontend.export.rules import AS_PRODUCTS, embedding_bags
from q8ta_wgpu.frontend.export.writes import compute_written
from q8ta_wgpu.frontend.nodes import convolves, kind, named_arguments, transforms
from q8ta_wgpu.frontend.notes import TRANSFORM, note
from q8ta_wgpu.importing.import_table import ATEN
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Normalization, Product, Rowwise, WeightedSum

_FRESH = (WeightedSum, Normalization, Arithmetic, Product, Rowwise, Elementwise)
"""Kinds whose results have no other views."""

_COPIES = ("aten.cat.default", "aten.clone.default")
"""Moves whose results have no other views."""


def rewrite(program: ExportedProgram) -> None:
    """Replaces operators that the table lacks in a program, which is changed, where equality is certain.

    These are in-place elementwise operators and copies on values of which no view is read later, aliases, inactive
    dropouts, embedding bags, constants assembled by writes, and composites with one result. Weighted sums are also
    replaced if they have one image, one output or weights that the network computes.
    """
    traced: dict[Any, Graph | None] = {}
    for node in list(program.graph.nodes):
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not node.users:
            continue
        if str(target) == "aten.alias.default":
            _replace(node, node.args[0])
        elif target is torch.ops.aten.expand_as.default:
            _name_sizes(node)
        elif target._schema.name == "aten::embedding_bag":
            _expand_bag(program, node)
        elif target._schema.is_mutable:
            _make_functional(node)
        elif isinstance(kind(node), WeightedSum):
            given = named_arguments(node)
            if not _follows(given.get("weight", given.get("other")), program.graph_signature.user_inputs):
                _name_one(program, node)
            elif target in AS_PRODUCTS:
                _expand(program, node, traced)
        elif (
            str(target) not in ATEN
            and isinstance(node.meta.get("val"), torch.Tensor)
            and all(user.op != "output" for user in node.users)
        ):
            _expand(program, node, traced)
    compute_written(program)


def _replace(node: Node, same: Any) -> None:
    """Replaces a node by an equal value, unless the program returns it, since outputs have names."""
    if all(user.op != "output" for user in node.users):
        node.replace_all_uses_with(same)
        node.graph.erase_node(node)


def _name_sizes(node: Node) -> None:
    """Replaces an expand to the sizes of a tensor (expand_as) by one to numbers, since the tensor would otherwise share
    a scale with the result. A dynamic batch keeps the tensor."""
    x, shape = node.args[0].meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    own_sizes = [None] * (len(shape) - len(x)) + list(x)
    sizes = [-1 if str(size) == str(own) else size for size, own in zip(shape, own_sizes, strict=True)]
    if all(isinstance(size, int) for size in sizes):
        node.target, node.args = torch.ops.aten.expand.default, (node.args[0], sizes)


def _follows(node: Any, inputs: Container[Any]) -> bool:
    """Whether a value depends on inputs of these names."""
    found = {node} if isinstance(node, Node) else set()
    waiting = list(found)
    for source in waiting:
        if source.name in inputs:
            return True
        new = [n for n in source.all_input_nodes if n not in found]
        found.update(new)
        waiting += new
    return False


def _name_one(program: ExportedProgram, node: Node) -> None:
    """Gives a convolution of one image a batch of one, and a linear for one output, which may be written as a product
    with a vector, a dimension of outputs."""
    arguments = named_arguments(node)
    x = arguments.get("input", arguments.get("self"))
    weight, vector = arguments.get("weight"), arguments.get("other")
    matrix = weight if isinstance(weight, Node) else vector
    if not isinstance(x, Node) or not isinstance(matrix, Node):
        return
    if convolves(node):
        one, dim = x, 0
        implied = x.meta["val"].dim() < matrix.meta["val"].dim()
    else:
        one, dim = matrix, -1
        implied = matrix.meta["val"].dim() == 1 and (matrix is weight or x.meta["val"].dim() > 1)
    if not implied:
        return
    value = node.meta["val"]
    result = call(node.next, torch.ops.aten.squeeze.dim, node, dim, like=node, value=value)
    replace(program, node, result)
    node.replace_input_with(one, call(node, torch.ops.aten.unsqueeze.default, one, int(one is vector)))
    node.meta = {**node.meta, "val": value.unsqueeze(dim)}


def _make_functional(node: Node) -> None:
    """Replaces an in-place operator by one with a new value, which later readers of its operand read instead."""
    x = node.args[0] if node.args else None
    if not isinstance(x, Node):
        return
    if is_idle_dropout(node):
        _replace(node, x)
        return
    if not _is_fresh(x) or any(user.op == "output" for user in x.users):
        return
    if not all(_ends_before(node, user) for user in x.users if user < node):
        return
    if (call := _functional(node)) is None:
        return
    x.replace_all_uses_with(node, delete_user_cb=lambda user: user > node)
    node.target, node.args, node.kwargs = call


def _is_fresh(node: Node) -> bool:
    """Whether a value is not a view of another one, as the result of an in-place operator is."""
    if str(node.target) in _COPIES:
        return True
    return isinstance(kind(node), _FRESH) and not node.target._schema.is_mutable  # type: ignore[union-attr]


def _ends_before(node: Node, reader: Node) -> bool:
    """Whether the result of a reader is not a view, or a view that nothing reads at a node or later, itself or by views
    of it."""
    seen, waiting = {reader}, [reader]
    while waiting:
        view = waiting.pop()
        if _is_fresh(view):
            continue
        if not all(user < node for user in view.users):
            return False
        waiting += view.users.keys() - seen
        seen |= view.users.keys()
    return True


def _functional(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The call that returns the result of an in-place operator; None if the table has none."""
    target: Any = node.target
    if target is torch.ops.aten.copy_.default:
        source = node.args[1]
        value, copied = (n.meta["val"] for n in (node, source))  # type: ignore[union-attr]
        alike = (copied.dtype, copied.shape) == (value.dtype, value.shape)
        return (torch.ops.aten.clone.default, (source,), {}) if alike else None  # the source may change later
    name = target._schema.name.removeprefix("aten::").removesuffix("_")
    functional = getattr(getattr(torch.ops.aten, name, None), target._overloadname, None)
    if functional is None or str(functional) not in ATEN:
        return None
    fits = isinstance(ATEN[str(functional)][0].int8, Arithmetic | Elementwise) and _same_type(functional, node)
    return (functional, node.args, dict(node.kwargs)) if fits else None


def _same_type(functional: Any, node: Node) -> bool:
    """Whether an operator has the same result dtype as the in-place operator: `x.gt_(0)` leaves numbers, `x > 0`
    returns bools."""
    value, found = node.meta["val"], value_of(node, functional)
    return bool(found.dtype == value.dtype and found.shape == value.shape)


def _expand(program: ExportedProgram, node: Node, traced: dict[Any, Graph | None]) -> None:
    """Replaces a call by the operators into which torch decomposes it, if the table has all of them. They take over its
    position in the user's model. Equal calls are traced once."""
    sources = node.all_input_nodes
    values: list[Any] = [source.meta.get("val") for source in sources]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return
    among = dict(zip(sources, range(len(sources)), strict=True))
    arguments = str(torch.fx.map_arg((node.args, node.kwargs), lambda source: f"input {among[source]}"))
    key = (node.target, arguments, *((value.dtype, str(value.shape), str(value.stride())) for value in values))
    if key not in traced:
        traced[key] = _operators(node, values)
    if (operators := traced[key]) is None:
        return
    if transforms(node.target):
        note(node, TRANSFORM, True)
    (result,) = splice(node, operators, sources)
    replace(program, node, result)
    program.graph.erase_node(node)


def _expand_bag(program: ExportedProgram, node: Node) -> None:
    """Replaces an embedding bag by the rows of an embedding, reduced, if only the bags are read."""
    results = [user for user in node.users if user.users]
    if [user.args[1] for user in results] != [0]:
        return
    arguments = named_arguments(node)
    names = [name for name, value in arguments.items() if isinstance(value, Node)]
    even = _is_even(arguments["offsets"], arguments["indices"])

    def made_of(*tensors: torch.Tensor) -> torch.Tensor:
        return embedding_bags(**{**arguments, **dict(zip(names, tensors, strict=True))}, even=even)

    operators = operators_of(made_of, [arguments[name].meta["val"] for name in names], table())
    (found,) = splice(node, operators, [arguments[name] for name in names])
    replace(program, results[0], found)


def _is_even(offsets: Any, indices: Any) -> bool:
    """Whether bags are the rows of a matrix, which torch flattens to one list."""
    if not isinstance(offsets, Node) or offsets.target is not torch.ops.aten.arange.start_step:
        return False
    start, end, step = offsets.args[:3]
    count = step * offsets.meta["val"].numel()
    return bool(start == 0 and end == count == indices.meta["val"].numel())


def _operators(node: Node, values: list[torch.Tensor]) -> Graph | None:
    """The operators into which torch decomposes a call on these values. None if the table lacks one of those that
    depend on them. Also None for a view that is copied, since a later write to it would be a write to its source."""

    def made_of(*tensors: torch.Tensor) -> Any:
        known = dict(zip(node.all_input_nodes, tensors, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
        rule: Any = AS_PRODUCTS.get(node.target) or own_rule(node.target)
        found = rule(*args, **kwargs)
        return node.target(*args, **kwargs) if found is NotImplemented else found  # type: ignore[operator]

    try:
        graph = operators_of(made_of, values, table())
    except Exception:  # torch cannot trace the call alone: the whole program is decomposed
        return None
    views, varying = _views(node), set[Node]()
    for made in graph.nodes:
        if is_pure(made) and varying.isdisjoint(made.all_input_nodes):
            continue
        varying.add(made)
        calls = made.op not in ("placeholder", "output")
        if calls and (str(made.target) not in ATEN or (views and not _views(made))):
            return None
    return graph


def _views(node: Node) -> bool:
    """Whether a call returns a view of its first argument."""
    returns = node.target._schema.returns  # type: ignore[union-attr]
    return bool(returns) and returns[0].alias_info is not None
