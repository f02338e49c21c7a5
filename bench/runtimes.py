"""The compared runtimes: how each makes its file from a torch module, and loads it as a user would.

A runtime's package is imported by the functions that need it, so that an error names a missing one.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from q8ta_wgpu.ir.graph import Array

if TYPE_CHECKING:
    from torch import Tensor, nn

Run = Callable[[Array], Array]


@dataclass(frozen=True)
class Peer:
    """A runtime: its package, a function that writes its file to a folder, and one that loads it for some threads."""

    package: str

    make: Callable[[nn.Module, Tensor, Path], None]
    load: Callable[[Path, int], Run]


# --- this library ---


def _make_ours(module: nn.Module, x: Tensor, folder: Path) -> None:
    import q8ta_wgpu as q8

    q8.compile(q8.quantize(module, (x,), calibration=[x], progress=False)).save(folder / "net.q8ta")


def _load_ours(folder: Path, threads: int) -> Run:
    import q8ta_wgpu as q8

    session = q8.Session(q8.load(folder / "net.q8ta"))
    print(f"on {session.name}", file=sys.stderr)
    return session


# --- PyTorch on the CPU ---


def _make_torch(module: nn.Module, x: Tensor, folder: Path) -> None:
    import torch

    torch.export.save(torch.export.export(module, (x,)), folder / "float.pt2")


def _load_torch(folder: Path, threads: int) -> Run:
    import torch

    torch.set_num_threads(threads)
    return _without_grad(torch.export.load(folder / "float.pt2").module())


def _without_grad(module: Any) -> Run:
    import torch

    def run(image: Array) -> Array:
        with torch.no_grad():
            found: Array = module(torch.from_numpy(image)).numpy()
        return found

    return run


def _make_inductor(module: nn.Module, x: Tensor, folder: Path) -> None:
    import torch
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    from testbed.pt2e import by_torchao

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config())
    torch.export.save(by_torchao(module, [(x,)], quantizer), folder / "inductor.pt2")


def _load_inductor(folder: Path, threads: int) -> Run:
    import torch
    import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401 (its operators)

    torch.set_num_threads(threads)
    torch._inductor.config.freezing = True
    with torch.no_grad():
        return _without_grad(torch.compile(torch.export.load(folder / "inductor.pt2").module()))


# --- ONNX Runtime ---


def _make_onnx(module: nn.Module, x: Tensor, folder: Path) -> None:
    """Writes float.onnx and int8.onnx: QDQ around each operator, weights with a scale for each channel."""
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.items: Iterator[dict[str, Array]] = iter([{"x": x.numpy()}])

        def get_next(self) -> dict[str, Array] | None:
            return next(self.items, None)

    source, prepared = folder / "float.onnx", folder / "prepared.onnx"
    torch.onnx.export(module, (x,), str(source), input_names=["x"], dynamo=True, external_data=False, verbose=False)
    quant_pre_process(str(source), str(prepared))
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(str(prepared), str(folder / "int8.onnx"), Reader(), per_channel=True, **kinds)


def _load_onnx(file: str) -> Callable[[Path, int], Run]:
    def load(folder: Path, threads: int) -> Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(folder / file), options, providers=["CPUExecutionProvider"])
        return _of_session(session)

    return load


def _load_onnx_webgpu(folder: Path, threads: int) -> Run:
    """Loads by the plugin package, which uses software adapters only if it is told to."""
    import onnxruntime
    import onnxruntime_ep_webgpu as plugin

    swiftshader()
    os.environ["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
    # The suffix makes it offer a device if the system lists no GPU.
    onnxruntime.register_execution_provider_library("webgpu.virtual", plugin.get_library_path())
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == plugin.get_ep_name()]
    if not devices:
        raise RuntimeError("the plugin of ONNX Runtime found no WebGPU adapter")
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(devices[:1], {})
    session = onnxruntime.InferenceSession(str(folder / "int8.onnx"), options)
    if plugin.get_ep_name() not in session.get_providers():
        raise RuntimeError(f"ONNX Runtime fell back to {session.get_providers()}")
    return _of_session(session)


def _of_session(session: Any) -> Run:
    def run(image: Array) -> Array:
        found: Array = session.run(None, {"x": image})[0]
        return found

    return run


def swiftshader() -> None:
    """Lets Dawn find SwiftShader, which `.ci/adapter` installs, since it refuses Mesa's software driver."""
    if (driver := Path(sys.prefix) / "share/swiftshader/vk_swiftshader_icd.json").exists():
        os.environ["VK_ADD_DRIVER_FILES"] = str(driver)


# --- ncnn ---


def _make_ncnn(module: nn.Module, x: Tensor, folder: Path) -> None:
    from bench.ncnn_net import convert

    text, data = convert(module, x, int8=True)
    (folder / "ncnn.param").write_text(text)
    (folder / "ncnn.bin").write_bytes(data)


def _load_ncnn(vulkan: bool) -> Callable[[Path, int], Run]:
    def load(folder: Path, threads: int) -> Run:
        from bench.ncnn_run import NcnnNet

        text, data = (folder / "ncnn.param").read_text(), (folder / "ncnn.bin").read_bytes()
        return NcnnNet(text, data, half=True, vulkan=vulkan, threads=threads)

    return load


