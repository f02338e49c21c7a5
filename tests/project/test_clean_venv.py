"""The wheel in an environment that holds numpy, wgpu and safetensors, what they need, and nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import q8ta_wgpu
from testbed.small import small_model

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="links packages into an environment laid out as on Unix"),
    pytest.mark.starts_python,
]

RUNTIME = ("numpy", "wgpu", "safetensors")


def output_of(*command: str | Path, folder: Path) -> str:
    """Runs a program with no variable that would show it our packages; its output, if it succeeds."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "PIP_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


HOME = "https://example.org/owner/name"
SDIST = "import setuptools.build_meta as build; build.build_sdist('..')"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release does, from a copy of what a clone holds, so that no build folder is left behind."""
    folder = tmp_path_factory.mktemp("sdist")
    source = folder / "source"
    source.mkdir()
    for name in ("q8ta_wgpu", "kernels", "passes", "tests"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    output_of(sys.executable, ROOT / ".ci" / "urls", HOME, f"v{q8ta_wgpu.__version__}", folder=source)
    output_of(sys.executable, "-c", SDIST, folder=source)
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution alone."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    output_of(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, sdist, folder=folder)
    (found,) = folder.glob("*.whl")
    return found


def needed(names: tuple[str, ...]) -> set[str]:
    """Distributions that `names` need, themselves included, extras left out."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = canonicalize_name(pending.pop())
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return found


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment, its packages linked from the one that runs the tests: no network, and a second's work."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    output_of(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder.parent)
    packages = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for name in needed(RUNTIME):
        files = importlib.metadata.files(name)
        assert files is not None
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))).resolve())
    before = {path.name for path in packages.iterdir()}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python")
    output_of(*pip, "install", "--no-deps", "--no-index", wheel, folder=folder.parent)
    added = {path.name for path in packages.iterdir()} - before
    assert {name.partition("-")[0] for name in added} == {"q8ta_wgpu"}, added
    assert "No broken requirements" in output_of(*pip, "check", folder=folder.parent)
    return folder


def test_what_the_wheel_holds(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"q8ta_wgpu"}
    own = [d for d in (ROOT / "q8ta_wgpu").iterdir() if d.is_dir() and not d.is_symlink()]
    expected = {f"q8ta_wgpu/{p.name}" for p in (ROOT / "q8ta_wgpu").glob("*.py")}
    expected |= {str(p.relative_to(ROOT)) for folder in own for p in folder.glob("**/*.py")}
    for folder in ("kernels", "passes"):
        expected |= {f"q8ta_wgpu/{p.relative_to(ROOT)}" for p in (ROOT / folder).glob("**/*.py")}
    for kind in ("wgsl", "json"):
        expected |= {f"q8ta_wgpu/{p.relative_to(ROOT)}" for p in (ROOT / "kernels").glob(f"**/*.{kind}")}
    expected |= {
        str(p.relative_to(ROOT)) for part in ("js", "page") for p in (ROOT / "q8ta_wgpu" / "web" / part).iterdir()
    }
    expected |= {"q8ta_wgpu/py.typed", "q8ta_wgpu/drawings/html_page.html"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_what_the_source_distribution_holds(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= names
    tops = {name.partition("/")[0] for name in names if "/" in name}
    assert tops == {"kernels", "passes", "q8ta_wgpu", "q8ta_wgpu.egg-info"}


def test_a_release_says_where_the_project_is_hosted(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", text, re.MULTILINE))
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog", "Upstream"} == set(urls)
    assert urls.pop("Documentation") == "https://owner.github.io/name/" and urls.pop("Upstream")
    assert all(url.startswith(HOME) for url in urls.values())
    links = re.findall(r"\]\(([^)#]+)", text)
    assert len(links) > 5 and [link for link in links if not link.startswith("https://")] == []
    assert "[![PyPI]" in text and 'pip install "q8ta-wgpu[compile]"' in text and "pip install ." not in text


def test_the_recipe_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    recipe = (ROOT / ".ci" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    needed_here = {re.sub(r"\s+", "", line) for line in re.findall(r"^    - (.*)$", recipe, re.MULTILINE)}
    build = {f"python{project['project']['requires-python']}", *project["build-system"]["requires"]}
    assert {*project["project"]["dependencies"], *build} == needed_here - {"pip", "python3.11.*"}
    for name in ("VERSION", "SHA256", "HOME"):
        assert recipe.count(f": {name}\n") == 1


SCRIPT = """
import importlib.util, pathlib, sys
import numpy as np
import q8ta_wgpu as q8

assert pathlib.Path(q8.__file__).is_relative_to(sys.prefix), q8.__file__
for name in ("torch", "torchao", "rich", "scipy", "pytest"):
    assert importlib.util.find_spec(name) is None, name
model = q8.load("net.q8ta")
x = np.random.default_rng(0).normal(0, 2, model.inputs["x"].shape).astype(np.float32)
expected = q8.Session(model, "reference")(x)
session = q8.Session(model, "vulkan")
found = session(x)
assert np.array_equal(found["y"], expected["y"]) and np.array_equal(found["parts"][0], expected["parts"][0])
assert expected["y"].std() > 1
model.save("again.q8ta")
assert pathlib.Path("again.q8ta").read_bytes() == pathlib.Path("net.q8ta").read_bytes()
print(model.report())
for use in (lambda: q8.compile(None), lambda: q8.quantize(None, ()), lambda: q8.Quantizer()):
    try:
        use()
    except q8.UnsupportedError as error:
        assert 'pip install "q8ta-wgpu[compile]"' in str(error), error
    else:
        raise AssertionError("torch was not missed")
print("ran on", session.name)
"""


def test_loading_and_running_without_torch(venv: Path, tmp_path: Path) -> None:
    small_model().save(tmp_path / "net.q8ta")
    (tmp_path / "script.py").write_text(SCRIPT)
    out = output_of(venv / "bin" / "python", "-I", "script.py", folder=tmp_path)
    assert "3 of 3 compute nodes in int8" in out
    assert out.splitlines()[-1].startswith("ran on ")
    assert "q8ta_conv2d" in output_of(venv / "bin" / "q8ta-wgpu", "show", "net.q8ta", folder=tmp_path)
