"""What calibration meets, and what follows from it: ranges of values, and weights on their steps. Numbers alone.

Comes in: arrays, and a float graph. Goes out: scales, weights, and the graph with quantizes. May use: passes, model,
kernels, ir.
"""
