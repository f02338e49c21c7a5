"""A checked graph with its weights, on its own: verified, saved and loaded, reported on, run by the numpy reference.

Comes in: a graph. Goes out: a Model, a .q8ta file. May use: kernels (the operator table), ir.
"""
