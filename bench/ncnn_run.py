"""Runs an ncnn network as its users do: without torch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ncnn
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


class NcnnNet:
    """A network in ncnn, called like a function: one image in, one result out, both numpy.

    Args:
        text, data: the results of `convert`.
        half: whether ncnn may use float16 (its default) instead of float32 for values that are not int8.
        vulkan: whether it runs on ncnn's Vulkan device or on the CPU.
        threads: number of CPU threads.

    Raises RuntimeError if ncnn finds no Vulkan device, or refuses the network or falls back from Vulkan.
    """

    def __init__(self, text: str, data: bytes, half: bool, vulkan: bool = True, threads: int = 1) -> None:
        if vulkan and ncnn.get_gpu_count() == 0:
            raise RuntimeError("ncnn found no Vulkan device")
        self.net = ncnn.Net()
        option = self.net.opt
        option.use_vulkan_compute = vulkan
        option.num_threads = threads
        for name in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"):
            setattr(option, name, half)
        option.use_bf16_packed = option.use_bf16_storage = False
        if self.net.load_param_mem(text) != 0:
            raise RuntimeError("ncnn refused the network:\n" + text)
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            Path(file.name).write_bytes(data)
            if self.net.load_model(file.name) != 0:
                raise RuntimeError("ncnn refused the weights")
        if vulkan and (not self.net.opt.use_vulkan_compute or self.on_cpu):
            raise RuntimeError(f"ncnn fell back to the CPU ({', '.join(self.on_cpu) or 'everything'})")
        self.input, self.output = self.net.input_names()[0], self.net.output_names()[0]

    def __call__(self, x: Floats) -> Floats:
        """(1, C, H, W) float32 to the network's result without its batch dimension."""
        with self.net.create_extractor() as extractor:
            extractor.input(self.input, ncnn.Mat(x[0]))
            status, found = extractor.extract(self.output)
            if status != 0:
                raise RuntimeError(f"ncnn failed with {status}")
            return np.array(found)

    @property
    def on_cpu(self) -> list[str]:
        """Types of the layers that ncnn does not run on Vulkan."""
        return [layer.type for layer in self.net.layers() if not layer.support_vulkan and layer.type != "Input"]
