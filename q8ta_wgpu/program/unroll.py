"""Unrolls the loops of WGSL text whose number of turns is known.

`for (var i = 0u; i < N; i++) { ... }` with a known N becomes N blocks that begin with `const i = ...;`. WGSL scopes the
name, so the body stays as it is. Local arrays indexed by it alone are then indexed by constants, which every compiler
keeps in registers. GPU drivers unroll such loops themselves. Mesa's lavapipe does not unroll many of them, and keeps
arrays indexed in a loop in memory: the same matrix product runs 1.5 to 2.1 times as fast unrolled.

Anything else (another form of loop, a bound that is no constant, `break` or `continue`, a loop variable that the body
sets) stays as it is.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping

MOST_TURNS = 32
"""Most turns of a loop that is unrolled."""

_CONST = re.compile(r"^const (\w+)(?:\s*:\s*u32)? = ([^;]+);", re.MULTILINE)
_LOOP = re.compile(r"\bfor \(var (\w+) = 0u; \1 < (\d+u|[A-Z][A-Z0-9_]*); \1\+\+\) \{")
_JUMP = re.compile(r"\b(?:break|continue)\b")
_CHANGED = r"&{0}\b|\b{0}(?:\+\+|--|\s*(?:[-+*/%&|^]|<<|>>)?=(?!=))"
_NUMBER = re.compile(r"\b(\d+)u\b")
_COMMENT = re.compile(r"//[^\n]*")

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def unroll(text: str, known: Mapping[str, int] | None = None) -> str:
    """The text without comments, with its loops of a known number of turns, at most MOST_TURNS, unrolled.

    `known` are constants it may use, by default those of the text.
    """
    text = _COMMENT.sub("", text)
    return _written_out(text, constants(text) if known is None else known)


def _written_out(text: str, known: Mapping[str, int]) -> str:
    done, at = [], 0
    while loop := _LOOP.search(text, at):
        name, bound = loop.groups()
        end = _end_of_block(text, loop.end())
        body = text[loop.end() : end]
        turns = _value(bound, known)
        done.append(text[at : loop.start()])
        if turns is None or turns > MOST_TURNS or _JUMP.search(body) or re.search(_CHANGED.format(name), body):
            done.append(f"{loop.group()}{_written_out(body, known)}}}")
        else:
            inner = _written_out(body, known)
            done.append(" ".join(f"{{ const {name} = {turn}u;{inner}}}" for turn in range(turns)))
        at = end + 1
    return "".join([*done, text[at:]])


def _end_of_block(text: str, at: int) -> int:
    """The end of the block that is open at a position."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    raise ValueError(f"a block of the WGSL is not closed: {text[at : at + 60]!r}")


def constants(text: str) -> dict[str, int]:
    """The module's integer constants of at least 0 by name, in their order."""
    waiting = dict(_CONST.findall(text))
    known: dict[str, int] = {}
    while found := {name: v for name, e in waiting.items() if (v := _value(e, known)) is not None}:
        known |= found
        waiting = {name: e for name, e in waiting.items() if name not in found}
    return known


def _value(expression: str, known: Mapping[str, int]) -> int | None:
    """The value of a u32 expression; None where it is not understood."""
    try:
        return _evaluate(ast.parse(_NUMBER.sub(r"\1", expression).strip(), mode="eval").body, known)
    except (SyntaxError, LookupError, ArithmeticError):
        return None


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
