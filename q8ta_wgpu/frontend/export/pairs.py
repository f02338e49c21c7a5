"""Complex numbers as pairs of real ones, and Fourier transforms as products with a matrix of cosines and sines.

The transform of n real numbers is a product with an n x 2n matrix, and of n pairs with a 2n x 2n one. Its columns are
the real and the imaginary parts. The angles of its entries are reduced modulo a full turn in integers, and the entries
computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from q8ta_wgpu.frontend.export.editor import call, operators_of, replace, splice
from q8ta_wgpu.frontend.nodes import is_complex

_aten = torch.ops.aten


class Pair(NamedTuple):
    """A complex tensor: its real and its imaginary part, of one shape."""

    real: Any
    imag: Any


def pairs_of_complex(program: ExportedProgram, table: Mapping[Any, Callable[..., Any]]) -> None:
    """Replaces operators on complex tensors by operators on pairs, if RULES has them.

    Args:
        program: a decomposed one.
        table: decompositions for the operators of RULES.
    """
    graph = program.graph
    parts: dict[Node, Pair] = {}
    nodes = list(graph.nodes)
    first = next(node for node in nodes if node.op != "placeholder")
    for node in filter(is_complex, graph.find_nodes(op="placeholder")):
        real = call(first, _aten.view_as_real.default, node, like=node)
        parts[node] = Pair(*(call(first, _aten.select.int, real, -1, part, like=node) for part in (0, 1)))
    kept = set(nodes)
    for node in nodes:
        complexes = [source for source in node.all_input_nodes if is_complex(source)]
        known = node.target in RULES and all(source in parts for source in complexes)
        if node.op != "call_function" or not known or not (complexes or is_complex(node)):
            continue
        arguments = torch.fx.map_arg((node.args, node.kwargs), lambda source: parts.get(source, source))
        function, sources = _call(node, arguments)
        with node.meta["val"].fake_mode:
            operators = operators_of(function, [source.meta["val"] for source in sources], table)
        made = splice(node, operators, sources)
        if is_complex(node):
            parts[node] = Pair(*made)
        else:
            replace(program, node, made[0])
        kept.remove(node)
    for node in reversed(graph.nodes):
        if node not in kept and not node.users:
            graph.erase_node(node)


def _call(node: Node, arguments: Any) -> tuple[Callable[..., Any], list[Node]]:
    """The rule of a call as a function of tensors, and the nodes of these."""
    leaves, structure = pytree.tree_flatten(arguments)

    def function(*tensors: Tensor) -> Any:
        left = iter(tensors)
        operands = [next(left) if isinstance(leaf, Node) else _split(leaf) for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(operands, structure)
        result = RULES[node.target](node.target, *args, **kwargs)
        return list(result) if isinstance(result, Pair) else result  # a tracer treats named tuples as calls

    return function, [leaf for leaf in leaves if isinstance(leaf, Node)]


def _split(value: Any) -> Any:
    """A complex number as a pair."""
    return Pair(value.real, value.imag) if isinstance(value, complex) else value


def _each(target: Any, *args: Any, **kwargs: Any) -> Pair:
    """Applies an operator to both parts."""

    def apply(which: int) -> Any:
        arguments = pytree.tree_map(lambda x: x[which] if isinstance(x, Pair) else x, (args, kwargs), is_leaf=_is_pair)
        return target(*arguments[0], **arguments[1])

    return Pair(apply(0), apply(1))


def _is_pair(value: Any) -> bool:
    return isinstance(value, Pair)


def _padded(target: Any, x: Pair, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Pair:
    return Pair(target(x.real, pad, mode, value), target(x.imag, pad, mode))


def _sum(target: Any, x: Any, y: Any, *, alpha: float = 1) -> Pair:
    if isinstance(x, Pair) and isinstance(y, Pair):
        return _each(target, x, y, alpha=alpha)
    if isinstance(x, Pair):
        return Pair(target(x.real, y, alpha=alpha), x.imag)
    return Pair(target(x, y.real, alpha=alpha), y.imag * (alpha if target is _aten.add.Tensor else -alpha))


def _product(_: Any, x: Any, y: Any) -> Pair:
    if not isinstance(x, Pair) or not isinstance(y, Pair):
        pair, factor = (x, y) if isinstance(x, Pair) else (y, x)
        return Pair(pair.real * factor, pair.imag * factor)
    return Pair(x.real * y.real - x.imag * y.imag, x.real * y.imag + x.imag * y.real)


def _matrix_product(target: Any, x: Pair, y: Pair) -> Pair:
    """One product for both parts: (real | imag) of the rows with (real | imag) over (-imag | real) of the columns."""
    columns = torch.cat([torch.cat(y, -1), torch.cat([-y.imag, y.real], -1)], -2)
    return Pair(*target(torch.cat(x, -1), columns).split(y.real.shape[-1], -1))


def _filled(target: Any, size: Sequence[int], value: Any, **_: Any) -> Pair:
    return Pair(*(torch.full(size, part, dtype=torch.float32) for part in (value.real, value.imag)))


def _quotient(_: Any, x: Any, y: Any) -> Pair:
    if not isinstance(y, Pair):
        return Pair(x.real / y, x.imag / y)
    size = y.real * y.real + y.imag * y.imag
    turned = _product(_, x, Pair(y.real, -y.imag))
    return Pair(turned.real / size, turned.imag / size)


def _whole_turns(inputs: int, outputs: int, size: int) -> Tensor:
    """The angle by which each output rotates each input, in float64."""
    steps = torch.arange(inputs).unsqueeze(1) * torch.arange(outputs) % size
    return steps.double() * (2 * math.pi / size)


def _scaled(matrix: Tensor, size: int, normalization: int) -> Tensor:
    """Multiplied by 1, 1 / sqrt(size) or 1 / size, in float32."""
    factor: float = size ** (-normalization / 2)
    return (matrix * factor).float()


def _transformed(x: Any, dim: int, outputs: int, normalization: int, forward: bool) -> Pair:
    """A transform along one dimension, of real or of complex numbers."""
    parts = x if isinstance(x, Pair) else [x]
    size = parts[0].shape[dim]
    turns = _whole_turns(size, outputs, size)
    cosine, sine = turns.cos(), turns.sin() * (-1 if forward else 1)
    rows = [torch.cat([cosine, sine], 1), torch.cat([-sine, cosine], 1)][: len(parts)]
    numbers = [part.movedim(dim, -1) for part in parts]
    whole = torch.cat(numbers, -1) if len(numbers) > 1 else numbers[0]
    real, imag = (whole @ _scaled(torch.cat(rows), size, normalization)).split(outputs, -1)
    return Pair(real.movedim(-1, dim), imag.movedim(-1, dim))


def _from_real(_: Any, x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Pair:
    size = x.shape[dims[-1]]
    result = _transformed(x, dims[-1], size // 2 + 1 if onesided else size, normalization, True)
    return _from_complex(_, result, dims[:-1], normalization, True)


def _from_complex(_: Any, x: Pair, dims: Sequence[int], normalization: int, forward: bool) -> Pair:
    for dim in dims:
        x = _transformed(x, dim, x.real.shape[dim], normalization, forward)
    return x


def _to_real(_: Any, x: Pair, dims: Sequence[int], normalization: int, size: int) -> Tensor:
    """The inverse transform to real numbers. Inputs other than the first, and other than the last if the size is even,
    count twice, since their complex conjugates are left out."""
    x = _from_complex(_, x, dims[:-1], normalization, False)
    dim, inputs = dims[-1], size // 2 + 1
    turns = _whole_turns(inputs, size, size)
    indices = torch.arange(inputs).unsqueeze(1)
    count = torch.where((indices == 0) | (2 * indices == size), 1.0, 2.0).double()
    matrix = _scaled(torch.cat([count * turns.cos(), -count * turns.sin()]), size, normalization)
    parts = torch.cat([part.movedim(dim, -1).narrow(-1, 0, inputs) for part in x], -1)
    result: Tensor = (parts @ matrix).movedim(-1, dim)
    return result


_MOVES = (
    *(
        _aten.reshape.default,
        _aten.transpose.int,
        _aten.permute.default,
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.slice.Tensor,
    ),
    *(_aten.select.int, _aten.expand.default, _aten.clone.default, _aten.alias.default, _aten.cat.default),
    *(_aten.stack.default, _aten.neg.default, _aten.sum.dim_IntList, _aten.mean.dim, _aten.roll.default),
    *(_aten.flip.default, _aten.index.Tensor, _aten.index_select.default, _aten.t.default, _aten.unfold.default),
)

RULES: Mapping[Any, Callable[..., Any]] = {
    **dict.fromkeys(_MOVES, _each),
    # The memory layout of a Pair differs from that of a complex tensor.
    **dict.fromkeys((_aten.view.default, _aten._unsafe_view.default), lambda _, *args: _each(torch.reshape, *args)),
    **dict.fromkeys((_aten.mm.default, _aten.bmm.default, _aten.matmul.default), _matrix_product),
    **dict.fromkeys((_aten.full.default,), _filled),
    _aten.add.Tensor: _sum,
    _aten.sub.Tensor: _sum,
    _aten.rsub.Scalar: lambda _, x, y, alpha=1: _sum(_aten.sub.Tensor, y, x, alpha=alpha),
    _aten.mul.Tensor: _product,
    _aten.div.Tensor: _quotient,
    _aten.reciprocal.default: lambda _, x: _quotient(_, 1.0, x),
    _aten.pad.default: _padded,
    _aten._fft_r2c.default: _from_real,
    _aten._fft_c2c.default: _from_complex,
    _aten._fft_c2r.default: _to_real,
    _aten.view_as_real.default: lambda _, x: torch.stack(x, -1),
    _aten.view_as_complex.default: lambda _, x: Pair(x[..., 0], x[..., 1]),
    _aten.complex.default: lambda _, real, imag: Pair(real, imag),
    _aten._to_copy.default: lambda _, x, **__: x if isinstance(x, Pair) else Pair(x, torch.zeros_like(x)),
    _aten.polar.default: lambda _, size, angle: Pair(size * angle.cos(), size * angle.sin()),
    _aten.abs.default: lambda _, x: torch.hypot(*x),
    _aten.angle.default: lambda _, x: torch.atan2(x.imag, x.real),
    _aten._conj.default: lambda _, x: Pair(x.real, -x.imag),
    _aten.conj_physical.default: lambda _, x: Pair(x.real, -x.imag),
}
"""Functions of pairs for operators with complex operands or results. The first argument is the operator."""
