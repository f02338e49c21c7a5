"""Unrolls loops in WGSL text whose number of turns is known.

`for (var i = 0u; i < N; i++) { ... }` with a known N becomes N blocks that begin with `const i = ...;`. The body is
unchanged, since WGSL scopes the name. Local arrays that are indexed only by `i` are then indexed by constants, so that
every compiler keeps them in registers. GPU drivers unroll most of these themselves. Mesa's lavapipe often does not, and
keeps arrays that are indexed in a loop in memory: the same matrix product runs 1.5 to 2.1 times as fast unrolled.

Where matrix units multiply, only loops that index an array of matrices are unrolled: such an array leaves registers if
anything but constants indexes it (69 TOPS instead of 480), and drivers unroll the others themselves, in less than half
the time that they take to compile all of it as text. What the others gain is small: the loop over the products of a
step 1 % of the demo's network and 2 % of ResNet-50 at batch 1 (H100), whose pipelines then take 1.7 times as long.

Other loops are unchanged: of another form, with a bound that is no constant, with `break` or `continue`, or with a body
that assigns the loop variable.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping

MOST_TURNS = 32
"""Limit of turns of a loop that is unrolled."""

_CONST = re.compile(r"^const (\w+)(?:\s*:\s*u32)? = ([^;]+);", re.MULTILINE)
_LOOP = re.compile(r"\bfor \(var (\w+) = 0u; \1 < (\d+u|[A-Z][A-Z0-9_]*); \1\+\+\) \{")
_JUMP = re.compile(r"\b(?:break|continue)\b")
_CHANGED = r"&{0}\b|\b{0}(?:\+\+|--|\s*(?:[-+*/%&|^]|<<|>>)?=(?!=))"
_NUMBER = re.compile(r"\b(\d+)u\b")
_MATRICES = re.compile(r"\bsubgroupMatrix(?:Load|Store|MultiplyAccumulate)\b")
_COMMENT = re.compile(r"//[^\n]*")

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def unroll(text: str, known: Mapping[str, int] | None = None, matrices: bool = False) -> str:
    """The text without comments, with loops of at most MOST_TURNS turns unrolled.

    `known` are integer constants that bounds may name, by default those of the text. With `matrices`, only loops that
    index an array of matrices are unrolled.
    """
    text = _COMMENT.sub("", text)
    return _unrolled(text, constants(text) if known is None else known, matrices)


def multiplies_matrices(text: str) -> bool:
    """Whether a text uses matrix units."""
    return _MATRICES.search(text) is not None


def _unrolled(text: str, known: Mapping[str, int], matrices: bool) -> str:
    done, at = [], 0
    while loop := _LOOP.search(text, at):
        name, bound = loop.groups()
        end = _end_of_block(text, loop.end())
        body = text[loop.end() : end]
        turns = _value(bound, known)
        done.append(text[at : loop.start()])
        left = matrices and not (multiplies_matrices(body) and f"[{name}]" in body)
        fixed = turns is not None and turns <= MOST_TURNS and not _JUMP.search(body)
        inner = _unrolled(body, known, matrices)
        if turns is None or not fixed or left or re.search(_CHANGED.format(name), body):
            done.append(f"{loop.group()}{inner}}}")
        else:
            done.append(" ".join(f"{{ const {name} = {turn}u;{inner}}}" for turn in range(turns)))
        at = end + 1
    return "".join([*done, text[at:]])


def _end_of_block(text: str, at: int) -> int:
    """The position of the brace that closes the block which is open at a position."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(f"a block of the WGSL is not closed: {text[at : at + 60]!r}")


def constants(text: str) -> dict[str, int]:
    """The module's non-negative integer constants, by name."""
    waiting = dict(_CONST.findall(text))
    known: dict[str, int] = {}
    while found := {name: v for name, e in waiting.items() if (v := _value(e, known)) is not None}:
        known |= found
        waiting = {name: e for name, e in waiting.items() if name not in found}
    return known


def _value(expression: str, known: Mapping[str, int]) -> int | None:
    """The value of a u32 expression of numbers, known names and + - * / %; None of any other expression."""
    try:
        return _evaluate(_parsed(expression), known)
    except (SyntaxError, LookupError, ArithmeticError):
        return None


@functools.lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.expr:
    """The tree of an expression. The same few hundred are in the modules of a network again and again."""
    return ast.parse(_NUMBER.sub(r"\1", expression).strip(), mode="eval").body


def _evaluate(node: ast.expr, known: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return known[name]
        case ast.BinOp(left=left, op=op, right=right):
            found = _OPERATORS[type(op)](_evaluate(left, known), _evaluate(right, known))
            if 0 <= found < 1 << 32:
                return found
            raise ArithmeticError
    raise LookupError
