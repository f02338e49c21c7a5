"""Models: verified graphs with weights, to be saved, loaded, reported on, resized, and run by the numpy reference.

Comes in: a graph. Goes out: a Model, a .q8ta file. May use: kernels (the operator table), ir.
"""
