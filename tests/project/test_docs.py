"""The pages of documentation name what there is: links, files, commands, operators and kernels, attributes."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import q8ta_wgpu
from docs import list_operators
from q8ta_wgpu.__main__ import parser
from q8ta_wgpu.ir.kernel import Kernel
from q8ta_wgpu.ir.op import Op
from q8ta_wgpu.ir.target import Target
from q8ta_wgpu.kernels import OPS
from testbed.sample import TEN

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path for glob in ("*.md", "docs/*.md", "kernels/*.md") for path in ROOT.glob(glob)
}
FOLDERS = ("q8ta_wgpu", "kernels", "passes", "testbed", "tests", "bench", "demo", "docs", "examples")
NAMES = {path.name for path in ROOT.glob("*")} | {
    path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")
}
KERNELS = {kernel.name for op in OPS.values() for kernel in op.kernels}
SHORT = {"q8": q8ta_wgpu, "session": q8ta_wgpu.Session, "model": q8ta_wgpu.Model, "Op": Op, "Kernel": Kernel}
SHORT |= {"Session": q8ta_wgpu.Session, "Model": q8ta_wgpu.Model, "Target": Target}
COMMANDS = set(re.findall(r"^    ([\w-]+)(?: |$)", parser().format_help(), re.MULTILINE))

each_page = pytest.mark.parametrize("page", PAGES)


def prose_of(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", PAGES[page].read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def code(page: str) -> list[str]:
    """The code of a page: lines of blocks without their comments, and spans."""
    text = PAGES[page].read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s# .*", "", line) for block in blocks for line in block.splitlines()]
    return [*lines, *(" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose_of(page)))]


def exists(name: str, page: str) -> bool:
    """Whether a path is one from the root, the page's folder or kernels/, a bare name that of any file."""
    if "/" not in name:
        return any(fnmatchcase(known, name) for known in NAMES)
    return any(any(base.glob(name)) for base in (ROOT, PAGES[page].parent, ROOT / "kernels"))


@each_page
def test_links(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGES[page].read_text(encoding="utf-8"))
    assert [link for link in links if not (PAGES[page].parent / link).exists()] == []
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", PAGES[page].read_text(encoding="utf-8")):
        other = (PAGES[page].parent / target) if target else PAGES[page]
        headings = re.findall(r"^#+ (.*)", other.read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


@each_page
def test_headings_are_there_once(page: str) -> None:
    headings = re.findall(r"^#+ .*", prose_of(page), re.MULTILINE)
    assert [heading for heading in set(headings) if headings.count(heading) > 1] == []


def test_operators() -> None:
    """The page is what the operator table says: `python -m docs.list_operators` writes it."""
    assert list_operators.TARGET.read_text(encoding="utf-8") == list_operators.page()


def test_reference() -> None:
    """Each object of the API reference is defined where the page says, so that `make docs` finds it."""
    named = re.findall(r"^::: (\S+)", PAGES["docs/reference.md"].read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) > 10
    for name in named:
        found = pkgutil.resolve_name(name)
        assert getattr(found, "__module__", name) in (name, name.rpartition(".")[0]), name


def test_workflows() -> None:
    """What they call is there."""
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / ".github/workflows").glob("*.yml"))
    called = re.findall(r"(?:tests|testbed|bench)/[\w/]+\.py|\.ci/\w+|(?<=-r )\S+\.txt", text)
    assert len(called) > 5 and [name for name in called if not (ROOT / name).exists()] == []


@pytest.mark.starts_python
@pytest.mark.parametrize("backend", ["metal", "d3d12"])
def test_machines_of_one_backend_meet_ten_operators(backend: str) -> None:
    """What the workflow runs on them: tests of kernels, of that backend alone."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "tests/kernels/test_kernels.py"],
        env={**os.environ, "Q8TA_TEST_QUICK": "1", "Q8TA_TEST_BACKENDS": backend},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found = re.findall(r"::test_\w+\[(\S+)\]", done.stdout)
    assert {name for name in TEN if any(name in re.split(r"[-.]", text) for text in found)} == TEN, done.stdout[-2000:]
    assert not [text for text in found if "vulkan" in text or "opengl" in text or "swiftshader" in text]


@each_page
def test_files(page: str) -> None:
    """Names with an ending of ours, folders with a slash at the end, and stems of WGSL files below a folder."""
    spans = [span for span in code(page) if " " not in span]
    files = [span for span in spans if re.fullmatch(r"[\w*./-]+(\.(py|wgsl|md|toml|txt|cff|svg|jpg)|/)", span)]
    stems = [span for span in spans if re.fullmatch(r"(?!out/)[a-z]\w*/[\w*]+", span)]
    missing = [name for name in files if not exists(name, page)]
    assert missing + [name for name in stems if not exists(name, page) and not exists(f"{name}.wgsl", page)] == []


def words_after(command: str, page: str) -> Iterator[str]:
    """The lower-case words that follow a command, up to its first option or argument."""
    for found in re.findall(rf"{re.escape(command)} ([^-].*)", "\n".join(code(page))):
        for word in found.split():
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", word):
                break
            yield word


@each_page
def test_commands(page: str) -> None:
    named = re.findall(r"python -m q8ta_wgpu ([^-\n].*)", "\n".join(code(page)))
    given = [word.split()[0] for found in named for word in found.split("|")]
    assert [word for word in given if word not in COMMANDS] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [word for word in words_after("make", page) if word not in targets] == []


@each_page
def test_command_lines(page: str) -> None:
    """A module that is run is there, and ours takes the options as they are written."""
    for line in code(page):
        found = re.fullmatch(r"python -m ([a-z0-9_.]+)(?: ([^|\[]*))?", line.strip())
        if found is not None:
            assert importlib.util.find_spec(found[1]) is not None, line
            words = shlex.split(found[2] or "")
            if found[1] == "q8ta_wgpu" and len(words) > 1:  # one alone is the command's name
                parser().parse_args(words)


@each_page
def test_operators_and_kernels(page: str) -> None:
    """`q8ta_add` and the like, `operator.method` with wildcards, and `.method` behind either in a paragraph or row."""
    for line in re.split(r"\n\n|\n(?=[|*])", PAGES[page].read_text(encoding="utf-8")):
        operators: set[str] = set()
        for span in re.findall(r"`([\w.*]+)`", line):
            name, dot, method = span.partition(".")
            if name.startswith("q8ta_") and name not in ("q8ta_wgpu", "q8ta_x", "q8ta_*") and dot + method != ".wgsl":
                assert name in OPS, f"{page}: {span}"
            operators |= {name} & set(OPS)
            if dot and (name in OPS or (not name and operators)) and method not in ("wgsl", "py", "q8ta"):
                full = {f"{operator}.{method}" for operator in ({name} if name else operators)}
                assert any(fnmatchcase(kernel, one) for kernel in KERNELS for one in full), f"{page}: {span}"


@each_page
def test_attributes(page: str) -> None:
    """`q8.NAME` and methods and fields of what the pages call session, model, Op, Kernel and Target."""
    for name, attribute in re.findall(rf"(?<![\w./])({'|'.join(SHORT)})\.([a-z_]\w*)", "\n".join(code(page))):
        owner = SHORT.get(name)
        fields = getattr(owner, "__dataclass_fields__", {})
        instance = getattr(owner, "__init__", None)
        assigned = instance.__code__.co_names if instance and hasattr(instance, "__code__") else ()
        known = (*fields, *assigned, *getattr(owner, "__annotations__", {}))
        assert owner is None or hasattr(owner, attribute) or attribute in known, f"{page}: {attribute}"
