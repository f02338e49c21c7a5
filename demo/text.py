"""Text that every machine with Python has, the standard library's own source, and its tokens."""

from __future__ import annotations

import functools
import itertools
import re
import sysconfig
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

PACKAGES = ("asyncio", "collections", "concurrent", "email", "html", "http", "importlib", "json", "logging", "unittest")
HELD_OUT = ("argparse.py", "bisect.py", "heapq.py", "shlex.py", "statistics.py", "textwrap.py", "json/decoder.py")
"""Files that the decoder never trained on."""
CALIBRATION = ("contextlib.py", "csv.py", "functools.py", "random.py")
CHARACTERS = 128
"""The first tokens are the characters of ASCII; each of the others is two tokens before it."""
_PIECES = re.compile(r"\n *| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z0-9_]+|\s")
"""What a token never reaches across: a line's beginning, a word, a digit, marks, each with a space before it."""

Merges = Sequence[tuple[int, int]]


def read(name: str) -> str:
    """A file of the standard library, its characters beyond ASCII as question marks."""
    source = Path(sysconfig.get_path("stdlib"), name).read_text(encoding="utf-8")
    return source.encode("ascii", "replace").decode()


def training() -> list[str]:
    """The names of all files to train on: the modules, and those of PACKAGES."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [*library.glob("*.py"), *(file for package in PACKAGES for file in (library / package).rglob("*.py"))]
    return sorted({file.relative_to(library).as_posix() for file in found} - {*HELD_OUT})


class Tokenizer:
    """Byte-pair encoding of ASCII text: token CHARACTERS + i stands for the pair `merges[i]`."""

    def __init__(self, merges: Merges) -> None:
        self.merges = [(int(a), int(b)) for a, b in merges]
        self.strings = [chr(code) for code in range(CHARACTERS)]
        for first, second in self.merges:
            self.strings.append(self.strings[first] + self.strings[second])
        self._ranks = {pair: CHARACTERS + rank for rank, pair in enumerate(self.merges)}
        self._piece = functools.lru_cache(maxsize=1 << 16)(self._encode_piece)

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text; characters beyond ASCII count as question marks."""
        known = text.encode("ascii", "replace").decode()
        return [token for piece in _PIECES.findall(known) for token in self._piece(piece)]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token numbers."""
        return "".join(self.strings[token] for token in tokens)

    def _encode_piece(self, piece: str) -> tuple[int, ...]:
        """The pair that became a token first is joined first."""
        tokens = tuple(map(ord, piece))
        while pairs := [pair for pair in itertools.pairwise(tokens) if pair in self._ranks]:
            pair = min(pairs, key=self._ranks.__getitem__)
            tokens = _joined(tokens, pair, self._ranks[pair])
        return tokens


def learn_merges(texts: Iterable[str], tokens: int) -> list[tuple[int, int]]:
    """The pairs that make a vocabulary of so many tokens: each time the most frequent one, of equals the least."""
    counts = Counter(piece for text in texts for piece in _PIECES.findall(text))
    pieces = {tuple(map(ord, piece)): count for piece, count in counts.items() if count > 4}
    merges: list[tuple[int, int]] = []
    for token in range(CHARACTERS, tokens):
        pairs: Counter[tuple[int, int]] = Counter()
        for piece, count in pieces.items():
            for pair in itertools.pairwise(piece):
                pairs[pair] += count
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        pieces = {_joined(piece, merges[-1], token): count for piece, count in pieces.items()}
    return merges


def _joined(tokens: tuple[int, ...], pair: tuple[int, int], token: int) -> tuple[int, ...]:
    """A piece with every such pair replaced by its token."""
    if pair[0] not in tokens:
        return tokens
    found: list[int] = []
    for next_token in tokens:
        if found and (found[-1], next_token) == pair:
            found[-1] = token
        else:
            found.append(next_token)
    return tuple(found)
