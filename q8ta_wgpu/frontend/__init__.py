"""From torch to a model: quantizes a module, imports an exported program, compiles it. No other package needs torch's
graphs.

Comes in: an nn.Module or an ExportedProgram. Goes out: a Model. May use: passes, model, kernels, ir, and session for
programs that partly run on the GPU (hybrid.py).
"""
