"""Devices: listing, opening and probing adapters, pipelines, running a program. The one room that imports wgpu and
wgpudawn.

Comes in: a Program and arrays of words. Goes out: arrays of words, GPU times. May use: program, ir.

engine.py says what an engine is, native.py and dawn.py hold what only wgpu-native and only Dawn have; the others use
the objects that come from there by WebGPU's own names. Locks: `Device.lock` while something is made, recorded or
submitted, which on wgpu-native's OpenGL is `native.OPENGL` for all devices; `Device.waiting` while a run is waited for;
`Engine.listing` while adapters are listed; adapters.py's own while a device is chosen, always taken before the others.
"""
