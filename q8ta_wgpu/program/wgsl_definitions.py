"""Scans WGSL for the definitions of a module, and for the names at module scope that each of them uses.

It knows enough of the language to distinguish such names from members, local names and attributes. It knows no types.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from q8ta_wgpu.errors import LinkError

_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|\d[\w.]*|[^\s\w]", re.DOTALL)
_STRUCTURE = re.compile(r"//[^\n]*|/\*.*?\*/|[(){}\[\];]", re.DOTALL)
_BLANK = re.compile(r"(?:[\s;]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_USES = re.compile(r"^// Uses (\w+(?:, \w+)*)\.$", re.MULTILINE)
DIRECTIVES = ("diagnostic(", "enable ")
"""Beginnings of lines that must come first in a module."""

_DECLARATIONS = frozenset(("fn", "struct", "const", "override", "var", "alias"))
_LOCAL = frozenset(("let", "var", "const"))
_WITH_EXPRESSIONS = frozenset(("workgroup_size", "binding", "group", "size", "align", "id"))
"""Attributes whose arguments are expressions. Arguments of others (builtin, interpolate ...) are keywords."""

_WORDS = """
alias break case const const_assert continue continuing default diagnostic discard else enable false fn for if let
loop override requires return struct switch true var while _ bool f16 f32 i32 u32 array atomic ptr vec2 vec3 vec4
mat2x2 mat2x3 mat2x4 mat3x2 mat3x3 mat3x4 mat4x2 mat4x3 mat4x4 vec2f vec2h vec2i vec2u vec3f vec3h vec3i vec3u vec4f
vec4h vec4i vec4u function private workgroup uniform storage read write read_write bitcast all any select arrayLength
abs acos acosh asin asinh atan atanh atan2 ceil clamp cos cosh countLeadingZeros countOneBits countTrailingZeros cross
degrees determinant distance dot dot4U8Packed dot4I8Packed exp exp2 extractBits faceForward firstLeadingBit
firstTrailingBit floor fma fract frexp insertBits inverseSqrt ldexp length log log2 max min mix modf normalize pow
quantizeToF16 radians reflect refract reverseBits round saturate sign sin sinh smoothstep sqrt step tan tanh transpose
trunc atomicLoad atomicStore atomicAdd atomicSub atomicMax atomicMin atomicAnd atomicOr atomicXor atomicExchange
atomicCompareExchangeWeak pack4x8snorm pack4x8unorm pack4xI8 pack4xU8 pack4xI8Clamp pack4xU8Clamp pack2x16snorm
pack2x16unorm pack2x16float unpack4x8snorm unpack4x8unorm unpack4xI8 unpack4xU8 unpack2x16snorm unpack2x16unorm
unpack2x16float storageBarrier workgroupBarrier workgroupUniformLoad
texture_2d sampler textureLoad textureSampleLevel
subgroup_matrix_left subgroup_matrix_right subgroup_matrix_result i8 row_major col_major subgroupMatrixLoad
subgroupMatrixStore subgroupMatrixMultiplyAccumulate subgroupShuffle
"""
_LANGUAGE = frozenset(_WORDS.split())
"""WGSL's own words: keywords, types, address spaces and functions."""


@dataclass(frozen=True)
class Definition:
    """One declaration at module scope.

    Attributes:
        name: the name that it defines.
        kind: its keyword.
        file, line: its place; line 0 for generated definitions.
        text: the declaration with its attributes.
    """

    name: str
    kind: str
    file: str
    line: int
    text: str

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names at module scope that it uses, in the order of first use. Computed on demand, as few definitions need
        it."""
        tokens = _tokens(self.text)
        return tuple(dict.fromkeys(_references(tokens, *_head(tokens))))

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """The fields of `params` that it reads."""
        tokens = _tokens(self.text)
        read = (tokens[i + 2] for i, word in enumerate(tokens[:-2]) if word == "params" and tokens[i + 1] == ".")
        return tuple(dict.fromkeys(read))

    @property
    def place(self) -> str:
        """file.wgsl:line, or a description of what generated it."""
        return f"{self.file}.wgsl:{self.line}" if self.line else self.file


def scan(text: str, file: str = "") -> Iterator[Definition]:
    """The definitions of a module in order, without directives. Raises LinkError for a declaration of another kind."""
    at = 0
    while (start := _BLANK.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        depth = 0
        for match in _STRUCTURE.finditer(text, start):
            token = match.group()
            depth += (token in "({[") - (token in ")}]")
            if depth == 0 and token in ";}":
                break
        else:
            raise LinkError(f"{file}.wgsl: a declaration does not end: {text[start : start + 60]!r}")
        at = match.end()
        if not (token == ";" and text.startswith(DIRECTIVES, start)):
            yield _definition(text[start:at], file, text.count("\n", 0, start) + 1)


def _tokens(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text) if not token.startswith(("//", "/*"))]


def _definition(text: str, file: str, line: int) -> Definition:
    tokens = _tokens(text[: text.find("{") + 1] or text)
    try:
        kind, name = _head(tokens)
    except ValueError:
        raise LinkError(f"{file}.wgsl:{line}: a declaration of no known kind: {text[:60]!r}") from None
    return Definition(tokens[name], tokens[kind], file, line, text)


def _head(tokens: Sequence[str]) -> tuple[int, int]:
    """Indices of a declaration's keyword and name among its tokens. Raises ValueError if there are none."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token in "({[") - (token in ")}]")
        if depth == 0 and token in _DECLARATIONS and (at == 0 or tokens[at - 1] != "@"):
            break
    else:
        raise ValueError
    return at, tokens.index(">", at + 1) + 1 if tokens[at + 1] == "<" else at + 1  # var<storage, read>


