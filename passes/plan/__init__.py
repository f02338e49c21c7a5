"""Decides which values of a graph are rounded, and to how many bits. The quantizer and fusion read the same plan.

Comes in: a float graph, or one with quantizes. Goes out: regions that are rounded once. May use: kernels, ir.
"""
