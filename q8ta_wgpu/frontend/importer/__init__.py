"""Imports a plain torch program as a graph of q8ta_wgpu. The row in OPS of each aten call has the function that adds
its nodes.

Comes in: an ExportedProgram or a torch.fx graph. Goes out: a Graph. May use: export, model, kernels, ir.
"""
