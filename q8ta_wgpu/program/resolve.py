"""Resolves the names in a shader: collects the definitions that its `main` uses, directly or not, from all files.

A kernel names the file of its `main`. If several files define a name, the kernel also names the file to take it from,
or binds the name by `name=meaning`. All other names are found in an index (wgsl_definitions.py). A module contains only
definitions that are used, each below a comment with its file and line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from q8ta_wgpu.errors import LinkError
from q8ta_wgpu.program.layout_functions import layout_functions
from q8ta_wgpu.program.unroll import constants, unroll
from q8ta_wgpu.program.wgsl_definitions import DIRECTIVES, Definition, definitions, files, scan


def complete(text: str) -> str:
    """WGSL text, followed by the definitions that it uses."""
    own = {definition.name: definition for definition in scan(text)}
    reached = _reached(own.values(), own, ())
    return "\n".join((text, *_sources(d for d in reached if d.name not in own)))


@functools.lru_cache(maxsize=4096)
def module(chosen: tuple[str, ...], generated: tuple[str, ...], unrolled: bool) -> str:
    """The WGSL module of a `main` and all definitions that it uses.

    Args:
        chosen: files that are preferred where several define a name, `main` included, and bindings `name=meaning`.
        generated: declarations of the call.
        unrolled: whether loops of a known number of turns are unrolled.

    Equal calls are answered from a cache.
    """
    own = {definition.name: definition for line in generated for definition in _scanned(line)}
    (main,) = (_bound(d, chosen) for d in definitions()["main"] if d.file in chosen)
    bound = [d for d in own.values() if d.kind == "var" or d.name == "Params"]
    reached = _reached((*bound, main), own, chosen)
    members = set(re.findall(r"(\w+):", own["Params"].text))
    for definition in reached:
        if missing := [name for name in definition.fields if name not in members]:
            raise LinkError(f"{definition.place} reads params.{missing[0]}, which its `params` does not give")
    if unrolled:
        known = constants("\n".join(d.text for d in reached))
        reached = [replace(d, text=unroll(d.text, known)) for d in reached]
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
    return {**definitions(), **{d.name: (replace(d, file="table of layouts", line=0),) for d in layouts}}


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
    """The definition of a name that another definition uses: of the same file, the only one, or of a chosen file."""
    candidates = _index().get(name, ())
    for found in (
        [d for d in candidates if d.file == user.file],
        candidates,
        [d for d in candidates if d.file in chosen],
    ):
        if len(found) == 1:
            return found[0]
    places = ", ".join(d.place for d in candidates) or "no file"
    raise LinkError(
        f"{user.place or user.name} uses {name}, which {places} defines: exactly one of these must be among "
        f"{', '.join(chosen)}"
    )
