"""Plans by measurement: the ways to run each node are timed on a device, and kept in the user's cache.

Comes in: a graph and a device. Goes out: a Plan. May use: runtime, program, passes.layout_sync, kernels, ir.
"""
