"""What our quantizer is to torchao's PT2E: its annotations. The only room with torchao.

Comes in: the graph of a plain float program. Goes out: the graph, annotated. May use: quantization,
importer, export, passes, kernels, ir.
"""
