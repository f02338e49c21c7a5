"""A module as a plain torch program: exported, without in-place operators, of operators that the table knows.

Comes in: an nn.Module or an ExportedProgram. Goes out: an ExportedProgram, or its graph, as `importer` reads it. May
use: frontend/nodes.py, kernels, ir.
"""
