"""Plans by measurement: kernels and layouts of each node are timed on a device. Times are stored in the user's cache.

Comes in: a graph and a device. Goes out: a Plan. May use: runtime, program, passes.layout_sync, kernels, ir.
"""
