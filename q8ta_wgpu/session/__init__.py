"""Sessions: a model on a device, to be called like a function, fed with a stream, run in tiles, or timed.

Comes in: a Model and numpy arrays. Goes out: numpy arrays. May use: tuning, runtime, program, passes, model, kernels,
ir.
"""
