"""Plans by measurement: every way to run a node is timed on a device. Times are kept in the user's cache.

Comes in: a graph and a device. Goes out: a Plan. May use: runtime, program, passes.layout_sync, kernels, ir.
"""
