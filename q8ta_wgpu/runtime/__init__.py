"""Devices: listing, opening and probing adapters, pipelines, running a program. The one room that imports wgpu.

Comes in: a Program and arrays of words. Goes out: arrays of words, GPU times. May use: program, ir.
"""
