"""Imports ONNX files, without torch. The importer function of each ONNX operator is in the room importing.

Comes in: a file or its bytes. Goes out: a Model. May use: the graph builder, passes, model, kernels, ir.
"""
