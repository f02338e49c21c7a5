"""Exports for web pages: which files are written, and what is in them; the script and its types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from q8ta_wgpu.__main__ import main
from q8ta_wgpu.errors import InputError
from q8ta_wgpu.ir.graph import INT8X4, INT16X4, QParams, TensorType
from q8ta_wgpu.ir.layout import INT8_LAYOUTS, pack
from q8ta_wgpu.ir.target import BASELINE
from q8ta_wgpu.web import bundle, pixels, web_folder
from testbed import browsers as engines
from testbed.devices import lacking
from testbed.small import small_model

MODEL = small_model()
CHECKING = {"archive", "check", "checks"}
MODULES = sorted(path for path in (Path(web_folder.__file__).parent / "js").glob("*.js") if path.stem not in CHECKING)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return web_folder.export_web(MODEL, tmp_path_factory.mktemp("web"))


def test_no_picture_has_16_bits() -> None:
    bytes_, wide = (TensorType((1, 3, 4, 4), dtype, QParams(1.0, 0, dtype)) for dtype in (INT8X4, INT16X4))
    assert pixels.is_picture(bytes_) and not pixels.is_picture(wide)


@pytest.mark.parametrize("layout", INT8_LAYOUTS, ids=lambda layout: layout.short)
def test_places_of_bytes(layout: Any) -> None:
    """The table that q8ta.js packs by, against pack."""
    shape = (2, 5, 6, 7)
    x = np.arange(np.prod(shape)).astype(np.int8).reshape(shape)
    words = pack(x, layout)
    places = [
        [i // axis["block"] * axis["far"] + i % axis["block"] * axis["near"] for i in range(axis["size"])]
        for axis in web_folder._axes(shape, layout)
    ]
    found = sum(np.array(p).reshape([-1 if i == axis else 1 for i in range(4)]) for axis, p in enumerate(places))
    np.testing.assert_array_equal(words.view(np.int8)[found], x)


def test_the_types() -> None:
    """tsc takes page.ts, which says where it must complain."""
    lacking(engines.missing_node())
    compiler = engines.PACKAGES / "node_modules" / ".bin" / "tsc"
    options = "--noEmit --strict --target es2022 --module esnext --moduleResolution bundler --lib es2022,dom --types"
    command = [str(compiler), *options.split(), "", str(Path(__file__).parent / "page.ts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_the_script_is_small_and_refers_to_nothing() -> None:
    text = bundle.script()
    assert len(text.encode()) < 35_000
    assert "import " not in text.replace("await import", "") and "https://" not in text
    assert max(map(len, text.splitlines())) <= 120


def test_every_module_is_in_the_script_once_and_shares_its_names() -> None:
    text = bundle.script()
    for module in MODULES:
        defined = re.findall(
            r"^export (?:async )?(?:function|class|const) (\w+)", module.read_text("utf-8"), re.MULTILINE
        )
        for name in defined:
            found = re.findall(rf"^(?:async )?(?:function|class|const) {name}\b", text, re.MULTILINE)
            assert len(found) == 1, f"{module.name}: {name}"


def test_what_is_exported(exported: Path) -> None:
    net = json.loads((exported / "net.json").read_text())
    assert set(net["programs"]) == {"gpu", "cpu"}
    for name, program in net["programs"].items():
        assert all(offset % 256 == 0 for offset, _ in json.loads((exported / f"{name}.json").read_text())["constants"])
        assert program["weights"]["bytes"] == (exported / f"{name}.bin").stat().st_size
        assert program["limits"]["maxStorageBuffersPerShaderStage"] <= BASELINE.storage_buffers


def test_no_package_of_a_gpu_is_needed(exported: Path, tmp_path: Path) -> None:
    """As in Pyodide, where wgpu has no wheel."""
    code = f"""
        import sys
        sys.modules["wgpu"] = sys.modules["wgpudawn"] = None
        from q8ta_wgpu import export_web
        from testbed.small import small_model
        export_web(small_model(), {str(tmp_path)!r})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
    assert (tmp_path / "net.json").read_bytes() == (exported / "net.json").read_bytes()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MODEL.save(tmp_path / "net.q8ta")
    assert main(["export-web", str(tmp_path / "net.q8ta"), str(tmp_path / "web")]) == 0
    assert "gpu.bin 7.4 kB" in capsys.readouterr().out
    assert main(["export-web", str(tmp_path / "net.q8ta"), str(tmp_path / "net.q8ta")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        web_folder.export_web(MODEL, tmp_path / "file")
