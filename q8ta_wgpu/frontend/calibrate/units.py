"""Units of nodes that are rounded once, and what asks for their result in int8."""

from __future__ import annotations

from torch.fx import Node

from q8ta_wgpu.frontend.calibrate.masks import masks
from q8ta_wgpu.frontend.calibrate.pt2e import ANNOTATION
from q8ta_wgpu.frontend.importer.bools import is_bool
from q8ta_wgpu.frontend.importer.integers import is_integer
from q8ta_wgpu.frontend.nodes import (
    CONVERSIONS,
    adds,
    clamps,
    folds_into,
    has_channels,
    is_constant,
    is_function,
    is_kept,
    is_pair,
    is_weighted,
    joins,
    kind,
    multiplies,
    normalizes,
    scales,
    slopes_of,
    takes_result,
)
from q8ta_wgpu.ir.int8 import Arithmetic, Elementwise, Joined, Normalization, Sloped, WeightedSum


def unit_of(node: Node) -> list[Node]:
    """The nodes that are rounded as one: an operator, what its kind says joins it, clamps; behind a product of
    activations a factor, behind a function of one value others. Each but the last is read by the next alone."""
    unit, waiting = [node], list(_joined(node))
    while len(unit[-1].users) == 1:
        end, user = unit[-1], next(iter(unit[-1].users))
        if ANNOTATION in user.meta:
            break
        if (place := _place(node, end, user)) in waiting:
            waiting = waiting[waiting.index(place) + 1 :]
        elif clamps(user):
            waiting = []
        else:
            scaled = end is node and multiplies(node) and scales(user)
            maps = is_function(node) and is_function(user) and not scales_operand(user) and not masks(user)
            if not (scaled or maps or takes_result(user) or (normalizes(user) and folds_into(user, end))):
                break
        unit.append(user)
    return unit


def _joined(node: Node) -> tuple[Joined, ...]:
    """What the rounding of a node takes in."""
    int8 = kind(node)
    if isinstance(int8, WeightedSum):
        deep = node.meta["val"].dim() == 5 and has_channels(node)  # its images are moved before anything is added
        return () if multiplies(node) else tuple(what for what in int8.joined if what != "addend" or not deep)
    return int8.joined if isinstance(int8, Normalization | Sloped) or is_pair(node) else ()  # type: ignore[union-attr]


def _place(node: Node, end: Node, user: Node) -> Joined | None:
    """As what a reader of a unit's end may join its first node."""
    if normalizes(user) and not is_weighted(node):
        return "norm"
    if _is_last_term(user, end):
        return "addend"
    return "activation" if joins(user) or slopes_of(user, node) else None


def _sums(node: Node) -> bool:
    """Whether a node is a sum weighted by constants."""
    return is_weighted(node) and not multiplies(node)


def _is_last_term(node: Node, term: Node) -> bool:
    """Whether a node adds a weighted sum to what is no later one, which is computed last and takes the addend in."""
    other = adds(node, term)
    return other is not None and ANNOTATION not in node.meta and (other < term or not is_weighted(other))


def is_head(unit: list[Node]) -> bool:
    """Whether nothing asks for a unit's result in int8: what only operators that were asked to stay in float read,
    functions of one value that are made integers or compared with numbers, and a weighted sum, without more, which is
    read by nothing that int8 knows. A pixel_shuffle before the program's end, which the sum takes in, does not ask for
    it."""
    if only_kept_read(unit[-1]) or becomes_integers(unit) or _is_compared(unit):
        return True
    plain = _sums(unit[0]) and all(normalizes(part) or takes_result(part) for part in unit[1:])
    return plain and all(kind(user) is None or _ends_shuffled(user) for user in unit[-1].users)


def becomes_integers(unit: list[Node]) -> bool:
    """Whether a unit is functions of one value whose result only conversions to integers read."""
    users = unit[-1].users
    return (
        is_function(unit[0])
        and bool(users)
        and all(str(n.target) in CONVERSIONS and is_integer(n.meta.get("val")) for n in users)
    )


def _is_compared(unit: list[Node]) -> bool:
    """Whether a unit is functions of one value whose result is compared with numbers alone, as one more function."""
    users = unit[-1].users
    others = {n for user in users for n in user.all_input_nodes if n is not unit[-1]}
    numbers = all(is_constant(n) and n.meta["val"].numel() == 1 for n in others)
    maps = all(is_bool(user) and isinstance(kind(user), Elementwise | Arithmetic) for user in users)
    return is_function(unit[0]) and bool(users) and maps and numbers


def only_kept_read(node: Node) -> bool:
    """Whether all that reads a node was asked to stay in float."""
    return bool(node.users) and all(map(is_kept, node.users))


def _ends_shuffled(node: Node) -> bool:
    return str(node.target) == "aten.pixel_shuffle.default" and all(user.op == "output" for user in node.users)


def scales_operand(node: Node) -> bool:
    """Whether a node multiplies an operand of products, and of nothing else, by a number."""
    return scales(node) and bool(node.users) and all(multiplies(user) for user in node.users)
