"""One-line faults in the library, and whether the tests find them: mutants.json holds the faults.

They were drawn by a rule. A room of the library is a group of folders (ROOMS). In each, every kind of fault (KINDS)
takes the line it applies to whose digest is the smallest. Rooms that lack a kind have more of the others, until each
has ten. Of a fault that changes nothing but speed or a message, the list says so by hand: `harmless`.

Each fault is made in a copy of the tracked files. Its tests run nearest first, up to the first that fails: what found
it the last time, files that have its name, the list of mutants.json for it, small files that import it, and the lists
for the folders that it lies in, the whole library's last. A fault whose line is no longer there gives way to the next
one of its room and kind.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.options import Options

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).with_suffix(".json")
LIMIT = 300
"""Seconds that a test may take: a fault that makes it hang is found."""

ROOMS: dict[str, tuple[str, ...]] = {
    "WGSL": ("kernels/**/*.wgsl",),
    "kernels": ("kernels/**/*.py", "q8ta_wgpu/ir/*.py"),
    "passes": ("passes/**/*.py",),
    "model": ("q8ta_wgpu/model/*.py", "q8ta_wgpu/program/*.py"),
    "runtime": ("q8ta_wgpu/runtime/*.py", "q8ta_wgpu/session/*.py"),
    "quantizing": ("q8ta_wgpu/quantization/**/*.py", "q8ta_wgpu/frontend/**/*.py"),
}

KINDS: dict[str, tuple[str, str]] = {
    "sign": (r"(?<=[\w)\]] )([+-])(?= [\w(])", "swap"),
    "bound": (r"(?<=[\w)\]] )(<=|>=|<|>)(?= [\w(-])", "swap"),
    "rounding": (r"\b(rint|round|ceil|floor|//)\b|(?<= )//(?= )", "swap"),
    "zero point": (r"\b[\w.]*\bzero\b(?!\s*[=:(])", "0"),
    "stride": (r"\bstrides?\b(?!\s*[=:(.,])(\[\w+\])?", "1"),
    "extreme": (r"\b(min|max|minimum|maximum)(?=\()", "swap"),
    "logic": (r"(?<= )(and|or|&&|\|\|)(?= )", "swap"),
    "number": (r"(?<=[\w)\]] [-+*/%] )(\d+)(?=u?\b)(?!\.)", "more"),
    "lock": (r"^\s*with self\.(lock|waiting|_lock):$", "if True:"),
    "check": (r"^\s*if (?!TYPE)(.+):$", "never"),
}
"""Kind: what it replaces, and by what. `check` takes an `if` whose body raises an error."""

FEW = 6
"""Files that import a module run before whole folders: the smallest ones."""

LONG = ("test_kernels.py", "test_wgsl.py")
"""Files that run only where a list of mutants.json says so, and of which part."""

LEFT_OUT = r"unit|known_results|rates|timing|report|ncnn"
"""Files that need matrix units, or that measure and describe."""

SWAPPED = {
    "+": "-", "-": "+", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "rint": "floor", "round": "floor", "ceil": "floor",
    "floor": "ceil", "//": "/", "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "and": "or",
    "or": "and", "&&": "||", "||": "&&",
}  # fmt: skip


def arguments_of(mutant: Mutant, lists: dict[str, list[str]], root: Path) -> list[list[str]]:
    """Runs of pytest that can meet a fault, the nearest first."""
    path = mutant.path
    files = sorted(root.glob("tests/**/test_*.py"), key=lambda file: file.stat().st_size)
    own = [file for file in files if file.stem == f"test_{Path(path).stem}"]
    importing = [file for file in files if file not in own and file.name not in LONG and _imports(file, path)][:FEW]
    near, small = ([str(file.relative_to(root)) for file in found] for found in (own, importing))
    folders = sorted((prefix for prefix in lists if path != prefix and path.startswith(prefix)), key=len, reverse=True)
    listed = [[shlex.split(line) for line in lists.get(prefix, ())] for prefix in (path, *folders)]
    runs = [[mutant.by], near, *listed[0], small, *itertools.chain(*listed[1:])]
    return [run for run in runs if any(run)]


def _imports(test: Path, path: str) -> bool:
    """Whether a file of tests imports a module, by its text."""
    folder, _, stem = path.removeprefix("q8ta_wgpu/").removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = rf"from q8ta_wgpu\.{re.escape(folder)}(\.{stem} import| import .*\b{stem}\b)"
    return re.search(pattern, test.read_text(encoding="utf-8")) is not None


@dataclass
class Mutant:
    """A fault: the file, the kind, the number of the line when it was drawn, its text, and the faulty text.

    Attributes:
        harmless: why nothing can find it.
        by: the test that found it.
        hangs: whether that test did not end, rather than fail.
    """

    room: str
    kind: str
    path: str
    line: int
    old: str
    new: str
    harmless: str = ""
    by: str = ""
    hangs: bool = False


def drawn(root: Path = ROOT) -> list[Mutant]:
    """The faults of a tree, by the rule."""
    found = []
    for room, globs in ROOMS.items():
        every = sorted(_candidates(root, room, globs), key=_digest)
        chosen: list[Mutant] = []
        for kind in (*KINDS, *[""] * 10):
            met = {(m.path, m.old) for m in chosen}
            left = (m for m in every if (m.path, m.old) not in met and kind in ("", m.kind))
            chosen += itertools.islice(left, len(chosen) < 10)
        found += chosen
    return found


def another(lost: Mutant, mutants: Sequence[Mutant], root: Path = ROOT) -> Mutant:
    """The fault of a tree that takes the place of one whose line is gone: none of these, and of its kind if any is."""
    met = {(m.path, m.old) for m in mutants}
    left = sorted(
        (m for m in _candidates(root, lost.room, ROOMS[lost.room]) if (m.path, m.old) not in met), key=_digest
    )
    return next((m for m in left if m.kind == lost.kind), left[0])


def _digest(mutant: Mutant) -> bytes:
    return hashlib.blake2b(f"{mutant.path}{mutant.old}".encode()).digest()


def _candidates(root: Path, room: str, globs: tuple[str, ...]) -> Iterator[Mutant]:
    for path in sorted({path for glob in globs for path in root.glob(glob)}):
        if re.search(LEFT_OUT, path.stem):
            continue
        lines = path.read_text(encoding="utf-8").split("\n")
        quoted = False
        for number, line in enumerate(lines):
            before, quoted = quoted, quoted ^ (line.count('"""') % 2 == 1)
            plain = re.sub(r"^\s*(//|#|@).*|\s(//|#) .*", "", line)
            text = (
                before
                or quoted
                or '"' in plain
                or plain.lstrip().startswith(("import ", "from ", "class ", "def ", "fn "))
            )
            if text or lines.count(line) > 1:
                continue
            for kind, (pattern, by) in KINDS.items():
                new = _changed(line, plain, kind, pattern, by, lines[number + 1 : number + 2])
                if new not in (None, line):
                    name = str(path.relative_to(root))
                    yield Mutant(room, kind, name, number + 1, line, str(new))


