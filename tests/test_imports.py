"""The import table of the house: which module may import which, and where torch, wgpu and safetensors may appear."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"": "q8ta_wgpu", "runtime.": "q8ta_wgpu/runtime", "kernels.": "kernels", "passes.": "passes"}

VOCABULARY = {"errors", "ir", "layout", "target"}
SHARED_BY_KERNELS = {"arithmetic", "average", "curve", "epilogue", "gemm", "op", "pooling", "strided", "weighted"}
SHARED_BY_KERNELS |= {"rows", "sgemm"}  # what float kernels share
"""What operator families have in common, outside kernels/ because every Op found in there is an operator."""
SHARED_BY_KERNELS |= {"channel_tile", "channels", "runs"}  # what moves words

KERNEL = VOCABULARY | SHARED_BY_KERNELS
LAYOUT_SYNC = {"cost", "op_repsets", "byte_order", "tensor_repr"}

TABLE: dict[str, set[str]] = {
    # the vocabulary
    "errors": set(),
    "target": set(),
    "layout": {"errors"},
    "ir": {"errors", "layout"},
    "structure": {"errors"},
    "op": VOCABULARY,
    # operators: nothing here knows passes, runtime, or another operator's file
    **{name: KERNEL - {name} for name in SHARED_BY_KERNELS - {"op"}},
    "arithmetic": {"ir"},
    "kernels": {"op"},
    "kernels.*": KERNEL,
    # graphs
    "verify": VOCABULARY | {"kernels", "op"},
    "reference": {"ir", "kernels", "verify"},
    "report": {"ir"},
    "tensor_repr": {"errors", "layout"},
    "op_repsets": {"layout", "tensor_repr"},
    "byte_order": {"layout"},
    "cost": {"ir", "layout", "op", "tensor_repr"},
    "passes": {"ir", "passes.*", "verify"},
    "passes.*": VOCABULARY | LAYOUT_SYNC | {"arithmetic", "curve", "kernels", "op", "passes", "passes.*", "verify"},
    # from a graph to a program
    "unroll": set(),
    "link": VOCABULARY | {"op", "unroll"},
    "memory": set(),
    "schedule": VOCABULARY | {"cost", "kernels", "link", "memory", "op", "passes.sync_layouts", "runtime.program"},
    # models and files
    "model": {"errors", "ir", "kernels", "modelfile", "report", "structure", "verify"},
    "modelfile": {"errors", "ir", "model", "structure", "verify"},
    # devices: only a session knows graphs, and reaches the schedule through one call
    "runtime": set(),
    "runtime.*": {"errors", "runtime.*", "target"},
    "runtime.probe": {"arithmetic", "ir"},
    "runtime.session": VOCABULARY | {"reference", "runtime.*", "schedule", "tune"},
    "tiling": VOCABULARY | {"kernels", "model", "op", "runtime.device", "runtime.session", "verify"},
    # choosing by measurement
    "tune_cache": set(),
    "tune_timing": VOCABULARY | {"cost", "op", "passes.sync_layouts", "runtime.*", "schedule"},
    "tune_report": {"cost", "kernels", "passes.sync_layouts"},
    "tune": VOCABULARY
    | {
        "cost",
        "kernels",
        "link",
        "op",
        "passes.fold_image",
        "passes.layout_table",
        "passes.sync_layouts",
        "runtime.device",
        "verify",
    }
    | {"tune_cache", "tune_report", "tune_timing"},
    # torch
    "importer": VOCABULARY | {"kernels", "op", "structure", "verify"},
    "quantizer": VOCABULARY | {"kernels", "op"},
    "compiler": {"errors", "importer", "model", "passes"},
}
EVERYTHING = {"__init__", "__main__"}

OUTSIDE: dict[str, set[str]] = {
    "runtime.*": {"numpy", "wgpu"},
    "modelfile": {"numpy", "safetensors"},
    "importer": {"numpy", "torch"},
    "quantizer": {"numpy", "rich", "torch", "torchao"},
}
"""Packages beyond the standard library; every other module has numpy alone."""


def modules() -> Iterator[tuple[str, Path]]:
    """Name without the package's own, and file, of every module that is installed."""
    for prefix, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).glob("*.py")):
            name = f"{prefix}{path.stem}"
            yield name.removesuffix(".__init__"), path


MODULES = dict(modules())


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Every name a file imports when it runs (not for type checking alone), with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole.removeprefix("q8ta_wgpu.") in MODULES else node.module), node.lineno


def found(table: dict[str, set[str]], name: str) -> set[str] | None:
    """The entry of a module, or of its folder."""
    return table.get(name, table.get(f"{name.rpartition('.')[0]}.*") if "." in name else None)


def allowed(name: str, target: str) -> bool:
    entry = found(TABLE, name)
    assert entry is not None, f"{name} is not in the import table: say there what it may import"
    family = name.partition("_")[0] if name.startswith("kernels.") else "-"
    folder = f"{target.rpartition('.')[0]}.*"
    return target in entry or folder in entry or target == family or target.startswith(f"{family}_")


@pytest.mark.parametrize("name", MODULES)
def test_imports_are_in_the_table(name: str) -> None:
    path = MODULES[name]
    for target, line in imported(path):
        package, _, inner = target.partition(".")
        where = f"{path.relative_to(ROOT)}:{line} imports {target}"
        if package == "q8ta_wgpu":
            assert name in EVERYTHING or allowed(name, inner), where
        elif package not in sys.stdlib_module_names:
            assert package in (found(OUTSIDE, name) or {"numpy"}), where


def test_the_table_has_no_dead_entries() -> None:
    folders = {f"{prefix}*" for prefix in FOLDERS}
    for entry, names in TABLE.items():
        for name in {entry, *names}:
            assert name in MODULES or name in folders, f"the import table names {name}, which does not exist"


@pytest.mark.parametrize("name", MODULES)
def test_nothing_is_imported_by_a_text(name: str) -> None:
    """import_module and __import__ would get past the table; only the operator table looks for its own files."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        called = node.func if isinstance(node, ast.Call) else None
        attribute = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        assert attribute not in ("import_module", "__import__", "exec", "eval") or name == "kernels"


def test_the_package_imports_neither_torch_nor_wgpu() -> None:
    code = "import sys, q8ta_wgpu.__main__; print(sorted({'torch', 'torchao', 'wgpu', 'rich'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_every_folder_is_packaged_and_every_dependency_declared() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {f"q8ta_wgpu.{prefix}".rstrip(".") for prefix in FOLDERS}
    assert set(config["tool"]["setuptools"]["packages"]) == packages
    names = {text.split(">")[0] for text in config["project"]["dependencies"]}
    assert names == {"numpy", "wgpu", "safetensors"}
    extra = {text.split(">")[0] for text in config["project"]["optional-dependencies"]["compile"]}
    assert extra == {"torch", "torchao", "rich"}
    for link, target in (("kernels", "../kernels"), ("passes", "../passes")):
        assert (ROOT / "q8ta_wgpu" / link).readlink() == Path(target)
