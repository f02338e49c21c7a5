"""Lists, opens and probes adapters, compiles pipelines and runs programs. Only this folder imports wgpu and wgpudawn.

Comes in: a Program and arrays of words. Goes out: arrays of words, GPU times. May use: program, ir.

An engine is an implementation of WebGPU (engine.py). native.py and dawn.py contain everything that is specific to
wgpu-native or to Dawn. The other files use the engines' objects by WebGPU's own names.

Locks: `Device.lock` is held while objects are created, and commands recorded or submitted; all devices on wgpu-native's
OpenGL share one, `native.OPENGL`. `Device.waiting` is held while a run is awaited, `Engine.listing` while adapters are
listed. adapters.py has a lock for choosing a device, which is always taken before the others.
"""
