"""From a plan to a program: WGSL linked, constants packed, values in buffer slots, final workgroup counts.

Comes in: a graph, a plan and a target. Goes out: a Program, numbers and WGSL text alone. May use: passes.layout_sync,
model, kernels, ir.
"""
