"""How calls of aten and of ONNX become operators of the table, without torch and onnx.

Comes in: a call's name and arguments. Goes out: nodes, through a `Builder`; the tables ATEN and ONNX say which function
makes them. May use: kernels, model.
"""
