"""What callers hold: a model on a device, called like a function, streamed, in tiles, timed.

Comes in: a Model and numpy arrays. Goes out: numpy arrays. May use: tune, runtime, program, passes, model, kernels, ir.
"""
