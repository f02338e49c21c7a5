"""An ONNX file as our graph, without torch: each node becomes what the ONNX name's row in OPS makes of it.

Comes in: a file or its bytes. Goes out: a Model. May use: the graph builder, passes, model, kernels, ir.
"""
