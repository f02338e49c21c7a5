"""AMD's compiler without an AMD GPU: `python -m testbed.radv` prints, for each kernel, what it says.

Mesa's RADV compiles for a GPU that is not there: its null device of RADV_FORCE_FAMILY, such as navi23, runs nothing.
wgpu can open no such device. So naga's SPIR-V is taken on its way to Mesa's software driver, of which four functions
are replaced in this process, and Vulkan itself gives it to RADV. No code is generated for the CPU, so all kernels take
a few seconds. Linux on x86-64, with the drivers lavapipe and RADV of the machine, or of VK_DRIVER_FILES.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

FOLDER = Path("/usr/share/vulkan/icd.d")
BINDING = re.compile(r"@binding\(\d+\) var<(\w+)")
STATISTICS = {
    "VGPRs": "vgprs",
    "SGPRs": "sgprs",
    "Spilled VGPRs": "spilled",
    "Spilled SGPRs": "spilled_sgprs",
    "Scratch size": "scratch",
    "LDS size": "lds",
    "Code size": "code",
    "Instructions": "instructions",
    "Subgroups per SIMD": "waves",
    "Inverse Throughput": "cycles",
}
"""The compiler's names of its statistics, and ours. `waves` are the subgroups that a SIMD has room for."""

GONE = "this Mesa's RADV has no null device"
"""Mesa 22.3 and 25.0 have one, 26.2 has none: it wants a drm-shim, which distributions do not package."""

WITHOUT = 26
"""The first major version of Mesa without it, as far as is known."""

Row = dict[str, Any]


class NoNullDevice(RuntimeError):  # noqa: N818
    """The machine's Mesa cannot compile for a GPU that is not there."""


