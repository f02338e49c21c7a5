"""Quantizes a float program: which values are rounded, with which scales, and the rounding of weights by calibration
data.

Comes in: the graph of a plain float program, and inputs. Goes out: the graph with quantize and dequantize nodes. May
use: importer, export, passes, kernels, ir.
"""
