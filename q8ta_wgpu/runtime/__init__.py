"""Devices: listing, opening and probing adapters, pipelines, running a program. The one room that imports wgpu.

Comes in: a Program and arrays of words. Goes out: arrays of words, GPU times. May use: program, ir.

engine.py holds what is taken from wgpu-py and native.py what only wgpu-native has; the others use the objects that
come from there by WebGPU's own names. Locks: `Device.lock` while something is made, recorded or submitted, which on
OpenGL is `engine.OPENGL` for all devices; `Device.waiting` while a run is waited for; device.py's own while a device is
chosen, always taken before the others.
"""
