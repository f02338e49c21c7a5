"""The rooms of the house: which folder may import which, without a circle; where torch, wgpu and safetensors may
be."""

from __future__ import annotations

import ast
import functools
import graphlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from q8ta_wgpu.program.wgsl_definitions import files, folders, uses

ROOT = Path(__file__).parents[2]

IR = {"errors", "ir"}
TABLE = IR | {"kernels"}
GRAPH = TABLE | {"model"}
REWRITING = {"passes.rewriter", "passes.operands"}
FRONTEND = {"frontend.nodes", "frontend.notes", "frontend.export", "frontend.importer"}

ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "hub": {"errors"},
    "progress": {"errors"},
    "writing": {"errors"},
    "ir": {"errors"},
    # operators: no room sees another operator's family, except those that share their kernels
    "kernels.lib": IR,
    "kernels.epilogue": IR | {"kernels.lib"},
    "kernels.product": IR | {"kernels.lib", "kernels.epilogue"},
    **dict.fromkeys(("kernels.move", "kernels.border"), IR | {"kernels.lib"}),
    "kernels.elementwise": IR | {"kernels.lib", "kernels.epilogue"},
    "kernels.pool": IR | {"kernels.lib"},
    "kernels.norm": IR | {"kernels.lib", "kernels.epilogue", "kernels.elementwise"},
    "kernels.recurrent": IR | {"kernels.lib"},
    "kernels.reduce": IR | {"kernels.lib", "kernels.pool"},
    "kernels.rotary": IR | {"kernels.elementwise", "kernels.lib", "kernels.move"},
    **dict.fromkeys(
        ("kernels.linear", "kernels.transposed"), IR | {"kernels.lib", "kernels.product", "kernels.epilogue"}
    ),
    "kernels.prologue": IR | {"kernels.product"},
    "kernels.conv2d": IR | {"kernels.lib", "kernels.product", "kernels.epilogue", "kernels.prologue"},
    "kernels.attention": IR | {"kernels.product", "kernels.epilogue", "kernels.lib", "kernels.linear"},
    "kernels": IR,
    # graph to graph to plan
    "model": TABLE | {"hub", "kernels.epilogue", "writing"},
    "passes.rewriter": GRAPH,
    "passes.operands": TABLE | {"passes.rewriter"},
    "passes.plan": GRAPH | {"kernels.attention", *REWRITING},
    "passes": GRAPH
    | {
        "kernels.attention",
        "kernels.elementwise",
        "kernels.epilogue",
        "kernels.lib",
        "kernels.move",
        "passes.fold_moves",
        "passes.fold_producers",
        "passes.use_im2col",
        "passes.plan",
    }
    | REWRITING,
    "passes.layout_sync": TABLE,
    "passes.fold_moves": TABLE
    | {"kernels.epilogue", "kernels.lib", "kernels.prologue", "passes.layout_sync", "passes.rewriter"},
    "passes.fold_producers": TABLE
    | {"kernels.conv2d", "kernels.epilogue", "kernels.lib", "kernels.prologue", "passes.fold_moves", "passes.rewriter"},
    "passes.use_im2col": TABLE | {"kernels.epilogue", "passes.rewriter"},
    # calls of aten and ONNX to operators of the table
    "importing": GRAPH | {"kernels.elementwise", "kernels.lib", "kernels.move", "kernels.pool", "kernels.recurrent"},
    # torch: module to plain program to graph, and back to where it is rounded
    "frontend.notes": set(),
    "frontend.nodes": TABLE | {"frontend.notes", "importing"},
    "frontend.moves": TABLE | {"frontend.nodes"},
    "quantization": GRAPH | {"kernels.attention", "kernels.lib", "passes", "passes.plan", "writing", *REWRITING},
    "onnx_import": GRAPH
    | {
        "passes.plan",
        "hub",
        "quantization",
        "importing",
        "passes",
        "progress",
        "session",
    },
    "frontend.export": TABLE | {"frontend.moves", "frontend.nodes", "frontend.notes", "importing"},
    "frontend.importer": GRAPH | {"frontend.nodes", "frontend.notes", "frontend.export", "importing"},
    "frontend.read_float": GRAPH | {"passes", "quantization", *FRONTEND},
    "frontend.pt2e": GRAPH | {"frontend.read_float", "quantization", "passes.plan", *FRONTEND},
    "frontend.calibrate": GRAPH
    | {"quantization", "frontend.moves", "frontend.pt2e", "kernels.attention", "passes.plan"}
    | FRONTEND,
    "frontend.hybrid": GRAPH | {"passes", "session", "frontend.checks", *FRONTEND},
    "frontend.checks": TABLE | {"frontend.export", "frontend.nodes"},
    "frontend": GRAPH
    | {
        "importing",
        "kernels.attention",
        "passes",
        "progress",
        "writing",
        "onnx_import",
        "quantization",
        "passes.plan",
        "frontend.calibrate",
        "frontend.checks",
        "frontend.hybrid",
        "frontend.pt2e",
        "frontend.read_float",
        *FRONTEND,
    },
    # plan to program to device
    "program": GRAPH | {"kernels.attention", "kernels.epilogue", "passes.layout_sync"},
    "runtime": IR | {"program", "writing"},
    "tuning": TABLE | {"kernels.product", "passes.use_im2col", "passes.layout_sync", "program", "progress", "runtime"},
    "drawings": GRAPH | {"passes.layout_sync", "program", "session", "writing"},
    "commands": GRAPH
    | {"onnx_import", "passes", "passes.layout_sync", "program", "progress", "runtime", "tuning", "session", "drawings"}
    | {"web", "writing", "kernels.product"},
    "web": GRAPH | {"passes", "passes.layout_sync", "program", "writing"},
    "session": GRAPH | {"kernels.epilogue", "passes", "passes.layout_sync", "program", "progress", "runtime", "tuning"},
    "onnxruntime": GRAPH | {"onnx_import", "session"},
}
"""What each folder may import, beyond itself. The package's own two files, the front door, may import everything."""

