"""WebGPU's flags of buffers, textures and stages: its own numbers, the same in every package. Importing wgpu for them
takes a tenth of opening a session where Dawn is used."""

from __future__ import annotations

from enum import IntFlag


class BufferUsage(IntFlag):
    """GPUBufferUsage, as far as it is used here."""

    MAP_READ = 1
    MAP_WRITE = 2
    COPY_SRC = 4
    COPY_DST = 8
    UNIFORM = 64
    STORAGE = 128
    QUERY_RESOLVE = 512


class TextureUsage(IntFlag):
    """GPUTextureUsage, likewise."""

    TEXTURE_BINDING = 4
    STORAGE_BINDING = 8


COMPUTE = 4
"""GPUShaderStage.COMPUTE."""

READ = 1
"""GPUMapMode.READ."""