def _references(tokens: Sequence[str], kind: int, name: int) -> Iterator[str]:
    """Names that a declaration uses, except its own name, members, and local names in scope."""
    scopes: list[tuple[set[str], bool]] = [(set(), False)]  # local names, and whether the scope is a loop's header
    waiting: list[str] = []  # local names that are in scope after the present statement
    in_struct, in_body, at = tokens[kind] == "struct", False, 0
    while at < len(tokens):
        token, at = tokens[at], at + 1
        if token == "@":
            at = at + 1 if tokens[at] in _WITH_EXPRESSIONS else _after_attribute(tokens, at)
        elif token == "{":
            in_body = True
            scopes.append((set(), False))
        elif token == "}":
            scopes.pop()
            if scopes[-1][1]:
                scopes.pop()
        elif token == ";":
            scopes[-1][0].update(waiting)
            waiting.clear()
        elif token == "for":
            scopes.append((set(), True))
        elif token in _LOCAL and in_body:
            at = tokens.index(">", at) + 1 if tokens[at] == "<" else at
            waiting.append(tokens[at])
            at += 1
        elif not _NAME.match(token) or token in _LANGUAGE or at - 1 == name or tokens[at - 2] == ".":
            continue
        elif tokens[at] == ":" and not in_body:
            scopes[0][0].add(token)  # a parameter
        elif tokens[at] == ":" and in_struct:
            continue
        elif not any(token in names for names, _ in scopes):
            yield token


def _after_attribute(tokens: Sequence[str], at: int) -> int:
    return tokens.index(")", at) + 1 if tokens[at + 1] == "(" else at + 1


@functools.cache
def _read() -> Mapping[str, tuple[str, str]]:
    """Folder and text of every WGSL file of the kernels, by name without the suffix."""
    found: dict[str, tuple[str, str]] = {}
    for folder in importlib.resources.files("q8ta_wgpu.kernels").iterdir():
        for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
            if file.name.endswith(".wgsl"):
                stem = file.name.removesuffix(".wgsl")
                if stem in found:
                    raise LinkError(f"two files are called {file.name}")
                found[stem] = folder.name, file.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


@functools.cache
def files() -> Mapping[str, str]:
    """The text of every WGSL file of the kernels, by name without the suffix."""
    return {stem: text for stem, (_, text) in _read().items()}


@functools.cache
def folders() -> Mapping[str, str]:
    """The folder of every WGSL file of the kernels, by the file's name without the suffix."""
    return {stem: folder for stem, (folder, _) in _read().items()}


@functools.cache
def uses() -> Mapping[str, tuple[str, ...]]:
    """The files whose definitions a file uses, by its line `// Uses gemm, halves.`. Raises LinkError for a file that
    does not exist."""
    found = {
        stem: tuple(match[1].split(", ")) if (match := _USES.search(text)) else () for stem, text in files().items()
    }
    for stem, used in found.items():
        if unknown := [name for name in used if name not in found]:
            raise LinkError(f"{stem}.wgsl uses {unknown[0]}.wgsl, which does not exist")
    return found


@functools.cache
def definitions() -> Mapping[str, tuple[Definition, ...]]:
    """All definitions of all files, by name."""
    found: dict[str, tuple[Definition, ...]] = {}
    for stem, text in files().items():
        for definition in scan(text, stem):
            found[definition.name] = (*found.get(definition.name, ()), definition)
    return found
