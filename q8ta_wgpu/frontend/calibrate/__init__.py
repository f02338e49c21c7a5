"""What our quantizer is to torchao's prepare and convert, and edits of a float graph that calibration data decides.

Comes in: the graph of a plain float program, and inputs. Goes out: the graph, equalized or annotated, and what is wrong
with values that calibration met. May use: quantization, importer, export, passes, kernels, ir.
"""