# --- ExecuTorch ---


def _make_executorch(module: nn.Module, x: Tensor, folder: Path) -> None:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from executorch.exir import to_edge_transform_and_lower

    from testbed.pt2e import by_torchao

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    exported = by_torchao(module, [(x,)], xnnpack.XNNPACKQuantizer().set_global(config))
    lowered = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    (folder / "net.pte").write_bytes(lowered.to_executorch().buffer)


def _load_executorch(folder: Path, threads: int) -> Run:
    import torch
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(folder / "net.pte").load_method("forward")

    def run(image: Array) -> Array:
        found: Array = method.execute([torch.from_numpy(image)])[0].numpy()
        return found

    return run


# --- IREE, tinygrad ---


def _make_iree(module: nn.Module, x: Tensor, folder: Path) -> None:
    import subprocess

    _make_onnx(module, x, folder)
    python = sys.executable, "-m"
    imported = folder / "iree.mlir"
    tool = "iree.compiler.tools.import_onnx"
    subprocess.run([*python, tool, str(folder / "int8.onnx"), "-o", str(imported)], check=True)
    import iree.compiler

    iree.compiler.compile_file(
        str(imported),
        target_backends=["vulkan-spirv"],
        input_type="onnx",
        output_file=str(folder / "net.vmfb"),
    )


def _load_iree(folder: Path, threads: int) -> Run:
    from iree import runtime

    config = runtime.Config("vulkan")
    loaded = runtime.load_vm_module(runtime.VmModule.mmap(config.vm_instance, str(folder / "net.vmfb")), config)
    names = [name for name in loaded.vm_module.function_names if "$" not in name and "__" not in name]
    function = loaded[names[0]]
    return lambda image: _read_back(function(image))


def _read_back(found: Any) -> Array:
    """Copies IREE's array to the host through a mapped buffer. IREE would import numpy's memory into the driver, but
    lavapipe only takes whole pages."""
    from iree.runtime import BufferUsage, HalFence, MemoryType

    view, device = found._buffer_view, found._device
    source = view.get_buffer()
    staging = device.allocator.allocate_buffer(
        memory_type=int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE),
        allowed_usage=int(BufferUsage.TRANSFER_TARGET | BufferUsage.MAPPING_SCOPED),
        allocation_size=source.byte_length(),
    )
    semaphore = device.create_semaphore(0)
    device.queue_copy(
        source,
        staging,
        wait_semaphores=HalFence.create_at(semaphore, 0),
        signal_semaphores=HalFence.create_at(semaphore, 1),
    )
    HalFence.create_at(semaphore, 1).wait()
    return np.array(staging.map().asarray(view.shape, found.dtype))


def _load_tinygrad(folder: Path, threads: int) -> Run:
    """Loads with Dawn's library from the package dawn-python."""
    os.environ["DEV"] = "WEBGPU"
    package = find_spec("pydawn")
    if package is None or package.origin is None:
        raise RuntimeError("tinygrad's WEBGPU needs Dawn's library: pip install dawn-python")
    ending = "dylib" if sys.platform == "darwin" else "so"
    library = Path(package.origin).parent / "lib" / f"libwebgpu_dawn_{platform.machine()}.{ending}"
    os.environ.setdefault("WEBGPU_PATH", str(library))
    swiftshader()
    from tinygrad import Device, Tensor, TinyJit
    from tinygrad.nn.onnx import OnnxRunner

    assert Device.DEFAULT == "WEBGPU", Device.DEFAULT
    network = OnnxRunner(str(folder / "float.onnx"))
    compiled = TinyJit(lambda image: next(iter(network({"x": image}).values())).realize())

    def run(image: Array) -> Array:
        found: Array = compiled(Tensor(image).realize()).numpy()
        return found

    return run


PEERS = {
    "q8ta_wgpu int8": Peer("q8ta_wgpu", _make_ours, _load_ours),
    "torch float32, CPU": Peer("torch", _make_torch, _load_torch),
    "torch inductor int8, CPU": Peer("torch", _make_inductor, _load_inductor),
    "ONNX Runtime int8 QDQ, CPU": Peer("onnxruntime", _make_onnx, _load_onnx("int8.onnx")),
    "ONNX Runtime float32, CPU": Peer("onnxruntime", _make_onnx, _load_onnx("float.onnx")),
    "ONNX Runtime int8 QDQ, WebGPU": Peer("onnxruntime-ep-webgpu", _make_onnx, _load_onnx_webgpu),
    "ncnn int8, Vulkan": Peer("ncnn", _make_ncnn, _load_ncnn(vulkan=True)),
    "ncnn int8, CPU": Peer("ncnn", _make_ncnn, _load_ncnn(vulkan=False)),
    "ExecuTorch XNNPACK int8, CPU": Peer("executorch", _make_executorch, _load_executorch),
    "IREE int8 QDQ, Vulkan": Peer("iree-base-runtime", _make_iree, _load_iree),
    "tinygrad float32, WebGPU": Peer("tinygrad", _make_onnx, _load_tinygrad),
}
