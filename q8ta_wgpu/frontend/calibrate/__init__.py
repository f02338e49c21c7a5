"""Our quantizer, edits of a float graph that calibration data decides, and what is wrong with values that were met.

Comes in: the graph of a plain float program, and inputs. Goes out: the graph, equalized, and errors and warnings. May
use: pt2e, quantization, importer, export, passes, kernels, ir.
"""
