"""A plain torch program as our graph: each aten call becomes a node by the function of its row in OPS.

Comes in: an ExportedProgram or a torch.fx graph. Goes out: a Graph. May use: export, model, kernels, ir.
"""