def compiled(family: str, first: int = 0, every: int = 1) -> list[Row]:
    """Statistics of the kernels that a GPU of a family may run: number `first` and then one in `every`, from a process
    of its own: `kernel`, `packed_dot`, `error` where it does not compile, else the values of STATISTICS. Raises
    RuntimeError where this machine's Mesa does not know the family or lacks a driver, NoNullDevice where it is too
    new."""
    known = os.environ.get("VK_DRIVER_FILES") or ":".join(
        str(path) for name in ("lvp", "radeon") for path in sorted(FOLDER.glob(f"{name}_icd*.json"))
    )
    more = {"VK_DRIVER_FILES": known, "VK_ICD_FILENAMES": known, "RADV_FORCE_FAMILY": family}
    done = subprocess.run(
        [sys.executable, "-m", "testbed.radv", str(first), str(every)],
        env={**os.environ, **more, "MESA_SHADER_CACHE_DISABLE": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        if said.startswith(GONE):
            raise NoNullDevice(said)
        raise RuntimeError(
            f"RADV could not compile for {family}: {said}. It takes Mesa's Vulkan drivers lavapipe and RADV, "
            "mesa-vulkan-drivers on Debian and Ubuntu"
        )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Drivers:
    """The two Vulkan drivers of this process: a software one, whose SPIR-V is taken, and RADV's null device."""

    def __init__(self) -> None:
        import vulkan  # loads the Vulkan library

        self.vk = vk = vulkan
        about = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
        instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=about), None)
        found, newest = dict[str, Any](), 0
        for gpu in vk.vkEnumeratePhysicalDevices(instance):
            properties = vk.vkGetPhysicalDeviceProperties(gpu)
            found[properties.deviceName], newest = gpu, max(newest, properties.driverVersion >> 22)
        self.software = next((gpu for name, gpu in found.items() if "llvmpipe" in name), None)
        self.radv = next((gpu for name, gpu in found.items() if "RADV" in name), None)
        if self.radv is None and newest >= WITHOUT:
            sys.exit(f"{GONE}: its version is {newest}, and 22.3 to 25.0 have one")
        if self.software is None or self.radv is None:
            sys.exit(f"lavapipe and RADV's null device are needed, found {', '.join(found) or 'no driver'}")
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
        self.device = self._null_device(queue)
        self.properties = vk.vkGetDeviceProcAddr(self.device, "vkGetPipelineExecutablePropertiesKHR")
        self.statistics = vk.vkGetDeviceProcAddr(self.device, "vkGetPipelineExecutableStatisticsKHR")
        self._software_device = vk.vkCreateDevice(self.software, vk.VkDeviceCreateInfo(pQueueCreateInfos=[queue]), None)
        self._hooks: list[Any] = []

    def _null_device(self, queue: Any) -> Any:
        vk = self.vk
        chain = vk.VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR(pipelineExecutableInfo=1)
        names = ("shaderIntegerDotProduct", "subgroupSizeControl", "computeFullSubgroups", "maintenance4")
        chain = vk.VkPhysicalDeviceVulkan13Features(pNext=chain, **dict.fromkeys(names, 1))
        names = ("vulkanMemoryModel", "vulkanMemoryModelDeviceScope", "shaderInt8", "storageBuffer8BitAccess")
        chain = vk.VkPhysicalDeviceVulkan12Features(pNext=chain, **dict.fromkeys(names, 1))
        wanted = vk.VkPhysicalDeviceFeatures(shaderInt16=1, shaderInt64=1, robustBufferAccess=1)
        extensions = ["VK_KHR_pipeline_executable_properties"]
        return vk.vkCreateDevice(
            self.radv,
            vk.VkDeviceCreateInfo(
                pNext=vk.VkPhysicalDeviceFeatures2(pNext=chain, features=wanted),
                pQueueCreateInfos=[queue],
                ppEnabledExtensionNames=extensions,
            ),
            None,
        )

    @property
    def packed_dot(self) -> bool:
        """Whether the family has an instruction for the dot product of two words of four int8."""
        vk = self.vk
        found = vk.VkPhysicalDeviceShaderIntegerDotProductProperties()
        vk.vkGetPhysicalDeviceProperties2(self.radv, vk.VkPhysicalDeviceProperties2(pNext=found))
        return bool(found.integerDotProduct4x8BitPackedSignedAccelerated)

    def take(self, taken: list[bytes]) -> None:
        """From now on the software driver compiles nothing: the SPIR-V of a pipeline is added to `taken`."""
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        result = ctypes.POINTER(number)

        def module(_device: int, info: int, _allocator: int, handle: Any) -> int:
            size = ctypes.c_size_t.from_address(info + 24).value  # codeSize and pCode of VkShaderModuleCreateInfo
            taken.append(ctypes.string_at(ctypes.c_void_p.from_address(info + 32).value or 0, size))
            handle[0] = len(taken)
            return 0

        def pipelines(_device: int, _cache: int, count: int, _infos: int, _allocator: int, handles: Any) -> int:
            for i in range(count):
                handles[i] = i + 1
            return 0

        def nothing(_device: int, _handle: int, _allocator: int) -> None:
            pass

        many = (pointer, number, ctypes.c_uint32, pointer, pointer, result)
        self._replace("vkCreateShaderModule", ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, pointer, result), module)
        self._replace("vkCreateComputePipelines", ctypes.CFUNCTYPE(ctypes.c_int, *many), pipelines)
        for name in ("vkDestroyShaderModule", "vkDestroyPipeline"):
            self._replace(name, ctypes.CFUNCTYPE(None, pointer, number, pointer), nothing)

    def _replace(self, name: str, kind: Any, function: Callable[..., Any]) -> None:
        """Makes a function of the software driver jump to one of ours: mov rax, address; jmp rax."""
        hook = kind(function)
        self._hooks.append(hook)
        found = self.vk.lib.vkGetDeviceProcAddr(self._software_device, name.encode())
        at = int(self.vk.ffi.cast("uintptr_t", found))
        protect = ctypes.CDLL(None).mprotect
        if protect(ctypes.c_void_p(at & ~0xFFF), ctypes.c_size_t(0x2000), 7):
            sys.exit(f"the code of {name} cannot be written to")
        ctypes.memmove(at, b"\x48\xb8" + struct.pack("<Q", ctypes.cast(hook, ctypes.c_void_p).value) + b"\xff\xe0", 12)

    def compile(self, code: bytes, text: str) -> Row:
        """The statistics of a compute shader, from its SPIR-V and the WGSL that declares its bindings."""
        vk = self.vk
        kinds = {"uniform": vk.VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, "storage": vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER}
        stage = vk.VK_SHADER_STAGE_COMPUTE_BIT
        bindings = [
            vk.VkDescriptorSetLayoutBinding(binding=i, descriptorType=kinds[kind], descriptorCount=1, stageFlags=stage)
            for i, kind in enumerate(BINDING.findall(text))
        ]
        sets = vk.vkCreateDescriptorSetLayout(self.device, vk.VkDescriptorSetLayoutCreateInfo(pBindings=bindings), None)
        layout = vk.vkCreatePipelineLayout(self.device, vk.VkPipelineLayoutCreateInfo(pSetLayouts=[sets]), None)
        module = vk.vkCreateShaderModule(self.device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
        entry = vk.VkPipelineShaderStageCreateInfo(stage=stage, module=module, pName="main")  # owns the name
        info = vk.VkComputePipelineCreateInfo(
            flags=vk.VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, stage=entry, layout=layout
        )
        pipeline = vk.vkCreateComputePipelines(self.device, None, 1, [info], None)[0]
        row: Row = {}
        for index, _ in enumerate(self.properties(self.device, vk.VkPipelineInfoKHR(pipeline=pipeline))):
            which = vk.VkPipelineExecutableInfoKHR(pipeline=pipeline, executableIndex=index)
            for found in self.statistics(self.device, which):
                name = found.name if isinstance(found.name, str) else vk.ffi.string(found.name).decode()
                if name in STATISTICS:
                    row[STATISTICS[name]] = found.value.u64
        vk.vkDestroyPipeline(self.device, pipeline, None)
        vk.vkDestroyShaderModule(self.device, module, None)
        return row


def rows(first: int = 0, every: int = 1) -> Iterator[Row]:
    """A row for every kernel that a GPU of this process' family may run, in the form that suits it."""
    from q8ta_wgpu.commands.example import texts
    from q8ta_wgpu.ir.target import BASELINE
    from q8ta_wgpu.runtime.adapters import open_device

    drivers, taken = Drivers(), list[bytes]()
    device = open_device("llvmpipe")  # Vulkan comes before OpenGL
    drivers.take(taken)
    packed = drivers.packed_dot
    shaders: dict[str, Mapping[str, Any]] = {}
    for name, text in list(texts(replace(BASELINE, packed_dot=packed, fast_dot=packed)))[first::every]:
        if text not in shaders:
            taken.clear()
            try:
                device.pipeline(text, len(BINDING.findall(text)) - 1)
                shaders[text] = drivers.compile(taken[-1], text)
            except Exception as error:  # of naga, of Vulkan, or of RADV's compiler: all are findings
                shaders[text] = {"error": str(error)}
        yield {"kernel": name, "packed_dot": packed, **shaders[text]}


if __name__ == "__main__":
    for each in rows(*map(int, sys.argv[1:])):
        print(json.dumps(each))
    sys.stdout.flush()
    os._exit(0)  # nothing gives back what the replaced functions made
