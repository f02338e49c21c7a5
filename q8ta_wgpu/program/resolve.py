"""Resolves the names in a shader: collects the definitions that its `main` uses, directly or not, from all files.

A definition uses names of its own file, of the files that its own file says it uses (`// Uses gemm, halves.`), of the
files that the kernel names, and of the folder `lib`. Nothing else is linked: a name that a kernel forgets is an error,
also where a distant file defines it. `name=meaning` binds a name to another one. A module contains only definitions
that are used, each below a comment with its file and line. They are grouped by file, in the order of first use: drivers
are not indifferent to it. In the order of reading an H100's matrix units computed 3,900 of 4,480 bytes of an attention
with a mask wrong. `in_order_of_reading` is for people.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from q8ta_wgpu.errors import LinkError
from q8ta_wgpu.program.layout_functions import layout_functions
from q8ta_wgpu.program.unroll import constants, multiplies_matrices, unroll
from q8ta_wgpu.program.wgsl_definitions import DIRECTIVES, Definition, definitions, files, folders, scan, uses

_LAYOUTS = "table of layouts"


def complete(text: str, *chosen: str) -> str:
    """WGSL text, followed by the definitions of these files and of `lib` that it uses."""
    own = {definition.name: definition for definition in scan(text)}
    reached = _reached(own.values(), own, chosen)
    return "\n".join((text, *_sources(d for d in reached if d.name not in own)))


@functools.lru_cache(maxsize=4096)
def module(chosen: tuple[str, ...], generated: tuple[str, ...], unrolled: bool) -> str:
    """The WGSL module of a `main` and all definitions that it uses.

    Args:
        chosen: the files that the kernel names, that of its `main` included, and bindings `name=meaning`.
        generated: declarations of the call.
        unrolled: whether loops of a known number of turns are unrolled.

    Equal calls are answered from a cache.
    """
    own = {definition.name: _bound(definition, chosen) for line in generated for definition in _scanned(line)}
    (main,) = (_bound(d, chosen) for d in definitions()["main"] if d.file in chosen)
    bound = [d for d in own.values() if d.kind == "var" or d.name == "Params"]
    reached = _reached((*bound, main), own, chosen)
    members = set(re.findall(r"(\w+):", own["Params"].text))
    for definition in reached:
        if missing := [name for name in definition.fields if name not in members]:
            raise LinkError(f"{definition.place} reads params.{missing[0]}, which its `params` does not give")
    if unrolled:
        known = constants("\n".join(d.text for d in reached))
        matrices = any(multiplies_matrices(d.text) for d in reached)
        reached = [replace(d, text=unroll(d.text, known, matrices)) for d in reached]
    used = dict.fromkeys(d.file for d in reached if d.line and d.file)
    directives = [line for file in used for line in files()[file].splitlines() if line.startswith(DIRECTIVES)]
    return "\n".join((f"// {' '.join(used)}", *directives, *_sources(reached)))


def _sources(reached: Iterable[Definition]) -> Iterator[str]:
    for definition in reached:
        yield f"// {definition.place}\n{definition.text}" if definition.file else definition.text


@functools.lru_cache(maxsize=4096)
def _scanned(text: str) -> tuple[Definition, ...]:
    return tuple(scan(text))


@functools.cache
def _index() -> Mapping[str, tuple[Definition, ...]]:
    """All definitions of all files and the functions of layouts, by name."""
    layouts = (d for text in layout_functions() for d in scan(text))
    return {**definitions(), **{d.name: (replace(d, file=_LAYOUTS, line=0),) for d in layouts}}


@functools.cache
def _library() -> frozenset[str]:
    """The files whose definitions every file may use."""
    return frozenset({_LAYOUTS, *(file for file, folder in folders().items() if folder == "lib")})


def _reached(roots: Iterable[Definition], own: Mapping[str, Definition], chosen: tuple[str, ...]) -> list[Definition]:
    """The roots and all definitions that they use, directly or not. They are grouped by file in the order of first use,
    and sorted by line within a file."""
    found: dict[str, Definition] = {}
    waiting = list(roots)
    ranks: dict[str, int] = {}
    for definition in waiting:  # the loop appends to it
        if (other := found.setdefault(definition.name, definition)) is not definition:
            raise LinkError(f"{definition.name} would be defined twice, by {other.place} and by {definition.place}")
        ranks.setdefault(definition.file, len(ranks))
        for name in definition.names:
            used = own[name] if name in own else _bound(_resolved(name, definition, chosen), chosen)
            if found.get(name) is not used:
                waiting.append(used)
    return sorted(found.values(), key=lambda d: (ranks[d.file], d.line))


_PLACE = re.compile(rf"// (\w+\.wgsl:\d+|{_LAYOUTS})")
"""The comment above a definition that a file has."""


def in_order_of_reading(text: str) -> str:
    """A module in the order in which it is read: what the linker declared for the call, then `main`, then what each
    function calls, depth first. Types, constants and variables stand above what uses them."""
    lines, definitions = text.splitlines(), {d.name: d for d in scan(text)}
    places = {d.name: line for d in definitions.values() if _PLACE.fullmatch(line := lines[d.line - 2])}
    found: dict[str, None] = {}

    def read(name: str) -> None:
        if name in found:
            return
        used = [each for each in definitions[name].names if each in definitions]
        for each in used:
            if definitions[each].kind != "fn":
                read(each)
        found[name] = None
        for each in used:
            if definitions[each].kind == "fn":
                read(each)

    for name in ("main", *definitions):
        read(name)
    ordered = sorted(found, key=lambda name: name in places)
    head = itertools.takewhile(lambda line: line.startswith(("// ", *DIRECTIVES)) and not _PLACE.fullmatch(line), lines)
    blocks = (
        f"{places[name]}\n{definitions[name].text}" if name in places else definitions[name].text for name in ordered
    )
    return "\n".join((*head, *blocks))


@functools.lru_cache(maxsize=4096)
def _bound(definition: Definition, chosen: tuple[str, ...]) -> Definition:
    """A definition with names replaced that are bound by `name=meaning`."""
    meanings = dict(choice.split("=", 1) for choice in chosen if "=" in choice)
    used = [name for name in definition.names if name in meanings]
    if not used:
        return definition
    text = re.sub(rf"(?<![.@\w])({'|'.join(used)})\b", lambda match: meanings[match[1]], definition.text)
    (found,) = scan(text, definition.file)
    return replace(found, line=definition.line)


def _resolved(name: str, user: Definition, chosen: Sequence[str]) -> Definition:
    """The definition of a name that another definition uses: of its own file, of one that this file uses, of one that
    the kernel names, or of the library. Raises LinkError where the first of these that has any has several."""
    candidates, used = _index().get(name, ()), uses().get(user.file, ())
    for among in ((user.file,), used, chosen, _library()):
        if found := [d for d in candidates if d.file in among]:
            break
    if len(found) == 1:
        return found[0]
    places = ", ".join(d.place for d in candidates) or "no file"
    named = ", ".join(dict.fromkeys((*used, *(stem for stem in chosen if "=" not in stem)))) or "none"
    raise LinkError(
        f"{user.place or user.name} uses {name}, which {places} defines: exactly one of these must be in lib, used by "
        f"{user.file or 'the text'}, or named by the kernel ({named})"
    )
