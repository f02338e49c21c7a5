"""Changed model files: random bytes, or other JSON and tensors under a right checksum."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from safetensors.numpy import load as tensors_of

from q8ta_wgpu.ir.graph import Array
from testbed.modelfiles import sealed

NUMBERS = (0, -1, 1, 2, 3, 7, 64, 127, 128, 255, 2**16, 2**24, 2**31 - 1, 2**31, 2**32, 2**63, 10**30, 0.5, 1e-30, 1e30)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "\x1b[31m",
    "q8ta_add",
    "é" * 300,
    [],
    [1],
    [[1]],
    {},
    {"dict": {"y": 0}},
)


def mutated(files: list[bytes], number: int) -> bytes:
    """Input `number`."""
    drawn = random.Random(number)
    data = files[number % len(files)] if number % 4 else files[0]
    return other_bytes(data, drawn) if drawn.random() < 0.25 else _edited(data, drawn)


def other_bytes(data: bytes, drawn: random.Random) -> bytes:
    """A file with some of its bytes changed, removed, inserted or copied."""
    changed = bytearray(data)
    for _ in range(drawn.randint(1, 6)):
        at = drawn.randrange(len(changed) + 1)
        new = drawn.randbytes(drawn.randint(1, 9))
        match drawn.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << drawn.randrange(8)
            case 1:
                changed[at : at + len(new)] = new
            case 2:
                del changed[at : at + drawn.randint(1, 300)]
            case 3:
                changed[at:at] = new
            case _:
                changed[at:at] = changed[at : at + drawn.randint(1, 300)]
    return bytes(changed)


def _edited(data: bytes, drawn: random.Random) -> bytes:
    """Replaces, removes, copies or swaps entries of the JSON, and changes bytes and shapes of tensors."""
    (length,) = struct.unpack("<Q", data[:8])
    document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["q8ta"])
    del document["sha256"]
    tensors = {name: array.copy() for name, array in tensors_of(data).items()}
    for _ in range(drawn.choice((1, 1, 1, 2, 4))):
        if tensors and drawn.random() < 0.4:
            _edit_tensor(tensors, drawn)
        else:
            edit_member(document, drawn)
    text = json.dumps(document, separators=(",", ":"), allow_nan=drawn.random() < 0.1)
    return sealed(text, {name: np.ascontiguousarray(array) for name, array in tensors.items()})


def _edit_tensor(tensors: dict[str, Array], drawn: random.Random) -> None:
    name = drawn.choice(sorted(tensors))
    array = tensors[name]
    match drawn.randrange(8):
        case 0:
            tensors[name] = array.reshape(-1)
        case 1:
            del tensors[name]
        case 2:
            with np.errstate(invalid="ignore"):
                tensors[name] = array.astype(drawn.choice((np.float32, np.int32, np.int8, np.float64, np.uint8)))
        case _:
            raw = bytearray(array.tobytes())
            for _ in range(drawn.randint(1, 8)):
                if raw:
                    raw[drawn.randrange(len(raw))] = drawn.randrange(256)
            tensors[name] = np.frombuffer(bytes(raw), array.dtype).reshape(array.shape)


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) for every entry of a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(items):
        yield value, key
        yield from _entries(member)


def edit_member(document: dict[str, Any], drawn: random.Random) -> None:
    """Replaces, removes, copies or swaps an entry of a JSON document."""
    entries = list(_entries(document))
    if drawn.random() < 0.5:  # often a change that may still be valid
        entries = [(owner, key) for owner, key in entries if isinstance(owner[key], (int, float, list))]
    if not entries:
        return
    owner, key = drawn.choice(entries)
    other, other_key = drawn.choice(entries)
    copied, moved = copy.deepcopy(other[other_key]), copy.deepcopy(owner[key])
    match drawn.randrange(6):
        case 0:
            del owner[key]
        case 1:
            owner[key] = copied
        case 2:
            other[other_key], owner[key] = moved, copied
        case 3 if isinstance(owner, list):
            owner.insert(drawn.randrange(len(owner) + 1), copied)
        case 4 if isinstance(owner[key], (int, float)) and not isinstance(owner[key], bool):
            owner[key] += drawn.choice((-1, 1, 2, 255))
        case _:
            owner[key] = copy.deepcopy(drawn.choice((*NUMBERS, *(-n for n in NUMBERS), *OTHERS)))