OUTSIDE: dict[str, set[str]] = {
    "hub": {"huggingface_hub"},
    "runtime": {"wgpu", "wgpudawn"},
    "model": {"safetensors"},
    "frontend": {"torch"},
    "frontend.pt2e": {"torchao", "triton"},
    "onnx_import": {"onnx", "onnxruntime"},
    "drawings": {"fast_sugiyama"},
}
"""Packages beyond the standard library and numpy."""


def modules() -> Iterator[tuple[str, Path]]:
    """Name without the package's own, and file, of every module that is installed."""
    for top, folder in (("", "q8ta_wgpu"), ("kernels.", "kernels"), ("passes.", "passes")):
        for path in sorted((ROOT / folder).glob("**/*.py")):
            inner = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            if not top and inner.startswith(("kernels.", "passes.")):
                continue  # the links
            yield f"{top}{inner}".removesuffix("__init__").removesuffix("."), path


MODULES = dict(modules())
FRONT_DOOR = {"", "__main__"}


def room(name: str) -> str:
    """The folder a module is in, which for a package's own file is itself."""
    return name if name in ROOMS else name.rpartition(".")[0]


@functools.cache
def imported(name: str) -> tuple[tuple[str, int], ...]:
    """Every name a file imports, when it runs or for type checking alone, with its line."""
    path = MODULES[name]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((whole if whole.removeprefix("q8ta_wgpu.") in MODULES else node.module, node.lineno))
    return tuple(found)


@pytest.mark.parametrize("name", [name for name in MODULES if name not in FRONT_DOOR])
def test_a_module_imports_from_the_rooms_below_it(name: str) -> None:
    here = room(name)
    assert here in ROOMS, f"{name} lies in no room: say in ROOMS what {here} may import"
    for target, line in imported(name):
        package, _, inner = target.partition(".")
        where = f"{MODULES[name].relative_to(ROOT)}:{line} imports {target}"
        if package == "q8ta_wgpu":
            assert room(inner) in {here, *ROOMS[here]} or inner in ROOMS[here], where
        elif package not in sys.stdlib_module_names:
            assert package in {"numpy", *OUTSIDE.get(here.split(".")[0], ()), *OUTSIDE.get(here, ())}, where


