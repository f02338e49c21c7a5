"""Exports a module as a plain torch program: without in-place operators, and of operators that the table has.

Comes in: an nn.Module or an ExportedProgram. Goes out: an ExportedProgram, or its graph, as `importer` reads it. May
use: frontend/nodes.py, kernels, ir.
"""
