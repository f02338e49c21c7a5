"""Shader modules without loop bounding.

WebGPU implementations keep untrusted shaders from hanging a device by a counter in every loop. Compilers then no longer
unroll, and register tiles fall out of registers: int8 matrix products on an NVIDIA H200 ran at a ninth of their speed.
This library links all its WGSL itself, from files of the package, and every loop in them ends (their bounds are sizes
that `Op.check` limits), so modules are made without the counter. Bounds checks on buffers and arrays stay on: they cost
little and keep a mistake here from reading another program's memory.
"""

from __future__ import annotations

from typing import Any

import wgpu


def create_module(device: wgpu.GPUDevice, label: str, code: str) -> Any:
    """The shader module of WGSL text. Where wgpu-native's call for trusted shaders is missing, the ordinary module.

    Raises what `device.create_shader_module` raises for wrong code.
    """
    try:
        from wgpu.backends.wgpu_native import _api as native

        create, checks = (
            native.libf.wgpuDeviceCreateShaderModuleTrusted,
            native.lib.WGPUShaderRuntimeChecks_BoundsChecks,
        )
        internal = device._internal
        source = native.new_struct_p("WGPUShaderSourceWGSL *", code=native.to_c_string_view(code))
        source[0].chain.next = native.ffi.NULL
        source[0].chain.sType = native.lib.WGPUSType_ShaderSourceWGSL
        descriptor = native.new_struct_p(
            "WGPUShaderModuleDescriptor *",
            nextInChain=native.ffi.cast("WGPUChainedStruct *", source),
            label=native.to_c_string_view(label),
        )
    except (ImportError, AttributeError):  # another backend, or another version of this one
        return device.create_shader_module(label=label, code=code)
    return native.GPUShaderModule(label, create(internal, descriptor, checks), device)
