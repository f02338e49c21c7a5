"""Where a float program is rounded, to which scales, and its weights rounded by what calibration met.

Comes in: the graph of a plain float program, and inputs. Goes out: the graph with quantize and dequantize nodes. May
use: importer, export, passes, kernels, ir.
"""
