"""Where the values of a graph are rounded, and to how many bits: read by the quantizer, which stores the scales, and by
fusion, which makes int8 operators.

Comes in: a float graph, or one that holds quantizes. Goes out: regions that are rounded once. May use: kernels, ir.
"""
