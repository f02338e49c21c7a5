"""Devices: listing, opening and probing adapters, pipelines, running a program. Only this folder imports wgpu and
wgpudawn.

Comes in: a Program and arrays of words. Goes out: arrays of words, GPU times. May use: program, ir.

engine.py says what an engine is. native.py and dawn.py hold what only wgpu-native and only Dawn have. The other files
use the engines' objects by WebGPU's own names.

Locks: `Device.lock` while something is made, recorded or submitted; on wgpu-native's OpenGL it is `native.OPENGL` for
all devices. `Device.waiting` while a run is awaited. `Engine.listing` while adapters are listed. adapters.py has one
while a device is chosen, always taken before the others.
"""
