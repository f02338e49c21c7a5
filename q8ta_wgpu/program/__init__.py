"""Builds programs of plans: linked WGSL, packed constants, buffer slots for values, final workgroup counts.

Comes in: a graph, a plan and a target. Goes out: a Program of numbers and WGSL text. May use: passes.layout_sync,
model, kernels, ir.
"""
