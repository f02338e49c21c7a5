"""Resolves the names of a shader: which definitions of all files its `main` reaches.

A kernel names the file of its `main`. Where several files define a name, it also names the file whose definition
counts, or binds the name by `name=meaning`. Other names are found in an index (q8ta_wgpu/program/wgsl.py). Only what is
reached is written, each definition below a comment with its file and line.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from q8ta_wgpu.errors import LinkError
from q8ta_wgpu.program.layout_functions import layout_functions
from q8ta_wgpu.program.unroll import constants, unroll
from q8ta_wgpu.program.wgsl import DIRECTIVES, Definition, definitions, files, scan


def complete(text: str) -> str:
    """WGSL text of the caller with the definitions it refers to."""
    given = {definition.name: definition for definition in scan(text)}
    reached = _reached(given.values(), given, ())
    return "\n".join((text, *_sources(d for d in reached if d.name not in given)))


@functools.lru_cache(maxsize=4096)
def module(chosen: tuple[str, ...], given: tuple[str, ...], written_out: bool) -> str:
    """The shader with the `main` of a chosen file and the given definitions. Equal calls are answered from a cache.

    With `written_out`, loops of a known number of turns are unrolled.
    """
    own = {definition.name: definition for line in given for definition in _scanned(line)}
    (main,) = (_bound(d, chosen) for d in definitions()["main"] if d.file in chosen)
    bound = [d for d in own.values() if d.kind == "var" or d.name == "Params"]
    reached = _reached((*bound, main), own, chosen)
    members = set(re.findall(r"(\w+):", own["Params"].text))
    for definition in reached:
        if missing := [name for name in definition.fields if name not in members]:
            raise LinkError(f"{definition.place} reads params.{missing[0]}, which its `params` does not give")
    if written_out:
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
    """Definitions of all files and the functions of layouts, by name."""
    layouts = (d for text in layout_functions() for d in scan(text))
    return {**definitions(), **{d.name: (replace(d, file="table of layouts", line=0),) for d in layouts}}


def _reached(roots: Iterable[Definition], own: Mapping[str, Definition], chosen: tuple[str, ...]) -> list[Definition]:
    """The roots and all definitions they refer to, grouped by file in its order, the first root's file first."""
    found: dict[str, Definition] = {}
    waiting = list(roots)
    ranks: dict[str, int] = {}
    for definition in waiting:  # the loop appends to it
        if (other := found.setdefault(definition.name, definition)) is not definition:
            raise LinkError(f"{definition.name} would be defined twice, by {other.place} and by {definition.place}")
        ranks.setdefault(definition.file, len(ranks))
        for name in definition.names:
            wanted = own[name] if name in own else _bound(_resolved(name, definition, chosen), chosen)
            if found.get(name) is not wanted:
                waiting.append(wanted)
    return sorted(found.values(), key=lambda d: (ranks[d.file], d.line))


@functools.lru_cache(maxsize=4096)
def _bound(definition: Definition, chosen: tuple[str, ...]) -> Definition:
    """A definition in which names bound by `name=meaning` are replaced."""
    meanings = dict(choice.split("=", 1) for choice in chosen if "=" in choice)
    used = [name for name in definition.names if name in meanings]
    if not used:
        return definition
    text = re.sub(rf"(?<![.@\w])({'|'.join(used)})\b", lambda match: meanings[match[1]], definition.text)
    (found,) = scan(text, definition.file)
    return replace(found, line=definition.line)


def _resolved(name: str, user: Definition, chosen: Sequence[str]) -> Definition:
    """The definition that a name means where it is used: the file's own, the only one, or that of a chosen file."""
    candidates = _index().get(name, ())
    for choice in (
        [d for d in candidates if d.file == user.file],
        candidates,
        [d for d in candidates if d.file in chosen],
    ):
        if len(choice) == 1:
            return choice[0]
    places = ", ".join(d.place for d in candidates) or "no file"
    raise LinkError(
        f"{user.place or user.name} uses {name}, which {places} defines, and of {', '.join(chosen)} not one"
    )