@pytest.mark.parametrize("name", files())
def test_wgsl_uses_files_of_the_rooms_below_it(name: str) -> None:
    here = f"kernels.{folders()[name]}"
    for used in uses()[name]:
        there = f"kernels.{folders()[used]}"
        assert there in {here, *ROOMS[here]}, f"{name}.wgsl uses {used}.wgsl"


def test_wgsl_files_form_no_circle() -> None:
    graphlib.TopologicalSorter(uses()).prepare()


def test_the_rooms_exist_and_form_no_circle() -> None:
    folders = {room(name) for name in MODULES} - FRONT_DOOR
    assert set(ROOMS) == folders
    assert all(targets <= folders for targets in ROOMS.values())
    graphlib.TopologicalSorter(ROOMS).prepare()


def test_modules_form_no_circle() -> None:
    """What is imported at once, when a function is called, and for type checking, alike."""
    graph = {
        name: {target.removeprefix("q8ta_wgpu.") for target, _ in imported(name) if target.startswith("q8ta_wgpu.")}
        for name in MODULES
        if name not in FRONT_DOOR
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_imported_by_a_text(name: str) -> None:
    """import_module and __import__ would get past the table; only the tables of operators and of calls look for their
    own files."""
    looks = name in ("kernels", "importing.import_table")
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        called = node.func if isinstance(node, ast.Call) else None
        attribute = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        assert attribute not in ("import_module", "__import__", "exec", "eval") or looks


@pytest.mark.parametrize(
    ("folder", "others"), [("tests", {"bench"}), ("bench", {"tests"}), ("testbed", {"tests", "bench"})]
)
def test_tests_and_benchmarks_share_the_testbed_alone(folder: str, others: set[str]) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = [name for name in names if name.partition(".")[0] in others]
            assert not wrong, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} imports {wrong}"


def test_every_room_says_what_it_is() -> None:
    for name in ROOMS:
        path = MODULES[name]
        if path.name == "__init__.py":
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"


def test_the_package_imports_neither_torch_nor_wgpu() -> None:
    late = {"asyncio", "onnx", "torch", "torchao", "wgpu", "wgpudawn", "fast_sugiyama"}
    code = f"import sys, q8ta_wgpu.__main__ as m; m.parser(); print(sorted({late} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_checkout_without_links_says_what_to_do(tmp_path: Path) -> None:
    """As on Windows, where git writes links as text."""
    package = tmp_path / "q8ta_wgpu"
    package.mkdir()
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "q8ta_wgpu" / name, package)
    (package / "kernels").write_text("../kernels", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "import q8ta_wgpu"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "core.symlinks true" in done.stderr and "pip install ." in done.stderr


def test_every_folder_is_packaged_and_every_dependency_declared() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {f"q8ta_wgpu.{name}" for name, path in MODULES.items() if path.name == "__init__.py" and name}
    assert set(config["tool"]["setuptools"]["packages"]) == {"q8ta_wgpu", *packages}
    names = {text.split(">")[0] for text in config["project"]["dependencies"]}
    assert names == {"numpy", "wgpu", "safetensors"}
    extras = config["project"]["optional-dependencies"]
    assert {text.split(">")[0] for text in extras["compile"]} == {"torch", "torchao"}
    assert {text.split(">")[0] for text in extras["dawn"]} == {"wgpudawn"}
    assert {text.split(">")[0] for text in extras["onnx"]} == {"onnx"}
    assert {text.split(">")[0] for text in extras["show"]} == {"fast-sugiyama"}
    for link, target in (("kernels", "../kernels"), ("passes", "../passes")):
        assert (ROOT / "q8ta_wgpu" / link).readlink() == Path(target)