def _changed(line: str, plain: str, kind: str, pattern: str, by: str, after: list[str]) -> str | None:
    match = re.search(pattern, plain)
    if match is None or (kind == "check" and "raise" not in "".join(after)):
        return None
    text = match[0]
    if by == "swap":
        new = SWAPPED[text]
    elif by == "more":
        new = str(int(text) + 1)
    elif by == "never":
        new = re.sub(r"if .*:", "if False:", text)
    elif by == "if True:":
        new = re.sub(r"with .*:", by, text)
    else:
        new = by
    return line[: match.start()] + new + line[match.end() :]


def part_mutants(options: Options) -> None:
    """Makes each fault and runs its tests; prints what became of it, and notes in mutants.json which test found it."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    mutants = [Mutant(**each) for each in data["mutants"]]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = _copied(Path(folder, "tree"))
        for place, mutant in enumerate(mutants):
            if not is_there(mutant, copy):
                mutants[place] = mutant = another(mutant, mutants, copy)
            if options.names and not {mutant.room, mutant.kind, mutant.path} & set(options.names):
                continue
            begun = time.monotonic()
            outcome = run(mutant, arguments_of(mutant, data["tests"], copy), copy)
            outcomes.append(outcome)
            what = f"{mutant.kind:<11} {mutant.path}:{mutant.line} {mutant.new.strip()}"
            print(f"{outcome:<9} {time.monotonic() - begun:5.0f} s  {what}  {mutant.by}", flush=True)
            data["mutants"] = [asdict(each) for each in mutants]
            DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{outcomes.count(each)} {each}" for each in sorted(set(outcomes))))


def _copied(target: Path) -> Path:
    """The tracked files, as they are."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to, follow_symlinks=False)
    return target


def is_there(mutant: Mutant, tree: Path) -> bool:
    """Whether a tree has the line that a fault changes."""
    path = tree / mutant.path
    return path.exists() and path.read_text(encoding="utf-8").split("\n").count(mutant.old) == 1


def run(mutant: Mutant, tests: list[list[str]], tree: Path) -> str:
    """What the tests say of a fault in a tree that has its line: found, hangs, survived, or harmless. Notes which test
    found it."""
    if mutant.harmless:
        return "harmless"
    path = tree / mutant.path
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f"{mutant.old}\n", f"{mutant.new}\n"), encoding="utf-8")
    try:
        failures = (_failure(arguments, tree) for arguments in tests)
        mutant.by, mutant.hangs = next(filter(None, failures), ("", False))
    finally:
        path.write_text(text, encoding="utf-8")
    return "hangs" if mutant.hangs else "found" if mutant.by else "survived"


def _failure(arguments: list[str], tree: Path) -> tuple[str, bool] | None:
    """The first test that fails in a run of pytest in the tree, or a file that cannot be imported, and whether it did
    not end; None if none does."""
    command = [sys.executable, "-B", "-m", "pytest", *arguments, "-x", "-v", "-n0", "-p", "no:cacheprovider"]
    timeout = ["--timeout", str(LIMIT), "--timeout-method", "thread"]  # which ends a hanging driver, too
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([*command, *timeout], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if "Timeout +++" in done.stdout + done.stderr:  # the test that ran is the last that was named
        begun = [line for line in done.stdout.splitlines() if re.match(r"\S+\.py::", line)]
        return re.sub(r" (\s*|\++ Timeout .*)$", "", begun[-1]), True
    found = re.search(r"^(?:FAILED|ERROR) (\S+\.py(?:::\w+)*(?:\[.*?\](?= - |$))?)", done.stdout, re.MULTILINE)
    if done.returncode in (4, 5) and not found and "loading conftest" not in done.stderr:
        assert "::" in arguments[0], f"pytest selects nothing or has wrong arguments: {arguments}"
        return None  # the test that found it has another name now
    return (found[1] if found else arguments[0]), False
