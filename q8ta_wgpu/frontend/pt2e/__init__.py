"""What our quantizer is to torchao's PT2E: annotations, and the observers that find ranges. The only room with torchao.

Comes in: the graph of a plain float program. Goes out: the graph, annotated, and observers. May use: quantization,
importer, export, passes, kernels, ir.
"""
