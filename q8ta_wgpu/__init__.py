"""Int8 networks on any GPU: quantize a PyTorch module, compile it, run it through WebGPU.

exported = q8.quantize(module, example_inputs, calibration=batches)
model = q8.compile(exported)
model.save("net.q8ta"); model = q8.load("net.q8ta")
session = q8.Session(model)
y = session(x)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from q8ta_wgpu.errors import DeviceError, GraphError, InputError, ModelFileError, Q8taError, UnsupportedError

if TYPE_CHECKING:
    from q8ta_wgpu.frontend.calibrate.quantizer import Quantizer
    from q8ta_wgpu.frontend.compare import compare
    from q8ta_wgpu.frontend.compile import compile
    from q8ta_wgpu.frontend.quantize_module import quantize
    from q8ta_wgpu.model.model import Model, load
    from q8ta_wgpu.model.push import push
    from q8ta_wgpu.onnx_import.from_onnx import from_onnx
    from q8ta_wgpu.session.session import Session
    from q8ta_wgpu.session.streaming import run_many
    from q8ta_wgpu.session.tiled import TiledSession
    from q8ta_wgpu.web.web_folder import export_web

if Path(__file__).with_name("kernels").is_file():
    raise ImportError(
        f"{Path(__file__).with_name('kernels')} is a file, and should be a link to a folder: git wrote links as text, "
        "as it does on Windows. Either run `git config core.symlinks true` and `git checkout -- q8ta_wgpu` in a shell "
        "that may make links (on Windows with developer mode on), or install this folder with `pip install .`, which "
        "needs no links"
    )

__version__ = "0.2.0"

__all__ = [
    "DeviceError",
    "GraphError",
    "InputError",
    "Model",
    "ModelFileError",
    "Q8taError",
    "Quantizer",
    "Session",
    "TiledSession",
    "UnsupportedError",
    "compare",
    "compile",
    "export_web",
    "from_onnx",
    "load",
    "push",
    "quantize",
    "run_many",
]


def __dir__() -> list[str]:
    """What may be used, loaded or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Everything is loaded when it is first used: `quantize` and `Quantizer` alone load torch, and the command line
    answers an interrupt from its first moment on."""
    module: Any
    match name:
        case "Model" | "load":
            from q8ta_wgpu.model import model as module
        case "Session":
            from q8ta_wgpu.session import session as module
        case "run_many":
            from q8ta_wgpu.session import streaming as module
        case "TiledSession":
            from q8ta_wgpu.session import tiled as module
        case "export_web":
            from q8ta_wgpu.web import web_folder as module
        case "push":
            from q8ta_wgpu.model import push as module
        case "from_onnx":
            from q8ta_wgpu.onnx_import import from_onnx as module
        case "compile":
            from q8ta_wgpu.frontend import compile as module
        case "compare" | "quantize" | "Quantizer":
            try:
                from q8ta_wgpu.frontend import compare, quantize_module

                module = compare if name == "compare" else quantize_module
            except ModuleNotFoundError as error:
                if name != "Quantizer":  # the others take ONNX files without torch
                    from q8ta_wgpu.onnx_import import compare_onnx, quantize_onnx

                    return compare_onnx.compare if name == "compare" else quantize_onnx.quantize
                raise UnsupportedError(f'{name} needs torch: pip install "q8ta-wgpu[compile]" ({error})') from error
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
